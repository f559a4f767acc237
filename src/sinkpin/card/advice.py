"""What a sink card asks for, in one or two sentences for whoever has just read a detection. Not here: the rules."""

from typing import Any


def advice(card: dict[str, Any] | None, secondary: int) -> str:
    """`card` as in JSON (None: there is none); `secondary`: how many sinks of this prompt no rule speaks of."""
    pinned = [words for rule in (card or {}).get("rules", []) if (words := _pinned(rule))]
    said = f"To pin: {' and '.join(pinned)}." if pinned else "To pin: nothing that was found here."
    if not secondary:
        return said
    which = "secondary sink stands" if secondary == 1 else f"{secondary} secondary sinks stand"
    return f"{said} The {which} elsewhere in another prompt, so no rule pins {'it' if secondary == 1 else 'them'}."


def _pinned(rule: dict[str, Any]) -> str:
    if rule["rule"] == "first":
        count = int(rule["count"])
        which = "the first token" if count == 1 else f"the first {count} tokens"
        return f"{which} of each prompt (sinks={count})" if count else ""
    if rule["rule"] == "opening":
        return f"the chat template's opening ({len(rule['ids'])} tokens), where a prompt begins with it"
    return f"the tokens {', '.join(map(str, rule['indices']))} of a prompt that begins as this one does"
