"""What the advisor answers, with all its evidence: the record, and the document that it is.

Plain data: no torch. Not here: how it comes about (`advise`), its file (`promise`) and its words (`words`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sinkpin.evaluate.advisor.bound import BLOCK, CONFIDENCE, FEWEST
from sinkpin.evaluate.advisor.search import Trial

SCHEMA = 1

Verdict = Literal["promised", "none qualifies", "not enough text"]


@dataclass(frozen=True)
class Part:
    """How much text one of the two parts is."""

    passages: int
    blocks: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of one session, a row of a batch: `session_bytes` what `nbytes()` says once the budget is full, and for ever after;
    `peak_bytes` the most owned while the passages were fed (measured); `full_bytes` what the full cache holds of one
    passage."""

    session_bytes: int
    peak_bytes: int
    full_bytes: int

    @property
    def sessions_per_gib(self) -> int:
        return 2**30 // self.session_bytes


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The answer for `workload` with passages of `length` tokens, scored from token `first` on.

    `choosing`: what was tried on the first part. `certificate`: what was tested on the second, in order; the last that passed is
    promised. `needed`: about how many more tokens a promise would take, where text is what is lacking. `memory`: of what is
    promised. `about`: what the answer is of (model, hashes, versions, texts), as the caller says.
    """

    verdict: Verdict
    workload: str
    max_loss: float
    length: int
    first: int
    chunk: int
    parts: Mapping[str, Part]
    choosing: Sequence[Trial] = ()
    certificate: Sequence[Trial] = ()
    needed: int | None = None
    memory: Memory | None = None
    emitted: Mapping[str, str] = field(default_factory=dict)  # "python" and "serve"
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def promised(self) -> Trial | None:
        if self.verdict != "promised":
            return None
        return next(trial for trial in reversed(self.certificate) if trial.within)

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`, and of `sinkpin.json` where something is promised. `docs/plan.md` has it field by field."""
        held = self.promised
        memory = self.memory
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            **self.about,
            "workload": self.workload,
            "max_loss": self.max_loss,
            "confidence": CONFIDENCE,
            "settings": None if held is None else held.setting.to_json(),
            **{key: self.emitted.get(key) for key in ("python", "serve")},
            "memory": None
            if memory is None
            else {
                "session_bytes": memory.session_bytes,
                "sessions_per_gib": memory.sessions_per_gib,
                "peak_bytes": memory.peak_bytes,
                "full_bytes": memory.full_bytes,
            },
            "tokens_needed": self.needed,
            "design": {
                "length": self.length,
                "first_scored": self.first,
                "chunk": self.chunk,
                "block": BLOCK,
                "fewest_blocks": FEWEST,
                "parts": {name: vars(part) for name, part in self.parts.items()},
            },
            "evidence": {
                "choosing": [_trial(trial) for trial in self.choosing],
                "certificate": [_trial(trial) for trial in self.certificate],
            },
            "notes": list(self.notes),
        }


def _trial(trial: Trial) -> dict[str, Any]:
    found = trial.bound
    return {
        "name": trial.setting.name,
        "settings": trial.setting.to_json(),
        "bytes": trial.bytes,
        "blocks": found.blocks,
        "delta_nll": _number(found.nll),
        "bounds_nll": [_number(found.low), _number(found.high)],
        "loss": _number(found.loss),
        "loss_at_most": _number(found.at_most),
        "within": trial.within,
    }


def _number(value: float) -> float | None:
    """JSON has no infinity: a loss too large to be a number is null."""
    return value if math.isfinite(value) else None
