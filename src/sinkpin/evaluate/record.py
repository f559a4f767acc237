"""What a comparison leaves behind: `results.json` (the numbers) and `nll.npz` (the loss of each scored token).

Numpy only, so that a result can be read, checked and drawn where there is no torch. A folder either holds a
whole result or is refused: both files are written beside their place and moved in together, and `load` checks
that they belong together. Not here: how the numbers are made (`compare`) and how they are shown (`table`,
`picture`).

Shapes: M = scored tokens. Losses are natural-log negative log-likelihoods (nats), one float32 [M] per arm.
"""

import json
import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sinkpin.errors import InputError
from sinkpin.evaluate.atomic import write_together

SCHEMA = 1
RESULTS = "results.json"
LOSSES = "nll.npz"

# float32 losses summed in another order differ by less than this; a file of another run by far more.
NLL_TOLERANCE = 1e-4


@dataclass(frozen=True)
class ArmResult:
    """One arm, one line of the table. Everything in it can be written as JSON."""

    name: str
    policy: str
    options: dict[str, object]
    sinks: int
    frame: str | None
    budget_tokens: int | None
    budget_bytes: int | None
    kv_bytes_peak: int
    kv_bytes_steady: int
    evicted: float  # entries evicted per bounded layer and KV head, mean
    sink_kept: float  # share in 0..1 of the first four real tokens still held at the end
    nll: float
    ppl: float
    delta_nll: float
    ci95: tuple[float, float] | None
    kl: float | None
    top1_agreement: float | None
    verdict: str | None
    tokens_per_s: float

    @property
    def family(self) -> str:
        """The policy with its options and without its pins: arms of one family at one budget differ by pins
        only."""
        policy = (
            "window" if self.policy == "streaming" else self.policy
        )  # streaming is window with at least one pin
        options = ",".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{policy}:{options}" if options else policy

    @property
    def pinned(self) -> bool:
        """Whether anything is pinned: first tokens, or spans, which a record has in the name only (`…+0+5:9`)."""
        return self.sinks > 0 or re.search(r"\+\d+:\d+", self.name) is not None


@dataclass(frozen=True, eq=False)
class Comparison:
    """The arms of one run, scored on the same positions of the same text; `arms[0]` is the full cache."""

    model: str
    versions: dict[str, str]
    tokens: int
    scored_tokens: int
    chunk: int
    notes: list[str]
    arms: list[ArmResult]
    positions: npt.NDArray[np.int64]  # [M]: index of each scored token in the text
    losses: dict[str, npt.NDArray[np.float32]]  # arm name -> [M]

    def to_json(self) -> dict[str, Any]:
        """The document of `results.json` and `--json`. A number that is not finite is refused, never written."""
        document: dict[str, Any] = {"schema": SCHEMA}
        document |= {key: getattr(self, key) for key in _HEADER}
        document["arms"] = [
            {field.name: getattr(arm, field.name) for field in fields(ArmResult)} for arm in self.arms
        ]
        for arm in document["arms"]:
            for key, value in arm.items():
                numbers = value if isinstance(value, tuple) else (value,)
                if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
                    raise InputError(
                        f"arm {arm['name']!r} has {key} = {value}: not a finite number, so there is no result to "
                        "record; score it in float32, or leave the arm out"
                    )
            arm["ci95"] = None if arm["ci95"] is None else list(arm["ci95"])
        return document

    def save(self, folder: Path | str) -> None:
        """Write both files into `folder` (made if absent), or leave what was there.

        Complete copies are made first and then moved into place one after the other. If the second move
        fails, the first is taken back. Only a process killed between the two moves can leave files of two
        runs, which `load` sees.
        """
        folder = Path(folder)
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        if problem := self._problem():
            raise InputError(f"this result is not written to {folder}: {problem}")
        arrays: dict[str, Any] = {"positions": self.positions, **self.losses}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_together(
                {
                    folder / LOSSES: lambda file: np.savez(file, **arrays),
                    folder / RESULTS: lambda file: file.write(text.encode()),
                }
            )
        except OSError as error:
            raise InputError(
                f"cannot write the results into {folder} ({error.strerror or error}), so nothing was kept; "
                "choose another folder (--out)"
            ) from error

    @classmethod
    def load(cls, folder: Path | str) -> "Comparison":
        """Read a folder that `save` wrote; anything else raises one line that says what is wrong with it."""
        folder = Path(folder)
        remedy = "run `sinkpin compare` again"
        try:
            text = (folder / RESULTS).read_text(encoding="utf-8")
            with np.load(folder / LOSSES, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except FileNotFoundError as error:
            raise InputError(
                f"{error.filename} does not exist, so {folder} holds no result; {remedy}"
            ) from error
        except OSError as error:
            raise InputError(f"cannot read the result in {folder}: {error}") from error
        except (zipfile.BadZipFile, ValueError, EOFError, KeyError) as error:
            raise InputError(f"the result in {folder} cannot be read ({error}); {remedy}") from error
        try:
            document = json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            raise InputError(f"{folder / RESULTS} is not whole JSON ({error}); {remedy}") from error
        header, arms = _parse(document, folder / RESULTS)
        positions = arrays.pop("positions", np.empty(0, np.int64))
        result = cls(**header, arms=arms, positions=positions, losses=arrays)
        if problem := result._problem():
            raise InputError(
                f"{RESULTS} and {LOSSES} in {folder} are not of one run ({problem}), so neither is used; {remedy}"
            )
        return result

    def _problem(self) -> str | None:
        """What the record and the losses contradict each other in; None if nothing. True of each file saved
        or read."""
        names = [arm.name for arm in self.arms]
        if names != list(dict.fromkeys(names)) or set(names) != set(self.losses) or "positions" in names:
            return f"arms {', '.join(names)} but losses of {', '.join(self.losses) or 'none'}"
        if not names or self.arms[0].policy != "full":
            return f"the first arm is {names[0] if names else 'missing'}, not full"
        if self.positions.dtype != np.int64 or self.positions.shape != (self.scored_tokens,):
            return f"{self.scored_tokens} scored tokens but positions are {_kind(self.positions)}"
        if not self.scored_tokens:
            return "0 scored tokens"
        for arm in self.arms:
            losses = self.losses[arm.name]
            if losses.dtype != np.float32 or losses.shape != self.positions.shape:
                return f"{self.scored_tokens} scored tokens but the losses of {arm.name} are {_kind(losses)}"
            mean = float(losses.mean(dtype=np.float64))
            if not math.isclose(mean, arm.nll, rel_tol=NLL_TOLERANCE, abs_tol=NLL_TOLERANCE):
                return f"{arm.name} has nll {arm.nll:.6g} but its losses average {mean:.6g}"
        return None


_HEADER: dict[str, type] = {
    "model": str,
    "versions": dict,
    "tokens": int,
    "scored_tokens": int,
    "chunk": int,
    "notes": list,
}


def _parse(document: object, path: Path) -> tuple[dict[str, Any], list[ArmResult]]:
    """The header and arms of a document that has exactly the keys and kinds of values of this schema."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else None
        raise InputError(
            f"{path} has schema {found!r}, and this version of sinkpin reads {SCHEMA}; "
            "read it with the version that wrote it, or run `sinkpin compare` again"
        )
    header = {key: value for key, value in document.items() if key not in ("schema", "arms")}
    lines = document.get("arms")
    problem = _mismatch(header, _HEADER)
    if problem is None and not isinstance(lines, list):
        problem = "arms is not a list"
    arms: list[ArmResult] = []
    for number, line in enumerate(lines if isinstance(lines, list) else []):
        if problem is None and (
            wrong := _mismatch(line, {field.name: field.type for field in fields(ArmResult)})
        ):
            problem = f"arm {number}: {wrong}"
        if problem is None:
            interval = line["ci95"]
            arms.append(ArmResult(**{**line, "ci95": None if interval is None else tuple(interval)}))
    if problem:
        raise InputError(f"{path} does not follow schema {SCHEMA} ({problem}); run `sinkpin compare` again")
    return header, arms


def _mismatch(values: object, kinds: Mapping[str, Any]) -> str | None:
    """The first key that is missing, unknown, or of another kind than `kinds` says; None if there is none."""
    if not isinstance(values, dict):
        return "not an object"
    for key in [*kinds, *(key for key in values if key not in kinds)]:
        if key not in values:
            return f"{key} is missing"
        if key not in kinds:
            return f"{key} is unknown"
        value, kind = values[key], kinds[key]
        if key == "ci95":
            fits = value is None or (isinstance(value, list) and len(value) == 2)
        elif isinstance(value, bool):
            fits = False  # bool is an int in Python, and no field of the schema is one
        elif kind is float or kind == float | None:
            fits = isinstance(value, int | float) or (value is None and kind is not float)
        else:
            fits = isinstance(value, dict) if key == "options" else isinstance(value, kind)
        if not fits:
            return f"{key} is {value!r}"
    return None


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _kind(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"
