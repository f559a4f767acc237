"""The keys of a sink card, schema 1, and the check that a document has them, all of them and no other.

A card decides what is pinned, so a reader that skipped a key it does not know might pin something else than was
meant: one schema number stands for one set of keys. Not here: rules (`rules`), and the file (`Card.read`).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

SCHEMA = 1

_Check = Callable[[object], bool]


def _text(value: object) -> bool:
    return isinstance(value, str)


def _hash(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _count(value: object) -> bool:
    return type(value) is int and value >= 0


def _positive(value: object) -> bool:
    return type(value) is int and value > 0


def _number(value: object) -> bool:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _share(value: object) -> bool:
    return _number(value) and isinstance(value, int | float) and 0 <= value <= 1


def _interval(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2 or not all(map(_share, value)):
        return False
    return bool(value[0] <= value[1])


def _setting(value: object) -> bool:
    return value is None or isinstance(value, str | bool) or _number(value)


def _or_null(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _list_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _values(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _object(keys: Mapping[str, _Check]) -> _Check:
    return lambda value: isinstance(value, dict) and mismatch(value, keys) is None


_SINK = {"index": _count, "text": _text, "kind": _text, "mass": _share}
_STABILITY = {"jaccard": _share, "ci95": _or_null(_interval), "prompts": _positive}

KEYS: dict[str, _Check] = {
    "model": _text,
    "model_hash": _hash,
    "tokenizer_hash": _or_null(_hash),
    "template_hash": _or_null(_hash),
    "settings": _values(_setting),
    "rules": _list_of(lambda _: True),
    "needed": _or_null(_count),
    "stability": _or_null(_object(_STABILITY)),
    "sinks": _list_of(_object(_SINK)),
    "versions": _values(_text),
    "notes": _list_of(_text),
}


def mismatch(values: Mapping[str, Any], keys: Mapping[str, _Check]) -> str | None:
    """The first key that is missing, unknown, or not what it should be, in words; None if there is none."""
    for key in values:
        if key not in keys:
            return f"{key!r} is unknown"
    for key, check in keys.items():
        if key not in values:
            return f"{key!r} is missing"
        if not check(values[key]):
            said = repr(values[key])
            return f"{key} is {said if len(said) <= 80 else said[:80] + '…'}"
    return None
