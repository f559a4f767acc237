"""`sinkpin.json`: a promise as a file, read whole or refused, and what has become of it when it is checked.

Schema 1; keys may join without a new number. Not here: what stands in it (`Advice.to_json`).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkpin.atomic import write_together
from sinkpin.errors import InputError, SinkpinError
from sinkpin.evaluate.advisor.advice import SCHEMA
from sinkpin.evaluate.advisor.bound import Bound
from sinkpin.evaluate.advisor.settings import Setting
from sinkpin.evaluate.advisor.workloads import WORKLOADS

FILE = "sinkpin.json"

_KEYS: dict[str, Any] = {
    "model": str,
    "model_hash": str,
    "tokenizer_hash": str,
    "workload": str,
    "max_loss": int | float,
    "settings": dict,
    "design": dict,
    "texts": list,
}
_SETTINGS: dict[str, Any] = {
    "policy": str,
    "options": dict,
    "budget": int,
    "sinks": int,
    "pins": str | None,
    "frame": str | None,
}
_DESIGN: dict[str, Any] = {"length": int, "chunk": int}
_TEXT: dict[str, Any] = {"name": str, "sha256": str, "tokens": int}
_REMEDY = "make it anew with `sinkpin plan`"


@dataclass(frozen=True)
class Promise:
    """A document that was read, and the setting that it promises."""

    document: Mapping[str, Any]
    setting: Setting

    @property
    def max_loss(self) -> float:
        return float(self.document["max_loss"])


@dataclass(frozen=True)
class Checked:
    """A promise measured again: `bound` is today's; `broken` says, a line each, what no longer holds."""

    setting: Setting
    max_loss: float
    bound: Bound
    broken: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "holds": not self.broken,
            "broken": list(self.broken),
            "settings": self.setting.to_json(),
            "max_loss": self.max_loss,
            "blocks": self.bound.blocks,
            "loss": self.bound.loss if math.isfinite(self.bound.loss) else None,
            "loss_at_most": self.bound.at_most if math.isfinite(self.bound.at_most) else None,
            "notes": list(self.notes),
        }


def write(document: Mapping[str, Any], path: Path) -> None:
    """Whole or not at all. Raises `InputError` where the place cannot be written to."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A lone surrogate (a file's name that is no UTF-8) becomes its escape, which JSON has.
        write_together({path: lambda file: file.write(text.encode("utf-8", "backslashreplace"))})
    except OSError as error:
        raise InputError(
            f"cannot write {path} ({error.strerror or error}): choose another folder with --out"
        ) from error


def read(path: Path) -> Promise:
    """Raises `InputError`, in one line, for a file that is not there, torn, or no promise."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist, so there is no promise to check: {_REMEDY}") from None
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error}): {_REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not whole JSON ({error}): {_REMEDY}") from None
    found = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(document, dict) or type(found) is not int or found != SCHEMA:
        raise InputError(
            f"{path} has schema {found!r}, and this version of sinkpin reads {SCHEMA}: {_REMEDY}"
        )
    problem = (
        _mismatch(document, _KEYS)
        or _mismatch(document["settings"], _SETTINGS, "settings.")
        or _mismatch(document["design"], _DESIGN, "design.")
        or next((wrong for text in document["texts"] if (wrong := _mismatch(text, _TEXT, "texts: "))), None)
    )
    if problem is None and document["workload"] not in WORKLOADS:
        problem = f"workload is {document['workload']!r}"
    if problem is None and not 0 < document["max_loss"] < 10:
        problem = f"max_loss is {document['max_loss']!r}"
    if problem is None and document["settings"]["pins"] not in (None, "system", "card"):
        problem = f"settings.pins is {document['settings']['pins']!r}"
    if problem:
        raise InputError(f"{path} is no promise of schema {SCHEMA} ({problem}): {_REMEDY}")
    try:
        return Promise(document, Setting.from_json(document["settings"]))
    except SinkpinError as error:
        raise InputError(f"{path}: {error}; {_REMEDY}") from error


def _mismatch(values: object, kinds: Mapping[str, Any], where: str = "") -> str | None:
    if not isinstance(values, dict):
        return f"{where}not an object"
    for key, kind in kinds.items():
        if key not in values:
            return f"{where}{key} is missing"
        if isinstance(values[key], bool) or not isinstance(values[key], kind):
            return f"{where}{key} is {values[key]!r}"
    return None


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")
