"""The rules of a sink card: what has to stand at the beginning of a prompt, and the spans that are pinned then.

A rule is data, not a search: which ids it asks for and what it pins are known before any prompt, so that a budget can
be checked beforehand. It applies whole or not at all. A further rule is one function that makes a `Rule` of its JSON
fields, and one line in `RULES`. Not here: the card around them, and rules that look for a token wherever it is.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sinkpin.errors import InputError
from sinkpin.spans import Span, merged


@dataclass(frozen=True)
class Rule:
    """`spans` are pinned where each `(index, id)` of `asks` stands in the prompt. `fields`: as they are in JSON."""

    kind: str
    fields: tuple[tuple[str, int | tuple[int, ...]], ...]
    asks: tuple[tuple[int, int], ...]
    spans: tuple[Span, ...]

    @property
    def reads(self) -> int:
        """How many of a prompt's first tokens decide whether it applies; 0 for a rule that asks for no ids."""
        return max((index + 1 for index, _ in self.asks), default=0)

    def failure(self, ids: Sequence[int]) -> str | None:
        """Why it does not apply to the whole prompt `ids`, in words; None where it does."""
        if differs := self._differs(ids):
            index, wanted = differs
            return f"token {index} is {ids[index]}, not {wanted}"
        for index, wanted in self.asks:
            if index >= len(ids):
                return f"the prompt has {len(ids)} tokens, and token {index} should be {wanted}"
        return None

    def undecided(self, ids: Sequence[int]) -> bool:
        """Whether a prompt that only begins with `ids` may yet turn out to be one it applies to, or not to be."""
        return len(ids) < self.reads and self._differs(ids) is None

    def _differs(self, ids: Sequence[int]) -> tuple[int, int] | None:
        return next((ask for ask in self.asks if ask[0] < len(ids) and ids[ask[0]] != ask[1]), None)

    def to_json(self) -> dict[str, Any]:
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in self.fields}
        return {"rule": self.kind, **values}


def first(count: int) -> Rule:
    """The first `count` tokens, whatever they are. Raises `InputError` for anything but a whole number from 0 up."""
    if type(count) is not int or count < 0:
        raise InputError(f"rule first: count {count!r} is no number of tokens; give a whole number from 0 up")
    return Rule("first", (("count", count),), (), ((0, count),) if count else ())


def opening(ids: Sequence[int]) -> Rule:
    """The template's opening: all of `ids` where the prompt begins with exactly these, else nothing.

    A part of an opening is another template, or text that looks like one: what its tokens do there was not measured.
    Raises `InputError` for ids that are none.
    """
    ids = _numbers("opening", "ids", ids)
    return Rule("opening", (("ids", ids),), tuple(enumerate(ids)), ((0, len(ids)),))


def indices(indices: Sequence[int], ids: Sequence[int]) -> Rule:
    """The tokens at `indices`, where each of `ids` stands at its index: a rule for one prompt, or for one beginning.

    Raises `InputError` for indices that are not ascending, or not as many as there are ids.
    """
    indices, ids = _numbers("indices", "indices", indices), _numbers("indices", "ids", ids)
    if len(indices) != len(ids):
        raise InputError(
            f"rule indices: {len(indices)} indices and {len(ids)} ids; give one id for each index"
        )
    if any(before >= after for before, after in pairwise(indices)):
        raise InputError(f"rule indices: indices {list(indices)} are not ascending; give each once, in order")
    spans = merged((index, index + 1) for index in indices)
    asks = tuple(zip(indices, ids, strict=True))
    return Rule("indices", (("indices", indices), ("ids", ids)), asks, tuple(spans))


RULES: dict[str, Callable[..., Rule]] = {"first": first, "opening": opening, "indices": indices}
"""What `"rule"` may be -> the function that takes the other fields by their names."""


def read_rule(document: object) -> Rule:
    """The rule of one JSON object. Raises `InputError`, which names the legal values."""
    kind = document.get("rule") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(kind, str) or kind not in RULES:
        what = f"rule {kind!r}" if isinstance(document, dict) else f"a rule that is {document!r}"
        raise InputError(f"{what} is unknown: rules are {', '.join(RULES)}")
    given, known = document.keys() - {"rule"}, set(inspect.signature(RULES[kind]).parameters)
    if given != known:
        raise InputError(
            f"rule {kind} has the fields {', '.join(sorted(given)) or 'none'}: it takes {', '.join(sorted(known))}"
        )
    return RULES[kind](**{key: document[key] for key in known})


def _numbers(kind: str, name: str, given: object) -> tuple[int, ...]:
    """A list of whole numbers from 0 up, at least one."""
    if isinstance(given, list | tuple) and given and all(type(x) is int and x >= 0 for x in given):
        return tuple(given)
    raise InputError(
        f"rule {kind}: {name} {given!r} is no list of whole numbers from 0 up; give at least one"
    )
