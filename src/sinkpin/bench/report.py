"""What a run leaves behind: one JSON document, the same fields for every verb.

Not here: how it is shown (`table`), and what is measured.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sinkpin.bench.settings import Settings, as_json
from sinkpin.bench.timing import Seconds, paired, spread
from sinkpin.errors import InputError

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line. `median`, `p10`, `p90` and `floor` are in `unit`.

    `ratio`: median of paired ratios to the reference. `floor`: what this machine could do at best. `more`: what
    this verb alone has to say.
    """

    name: str
    unit: str
    median: float
    p10: float
    p90: float
    repeats: int
    ratio: float | None = None
    floor: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def times_floor(self) -> float | None:
        """How far from the floor: 1 is on it."""
        return self.median / self.floor if self.floor else None

    def to_json(self) -> dict[str, Any]:
        keys = ("name", "unit", "median", "p10", "p90", "repeats", "ratio", "floor", "times_floor")
        return {key: getattr(self, key) for key in keys} | dict(self.more)


def timed(
    name: str,
    seconds: Seconds,
    reference: Seconds | None,
    *,
    floor: float | None,
    tokens: int,
    per_token: bool = False,
    more: Mapping[str, Any] | None = None,
) -> Row:
    """The row of one arm's rounds. `tokens`: how many a round is; `per_token`: times are shown for one of them, and
    `floor` is for all."""
    median, p10, p90 = spread(seconds)
    share = tokens if per_token else 1
    return Row(
        name=name,
        unit="seconds per token" if per_token else "seconds",
        median=median / share,
        p10=p10 / share,
        p90=p90 / share,
        repeats=int((seconds == seconds).sum()),  # a round without a turn is NaN
        ratio=None if reference is None else paired(seconds, reference),
        floor=None if floor is None else floor / share,
        more={"tokens_per_s": tokens / median, **(more or {})},
    )


@dataclass(frozen=True, kw_only=True)
class Report:
    """A run. `machine`: what `machine.describe` found; `more`: fields beside the rows, such as a verdict."""

    bench: str
    model: str
    machine: Mapping[str, Any]
    settings: Settings
    floor: Mapping[str, Any]
    rows: list[Row]
    notes: list[str]
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        document = {
            "schema": SCHEMA,
            "bench": self.bench,
            "model": self.model,
            **self.machine,
            "seed": self.settings.seed,
            "settings": as_json(self.settings),
            "floor": dict(self.floor),
            "rows": [row.to_json() for row in self.rows],
            "notes": self.notes,
            **self.more,
        }
        for row in self.rows:
            for key, value in row.to_json().items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise InputError(
                        f"{row.name} has {key} = {value}: not a finite number, so there is no result to report; "
                        "run it in float32"
                    )
        return document
