"""The keys of `results.json`, schema 1, and the check that a document has them.

Keys may join without a new schema number, so a reader leaves alone what it does not know and takes defaults for
what an older writer left out. A key that is missing otherwise, or holds another kind of value, is one line. Not here:
the record that the keys fill (`record`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkpin.errors import InputError

SCHEMA = 1

HEADER: dict[str, Any] = {
    "model": str,
    "versions": dict,
    "tokens": int,
    "scored_tokens": int,
    "chunk": int,
    "trained_length": int | None,
    "notes": list,
}

ARM: dict[str, Any] = {
    "name": str,
    "policy": str,
    "options": dict,
    "sinks": int,
    "pins": "spans",
    "frame": str | None,
    "budget": str | None,
    "budget_tokens": int | None,
    "budget_bytes": int | None,
    "chunk": int | None,
    "kv_bytes_peak": int,
    "kv_bytes_steady": int,
    "evicted": float,
    "sink_kept": float,
    "nll": float,
    "ppl": float,
    "delta_nll": float,
    "ci95": "interval",
    "kl": float | None,
    "top1_agreement": float | None,
    "verdict": str | None,
    "tokens_per_s": float,
}

LATER_IN_HEADER = frozenset({"trained_length"})
LATER_IN_ARM = frozenset({"pins", "budget", "chunk"})
"""What the first writers of schema 1 did not write."""


def checked(document: object, path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the arms of `document`, with the keys of this schema only. Raises `InputError` naming `path`."""
    found = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(document, dict) or found != SCHEMA:
        raise InputError(
            f"{path} has schema {found!r}, and this version of sinkpin reads {SCHEMA}; "
            "read it with the version that wrote it, or run `sinkpin compare` again"
        )
    lines = document.get("arms")
    problem = _mismatch(document, HEADER, LATER_IN_HEADER)
    if problem is None and not isinstance(lines, list):
        problem = "arms is not a list"
    for number, line in enumerate(lines if isinstance(lines, list) else []):
        if problem is None and (wrong := _mismatch(line, ARM, LATER_IN_ARM)):
            problem = f"arm {number}: {wrong}"
    if problem:
        raise InputError(f"{path} does not follow schema {SCHEMA} ({problem}); run `sinkpin compare` again")
    assert isinstance(lines, list)
    return _known(document, HEADER), [_known(line, ARM) for line in lines]


def _known(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    return {key: values[key] for key in kinds if key in values}


def _mismatch(values: object, kinds: Mapping[str, Any], later: frozenset[str]) -> str | None:
    """The first key that is missing or of another kind than `kinds` says; None if there is none."""
    if not isinstance(values, dict):
        return "not an object"
    for key, kind in kinds.items():
        if key not in values:
            if key not in later:
                return f"{key} is missing"
        elif not _fits(values[key], kind):
            return f"{key} is {values[key]!r}"
    return None


def _fits(value: object, kind: Any) -> bool:
    if isinstance(value, bool):
        return False  # bool is an int in Python, and no field of the schema is one
    if kind == "interval":
        return value is None or (isinstance(value, list) and len(value) == 2 and _all(value, int | float))
    if kind == "spans":
        return isinstance(value, list) and all(
            isinstance(span, list) and len(span) == 2 and _all(span, int) for span in value
        )
    if kind is float or kind == float | None:  # a JSON writer may shorten 1.0 to 1
        return isinstance(value, int | float) or (value is None and kind is not float)
    return isinstance(value, kind)


def _all(values: list[object], kind: Any) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
