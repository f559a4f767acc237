"""Words that every page uses: numbers with the digits that count, and text with nothing hidden in it.

Everything here is plain text: whoever puts it into a page escapes it (`markup.text`). Not here: what a page has to say.
"""

import math
import unicodedata

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
