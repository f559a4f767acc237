"""Several runs of one model and one text as one document with all their arms.

Runs are of the same text where the model, the tokens, the scored positions and the full cache's loss are the same: then
each arm was scored on the same places against the same reference. Anything else is refused, in one line. Not here: how
one run changed against an earlier one (`changes`).

Verdicts stay those of each run: p-values were adjusted for the arms of one run, and a note says so.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from sinkpin.errors import InputError
from sinkpin.evaluate.documents import Document
from sinkpin.evaluate.record import NLL_TOLERANCE

_SAME = ("model", "tokens", "scored_tokens", "margin")


def merged(documents: Sequence[Document], names: Sequence[str]) -> Document:
    """One document; `names` are what the runs are called in what is raised. One run stays as it is."""
    first = documents[0]
    for document, name in zip(documents[1:], names[1:], strict=True):
        if difference := _difference(first, document):
            raise InputError(
                f"{names[0]} and {name} are not of one text ({difference}), so their arms cannot stand in one table; "
                "report them apart, or with --compare as runs over time"
            )
    if len(documents) == 1:
        return first
    notes = _unique(note for document in documents for note in document["notes"])
    chunks = sorted({document["chunk"] for document in documents})
    if len(chunks) > 1:
        notes.append(f"the runs were fed in chunks of {_listed(chunks)}; each arm states its own")
    factorials = [one for one in (document.get("factorial") for document in documents) if one]
    if any(one != other for one, other in pairwise(factorials)):
        notes.append(f"{len(factorials)} runs were factorial; the shares shown are the first one's")
    notes.append(
        f"merged from {len(documents)} runs; p and verdicts are adjusted for the arms of each run, not for all of them"
    )
    versions: dict[str, list[str]] = {}
    for document in documents:
        for package, version in document["versions"].items():
            versions.setdefault(package, []).append(version)
    commands = _unique(document["command"] for document in documents if document.get("command"))
    together = {
        "versions": {package: _listed(_unique(found)) for package, found in versions.items()},
        "command": "\n".join(commands) or None,
        "text": _stated(documents, "text"),
        "blocks": _stated(documents, "blocks"),
        "margin": _stated(documents, "margin"),
        "notes": notes,
        "pairs": _unique(pair for document in documents for pair in document.get("pairs") or []),
        "factorial": factorials[0] if factorials else None,
        "arms": _arms(documents, names),
    }
    return {**first, **together}


def _difference(one: Document, other: Document) -> str:
    """What the two differ in, in words; empty where they are of one text."""
    for key in _SAME:
        here, there = one.get(key), other.get(key)
        if here != there and (key != "margin" or None not in (here, there)):
            return f"{key} {here} and {there}"
    here, there = one.get("blocks"), other.get("blocks")
    if here and there and here.get("ends") != there.get("ends"):
        return "their blocks end at other positions"
    here, there = one["arms"][0]["nll"], other["arms"][0]["nll"]
    if not _close(here, there):
        return f"the full cache’s loss is {here:.6g} and {there:.6g} nats"
    return ""


def _arms(documents: Sequence[Document], names: Sequence[str]) -> list[dict[str, Any]]:
    """All arms, each once; one name with two losses is two settings, and refused."""
    found: dict[str, tuple[dict[str, Any], str]] = {}
    for document, name in zip(documents, names, strict=True):
        for arm in document["arms"]:
            known, where = found.setdefault(arm["name"], (arm, name))
            if not _close(known["nll"], arm["nll"]):
                raise InputError(
                    f"{arm['name']} has a loss of {known['nll']:.6g} nats in {where} and {arm['nll']:.6g} in {name}: other "
                    "settings or versions, so the runs cannot be merged; --compare shows them as runs over time"
                )
            if known.get("verdict") is None and arm.get("verdict") is not None:
                found[arm["name"]] = (arm, name)
    return [arm for arm, _ in found.values()]


def _stated(documents: Sequence[Document], key: str) -> Any:
    """What the first run that says anything says; files of earlier versions are silent."""
    return next((document[key] for document in documents if document.get(key) is not None), None)


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=NLL_TOLERANCE, abs_tol=NLL_TOLERANCE)


def _unique(values: Iterable[Any]) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept


def _listed(values: Sequence[object]) -> str:
    return " and ".join(str(value) for value in values)
