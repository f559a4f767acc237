"""Results and probes as plain documents, for a report: `results.json` and `probe-*.json`, without the losses beside them.

A document is a dict that follows its schema, keys that are not known included. Not here: whole results with their
losses (`record`), and what is made of several documents (`merge`, `changes`).
"""

import json
from pathlib import Path
from typing import Any

from sinkpin.errors import InputError
from sinkpin.evaluate.folder import RESULTS
from sinkpin.evaluate.schema import checked

Document = dict[str, Any]

PROBES = "probe-*.json"


def read(path: Path) -> Document:
    """A result or a probe (`is_probe`), from a file, or a result from a folder."""
    if path.is_dir():
        path /= RESULTS
    document = _json(path)
    if is_probe(document):
        return _probe(document, path)
    checked(document, path)
    return document


def is_probe(document: Document) -> bool:
    return "probe" in document


def probes_beside(place: Path, model: str) -> tuple[list[Document], list[str]]:
    """The probes of `model` in a result's folder, and a line for each that is left out."""
    folder = place if place.is_dir() else place.parent
    found: list[Document] = []
    remarks: list[str] = []
    for path in sorted(folder.glob(PROBES)):
        try:
            probe = _probe(_json(path), path)
        except InputError as error:
            remarks.append(f"left out of the report: {error}")
            continue
        if probe["model"] == model:
            found.append(probe)
        else:
            remarks.append(f"left out of the report: {path} is of {probe['model']}, the result of {model}")
    return found, remarks


def _probe(document: Document, path: Path) -> Document:
    from sinkpin.evaluate.probes.record import (
        ProbeResult,  # here: its package loads SciPy, which a result needs not
    )

    ProbeResult.from_json(document, str(path))
    return document


def _json(path: Path) -> Document:
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except FileNotFoundError as error:
        raise InputError(
            f"{path} does not exist; give a results.json, a probe's file or a folder that `sinkpin compare` wrote"
        ) from error
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error}); give another file") from error
    except ValueError as error:
        raise InputError(f"{path} is not whole JSON ({error}); make it again") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no JSON object, so it is no result; give a results.json")
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")
