"""What a probe leaves behind: `probe-NAME.json`, schema 1, one document with everything the result depends on.

No torch, no transformers: a record can be read and shown where no model runs. A file is written whole or not at all, and
one that is not what `save` writes is refused in one line. Keys may join within a schema; a reader leaves alone what it does
not know. Not here: how the numbers are made (`run`, `tally`) and shown (`text`).
"""

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sinkpin.atomic import write_together
from sinkpin.errors import InputError

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class ProbeArm:
    """One arm. `score` is the mean over `n` answers; `delta` is it less that of the full cache, over the questions that both
    answered. `evicted`: entries for each bounded layer and KV head, the mean over the times it was asked. `budget_tokens`
    is None for the full cache and where a share gave different numbers. `cells`: the grid, each cell with its place on every
    axis, `score`, `ci95` and `n`. `measures`: means of what else was measured."""

    name: str
    policy: str
    options: dict[str, object]
    sinks: int
    frame: str | None
    budget: str | None
    budget_tokens: int | None
    kv_bytes_steady: int
    evicted: float
    score: float
    ci95: tuple[float, float]
    n: int
    delta: float | None
    delta_ci95: tuple[float, float] | None
    cells: list[dict[str, Any]] = field(default_factory=list)
    measures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """`arms[0]` is the full cache. `chance`: what an arm that knows nothing scores; `can`: whether the full cache beats it;
    `sentence`: what follows. `print(result)` shows it."""

    probe: str
    model: str
    versions: dict[str, str]
    settings: dict[str, Any]
    axes: list[str]
    chance: float
    chance_says: str
    can: bool
    sentence: str
    notes: list[str]
    arms: list[ProbeArm]

    def __str__(self) -> str:
        from sinkpin.evaluate.probes.text import as_text

        return as_text(self)

    def to_json(self) -> dict[str, Any]:
        """The document. A number that is not finite is refused, never written."""
        document: dict[str, Any] = {"schema": SCHEMA}
        document |= {each.name: getattr(self, each.name) for each in fields(self)}
        document["arms"] = [{each.name: getattr(arm, each.name) for each in fields(arm)} for arm in self.arms]
        _check_finite(document, self.probe)
        plain: dict[str, Any] = json.loads(json.dumps(document))  # tuples become lists
        return plain

    def save(self, folder: Path | str) -> Path:
        """Write the file into `folder`, made if absent; returns where it is."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        path = Path(folder) / file_of(self.probe)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_together({path: lambda file: file.write(text.encode())})
        except OSError as error:
            raise InputError(
                f"cannot write {path} ({error.strerror or error}), so nothing was kept; choose another folder (--out)"
            ) from error
        return path

    @classmethod
    def load(cls, path: Path | str) -> "ProbeResult":
        """Read a file that `save` wrote; anything else raises one line that says what is wrong with it."""
        path = Path(path)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"cannot read {path} ({error.strerror or error}): name a probe's file"
            ) from error
        except ValueError as error:
            raise InputError(f"{path} is not whole JSON ({error}); run `sinkpin probe` again") from error
        return cls.from_json(document, str(path))

    @classmethod
    def from_json(cls, document: object, name: str) -> "ProbeResult":
        """The record of a document called `name`."""
        found = document.get("schema") if isinstance(document, dict) else None
        if not isinstance(document, dict) or found != SCHEMA:
            raise InputError(
                f"{name} has schema {found!r}, and this version of sinkpin reads {SCHEMA}; read it with the version that wrote "
                "it, or run `sinkpin probe` again"
            )
        lines = document.get("arms")
        if not isinstance(lines, list) or not lines:
            raise _wrong(name, "it has no arms")
        problems = [_problem(cls, document), *(_problem(ProbeArm, line) for line in lines)]
        if problem := next(filter(None, problems), None):
            raise _wrong(name, problem)
        arms = [ProbeArm(**{**_known(ProbeArm, line), **_pairs(line)}) for line in lines]
        if arms[0].policy != "full":
            raise _wrong(name, f"its first arm is {arms[0].name}, not full")
        return cls(**{**_known(cls, document), "arms": arms})


def file_of(probe: str) -> str:
    return f"probe-{probe}.json"


def _wrong(name: str, problem: str) -> InputError:
    return InputError(f"{name} is no probe's record ({problem}); run `sinkpin probe` again")


_KINDS: dict[str, Any] = {
    "probe": str,
    "model": str,
    "versions": dict,
    "settings": dict,
    "axes": list,
    "chance": int | float,
    "can": bool,
    "sentence": str,
    "notes": list,
    "arms": list,
    "name": str,
    "policy": str,
    "score": int | float,
    "n": int,
    "cells": list,
    "delta": int | float | None,
}


def _problem(kind: Any, values: object) -> str | None:
    """The first key that is missing or of another kind."""
    if not isinstance(values, dict):
        return "an arm is no object"
    for each in fields(kind):
        if each.name not in values:
            return f"{each.name} is missing"
        value = values[each.name]
        if each.name in _KINDS and not isinstance(value, _KINDS[each.name]):
            return f"{each.name} is {value!r}"
        if each.name in ("ci95", "delta_ci95") and not _is_interval(value, optional=each.name != "ci95"):
            return f"{each.name} is {value!r}"
    return None


def _is_interval(value: object, *, optional: bool) -> bool:
    if value is None:
        return optional
    return isinstance(value, list) and len(value) == 2 and all(isinstance(x, int | float) for x in value)


def _known(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    return {each.name: values[each.name] for each in fields(kind)}


def _pairs(line: dict[str, Any]) -> dict[str, Any]:
    return {key: None if line[key] is None else tuple(line[key]) for key in ("ci95", "delta_ci95")}


def _check_finite(value: object, probe: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(
            f"the record of {probe} holds {value}, which is no number: it is not written; run the model in float32"
        )
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    ):
        _check_finite(inner, probe)
