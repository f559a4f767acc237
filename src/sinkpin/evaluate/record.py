"""What a comparison leaves behind: `results.json` (the numbers) and `nll.npz` (the loss of each scored token).

Numpy only, so that a result can be read, checked and drawn where there is no torch. A folder either holds a
whole result or is refused: `load` checks that both files are of one run. Not here: how the numbers are made
(`compare`), the files (`folder`) and which keys they must have (`schema`), and how a result is shown (`text`,
`picture`).

Shapes: M = scored tokens. Losses are natural-log negative log-likelihoods (nats), one float32 [M] per arm.
"""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sinkpin.errors import InputError
from sinkpin.evaluate.folder import LOSSES, RESULTS, read, write
from sinkpin.evaluate.schema import HEADER, SCHEMA, checked

# float32 losses summed in another order differ by less than this; a file of another run by far more.
NLL_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """One arm, one line of the table. Everything in it can be written as JSON."""

    name: str
    policy: str
    options: dict[str, object]
    sinks: int
    pins: list[list[int]] = field(default_factory=list)  # [start, stop] of each pinned span beyond the sinks
    frame: str | None
    budget: str | None = None  # as it was written: tokens, a share, bytes
    budget_tokens: int | None
    budget_bytes: int | None
    chunk: int | None = None  # tokens a forward that this arm was fed; None in files that do not say
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "pins", [list(span) for span in self.pins])

    @property
    def family(self) -> str:
        """The policy with its options; `streaming` is `window` with at least one pin."""
        policy = "window" if self.policy == "streaming" else self.policy
        options = ",".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{policy}:{options}" if options else policy

    @property
    def level(self) -> str:
        """The budget as written. In bytes it holds fewer entries where pins have to be remembered, too."""
        return str(self.budget_tokens) if self.budget is None else self.budget

    @property
    def setting(self) -> tuple[str, str | None, str]:
        """Everything but the pins: arms of one setting differ by those only."""
        return self.family, self.frame, self.level

    @property
    def pinned_tokens(self) -> int:
        return len(set(range(self.sinks)).union(*(range(start, stop) for start, stop in self.pins)))

    @property
    def pinned(self) -> bool:
        return self.pinned_tokens > 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """The arms of one run, scored on the same positions of the same text; `arms[0]` is the full cache.

    `print(result)` shows the table and what it says. `trained_length`: positions the model was trained on, where it
    has such a limit.
    """

    model: str
    versions: dict[str, str]
    tokens: int
    scored_tokens: int
    chunk: int
    trained_length: int | None = None
    notes: list[str]
    arms: list[ArmResult]
    positions: npt.NDArray[np.int64] = field(repr=False)  # [M]: index of each scored token in the text
    losses: dict[str, npt.NDArray[np.float32]] = field(repr=False)  # arm name -> [M]

    def __str__(self) -> str:
        from sinkpin.evaluate.text import as_text

        return as_text(self)

    def extrapolates(self, arm: ArmResult) -> bool:
        """Whether this arm used positions past those the model was trained on."""
        last = arm.budget_tokens if arm.frame == "slots" else self.tokens - 1
        return self.trained_length is not None and last is not None and last > self.trained_length

    def to_json(self) -> dict[str, Any]:
        """The document of `results.json` and `--json`. A number that is not finite is refused, never written."""
        document: dict[str, Any] = {"schema": SCHEMA}
        document |= {key: getattr(self, key) for key in HEADER}
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
        """Write both files into `folder` (made if absent), or leave what was there."""
        document = self.to_json()
        if problem := self._problem():
            raise InputError(f"this result is not written to {folder}: {problem}")
        write(Path(folder), document, {"positions": self.positions, **self.losses})

    @classmethod
    def load(cls, folder: Path | str) -> "Comparison":
        """Read a folder that `save` wrote; anything else raises one line that says what is wrong with it."""
        folder = Path(folder)
        document, arrays = read(folder)
        header, lines = checked(document, folder / RESULTS)
        arms = [
            ArmResult(**{**line, "ci95": None if line["ci95"] is None else tuple(line["ci95"])})
            for line in lines
        ]
        positions = arrays.pop("positions", np.empty(0, np.int64))
        result = cls(**header, arms=arms, positions=positions, losses=arrays)
        if problem := result._problem():
            raise InputError(
                f"{RESULTS} and {LOSSES} in {folder} are not of one run ({problem}), so neither is used; "
                "run `sinkpin compare` again"
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


def _kind(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"
