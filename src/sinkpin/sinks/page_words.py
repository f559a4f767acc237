"""The page's words: a token made visible, numbers, the headline, and the findings under it.

Everything here is plain text: whoever puts it into a page escapes it (`page_tables.text`). Not here: the tables, and
the pictures' own words (page.js).
"""

import math
import unicodedata
from typing import Any

NOT_MEASURED = "not measured"

_SPACE = "\u00a0"  # no line breaks between a number and its unit
_PICTURES = {" ": " ", _SPACE: _SPACE, "\n": "⏎", "\t": "⇥"}


def plain(text: str) -> str:
    """`text` to read, with nothing hidden in it: what has no shape or would turn the text around (controls, direction
    marks, half surrogates) is shown by its number."""
    if text.isprintable():
        return text
    return "".join(_PICTURES.get(sign) or _visible(sign) for sign in text)


def shown(text: str) -> str:
    """A token to look at: `plain`, and its spaces are dots."""
    return plain(text.replace(_SPACE, "⍽")).replace(" ", "·") or "∅"


def _visible(sign: str) -> str:
    return f"⟨U+{ord(sign):04X}⟩" if unicodedata.category(sign)[0] in "CZ" else sign


def short(text: str, most: int = 40) -> str:
    """`text` as `shown`, cut after `most` signs."""
    seen = shown(text[: most + 1])
    return seen if len(text) <= most else seen[:most] + "…"


def measured(number: float | None) -> bool:
    """Whether there is a number at all."""
    return number is not None and math.isfinite(number)


def percent(share: float | None) -> str:
    """A share with two digits that count: 41 %, 4.1 %, 0.0041 %."""
    if share is None or not math.isfinite(share):
        return NOT_MEASURED
    hundredths = 100 * share
    if 0 < abs(hundredths) < 1e-4:
        return f"<{_SPACE}0.0001{_SPACE}%"
    digits = f"{hundredths:.0f}" if abs(hundredths) >= 9.95 or hundredths == 0 else f"{hundredths:.2g}"
    return f"{digits}{_SPACE}%"


def number(value: float | None) -> str:
    """Three digits that count."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    return (f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}").replace("-", "−")


def nats(effect: dict[str, Any]) -> str:
    """A loss with its interval."""
    low, high = effect["ci95"]
    return f"{signed(effect['delta_nll'])} [{signed(low)}, {signed(high)}]"


def _loss(effect: dict[str, Any]) -> str:
    """The same in a sentence."""
    low, high = (_short_nats(x) for x in effect["ci95"])
    return f"{_short_nats(effect['delta_nll'])} ({low} to {high})"


def _short_nats(value: float) -> str:
    if not math.isfinite(value):
        return NOT_MEASURED
    return (f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}").replace("-", "−")


def signed(value: float | None) -> str:
    """Nats, with their sign."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    return f"{value:+.3f}".replace("-", "−")


def spans(numbers: list[int]) -> str:
    """Whole numbers in few words: 0, 3–7."""
    said: list[str] = []
    ends: list[int] = []
    for one in sorted(numbers):
        if ends and one == ends[1] + 1:
            ends[1] = one
            said[-1] = f"{ends[0]}–{one}"
        else:
            ends = [one, one]
            said.append(str(one))
    return ", ".join(said)


def headline(document: dict[str, Any]) -> str:
    """What was found, in one line. Nothing is an answer too."""
    found = _found(document)
    if not found:
        return "No sinks found"
    top = found[0]
    return f"Token {top['index']}, “{short(top['text'], 20)}”, takes {percent(top['mass'])} of all attention"


def findings(document: dict[str, Any]) -> list[str]:
    """The sentences under the headline: how many sinks of what kind, what losing them costs, what pinning gives back."""
    said = [_counted(document), *(_MEANS[kind] for kind in _kinds(_found(document)))]
    if costs := [one for one in document["ablations"] if measured(one["effect"]["delta_nll"])]:
        worst = max(costs, key=lambda one: float(one["effect"]["delta_nll"]))
        others = "as many matched tokens" if len(worst["indices"]) > 1 else "a matched token"
        said.append(
            f"Losing {worst['what']} ({worst['way']}) costs {_loss(worst['effect'])} nats per token, "
            f"losing {others} {_loss(worst['control'])}."
        )
    if given := [one for one in document["restored"] if measured(one["pinned"]["delta_nll"])]:
        best = min(given, key=lambda one: float(one["pinned"]["delta_nll"]))
        said.append(
            f"In a window of {best['budget']:,} entries, pinning the {best['what']} brings the loss from "
            f"{_loss(best['without'])} to {_loss(best['pinned'])} nats per token."
        )
    return said


def _found(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Sinks by their mass, largest first. Without those that are listed only for their place in the template."""
    found = [sink for sink in document["sinks"] if sink["outlier"]]
    return sorted(found, key=lambda sink: sink["mass"] if measured(sink["mass"]) else 0.0, reverse=True)


def _counted(document: dict[str, Any]) -> str:
    found, listed = _found(document), len(document["sinks"])
    among = len(document["tokens"]["texts"])
    if not found:
        rest = f" {listed} listed for their place in the chat template." if listed else ""
        return f"Among {among:,} tokens, none stands out by the attention it receives.{rest}"
    top, heads = found[0], document["heads"] * len(document["layers"])
    epsilon = document["settings"].get("epsilon")
    over = "ε" if epsilon is None else f"ε = {epsilon}"
    tally = {kind: sum(sink["kind"] == kind for sink in found) for kind in _kinds(found)}
    more = listed - len(found)
    rest = (
        f"; {more} more listed for {'its' if more == 1 else 'their'} place in the chat template"
        if more
        else ""
    )
    which = "it" if len(found) == 1 else f"token {top['index']}"
    return (
        f"{len(found)} sink{'s' if len(found) > 1 else ''} among {among:,} tokens "
        f"({', '.join(f'{many} {kind}' for kind, many in tally.items())}){rest}. {top['heads']:,} of {heads:,} heads pay "
        f"{which} more than {over}, in {len(top['layers'])} of {len(document['layers'])} layers."
    )


_MEANS = {
    "true": "True: bound to the first place. Whatever token stands there takes the mass.",
    "structural": "Structural: a marker of the chat template.",
    "secondary": "Secondary: bound neither to the first place nor to the chat template.",
}


def _kinds(sinks: list[dict[str, Any]]) -> list[str]:
    """The kinds there are, true ones first."""
    there = {sink["kind"] for sink in sinks}
    return [kind for kind in _MEANS if kind in there]
