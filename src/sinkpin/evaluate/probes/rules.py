"""Rules that a system prompt may set, each in four variants, so that obeying one can be told from a habit.

A model has habits: it will rather begin with "Certainly" than with "Gladly". Each trial draws the variant, so that a habit
is right in one case of four. Not here: the chat around the rules (`instructions`).
"""

from collections.abc import Callable
from dataclasses import dataclass

_ANSWER = "The train leaves at nine."
_OPEN, _CLOSE = "[", "]"


@dataclass(frozen=True)
class Variant:
    """`says` is the rule; `keeps` an answer's piece that keeps it, behind the rule's `cue`; `check`: whether a written answer
    does."""

    says: str
    keeps: str
    check: Callable[[str], bool]


@dataclass(frozen=True)
class Rule:
    """`cue` begins an answer, up to where the variants part."""

    name: str
    cue: str
    variants: tuple[Variant, ...]


def _begins(word: str) -> Variant:
    return Variant(
        f'Begin every answer with the word "{word}".',
        f"{word},",
        lambda written: written.lstrip(" \n\"'*").lower().startswith(word.lower()),
    )


def _ends(word: str) -> Variant:
    return Variant(
        f'End every answer with the word "{word}".',
        f" {word}",
        lambda written: written.rstrip(" \n\"'*.!").lower().endswith(word.lower()),
    )


def _calls(title: str) -> Variant:
    return Variant(
        f'Call the user "{title}" in every answer.',
        f" {title}",
        lambda written: title.lower() in written.lower(),
    )


def _letters(written: str) -> str:
    return "".join(letter for letter in written if letter.isalpha())


_FORMS = (
    Variant(
        "Write every answer in capital letters.",
        _ANSWER.upper(),
        lambda written: _letters(written).isupper(),
    ),
    Variant(
        "Write every answer in small letters, without any capital.",
        _ANSWER.lower(),
        lambda written: _letters(written).islower(),
    ),
    Variant(
        "Begin every word of an answer with a capital letter.",
        "The Train Leaves At Nine.",
        lambda written: (
            _letters(written) != ""
            and not _letters(written).isupper()
            and all(word[0].isupper() for word in written.split() if word[0].isalpha())
        ),
    ),
    Variant(
        "Put every answer between square brackets.",
        f"{_OPEN}{_ANSWER}{_CLOSE}",
        lambda written: written.strip().startswith(_OPEN) and _CLOSE in written,
    ),
)

RULES = (
    Rule("begin", "", tuple(map(_begins, ("Certainly", "Indeed", "Naturally", "Gladly")))),
    Rule("end", _ANSWER, tuple(map(_ends, ("Over", "Amen", "Cheers", "Stop")))),
    Rule("address", "Good evening,", tuple(map(_calls, ("captain", "professor", "doctor", "madam")))),
    Rule("form", "", _FORMS),
)
VARIANTS = 4
