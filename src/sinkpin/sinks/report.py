"""What a detection found, as plain numbers: `Report`, its JSON document, and the page made of it.

Numpy only, so that a report can be read and drawn where there is no torch. Not here: how anything was measured
(`measure`), decided (`outliers`), named (`experiments`) or proved (`ablate`), what the page looks like (`page`), and the
card that other tools read (`sinkpin.card`).

Shapes: T tokens, L full-attention layers, H query heads.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

SCHEMA = 1

Floats = npt.NDArray[np.float32]
Kind = Literal["true", "structural", "secondary"]
Way = Literal["masked", "evicted", "re-ranked"]


@dataclass(frozen=True, kw_only=True)
class Sink:
    """One token that was found, by its mass or by its place in the chat template.

    `mass`: attention it received, mean over queries that could see it, layers and heads. `most`: that of the head which
    pays it most. `heads`: how many of the L·H heads pay more than ε. `z`, `q`: robust z of its log mass against its place in
    the text, and the false-discovery rate at which it would just be called an outlier. `layers`: those in which it is an
    outlier, too: where it lives. `norms`: its hidden state, key and value over the median token's. `payload`: its share of what
    attention writes, Σ α·‖v‖ over all tokens, against `mass`: a dump has far less.
    """

    index: int
    token: int
    text: str
    kind: Kind
    outlier: bool
    mass: float
    most: float
    heads: int
    z: float
    q: float
    layers: tuple[int, ...]
    norms: dict[str, float]
    payload: float


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Against the run in which nothing was lost: nats per token with a 95 % interval, KL divergence in nats, and the share
    of positions whose likeliest token is the same."""

    delta_nll: float
    ci95: tuple[float, float]
    kl: float
    agreement: float


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """What losing `indices` costs, in one way, beside what losing as many matched tokens costs (`controls` of them)."""

    what: str
    indices: tuple[int, ...]
    way: Way
    effect: Effect
    control: Effect
    controls: int
    scored: int


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What pinning them gives back in a bounded run: nats per token against the full cache, with 95 % intervals."""

    what: str
    budget: int
    without: Effect
    pinned: Effect
    scored: int


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One changed prompt: `first` and `token` are the mass at its first position and of the sink's own token, wherever
    that went; None where there is none. `says` is what follows, in words."""

    name: str
    first: float | None
    token: float | None
    runs: int
    says: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """A detection. `mass`, `most`, `heads_over`, `z`, `entropy`, `margin`, `varentropy` `[T]`, NaN where not measured;
    `cut`: the least z of an outlier, None where there is none;
    `sink_heat` `[L, H]`, the mass of all sinks together; `curve` `[points, 2]`: ε, and the share of heads whose
    largest mass is over it; `learned` `[L, H]` or None: what learned sinks take."""

    model: str
    versions: dict[str, str]
    prompt: str
    settings: dict[str, float | int | str]
    layers: tuple[int, ...]
    heads: int
    kv_heads: int
    ids: npt.NDArray[np.int64] = field(repr=False)
    texts: list[str] = field(repr=False)
    mass: Floats = field(repr=False)
    most: Floats = field(repr=False)
    heads_over: npt.NDArray[np.int32] = field(repr=False)
    z: Floats = field(repr=False)
    cut: float | None
    sink_heat: Floats = field(repr=False)
    curve: Floats = field(repr=False)
    learned: Floats | None = field(repr=False, default=None)
    entropy: Floats = field(repr=False)
    margin: Floats = field(repr=False)
    varentropy: Floats = field(repr=False)
    sinks: tuple[Sink, ...]
    experiments: tuple[Experiment, ...] = ()
    ablations: tuple[Ablation, ...] = ()
    restored: tuple[Restored, ...] = ()
    card: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()

    def share(self, sinks: Iterable[Sink]) -> float:
        """What these tokens receive of all attention: their mass is a mean over the queries that come after them."""
        last = len(self.ids) - 1
        return sum(sink.mass * (last - sink.index) / last for sink in sinks)

    def to_json(self) -> dict[str, Any]:
        """One JSON document. What was not measured is null."""
        arrays = {
            "ids": self.ids.tolist(),
            "texts": self.texts,
            "mass": _list(self.mass),
            "most": _list(self.most),
            "heads_over": self.heads_over.tolist(),
            "z": _list(self.z),
            "entropy": _list(self.entropy),
            "margin": _list(self.margin),
            "varentropy": _list(self.varentropy),
        }
        return {
            "schema": SCHEMA,
            "model": self.model,
            "versions": self.versions,
            "prompt": self.prompt,
            "settings": self.settings,
            "layers": list(self.layers),
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "cut": self.cut,
            "sinks": [asdict(sink) for sink in self.sinks],
            "experiments": [asdict(one) for one in self.experiments],
            "ablations": [asdict(one) for one in self.ablations],
            "restored": [asdict(one) for one in self.restored],
            "sink_heat": [_list(row) for row in self.sink_heat],
            "learned": None if self.learned is None else [_list(row) for row in self.learned],
            "curve": [_list(row) for row in self.curve],
            "card": self.card,
            "notes": list(self.notes),
            "tokens": arrays,
        }

    def to_html(self) -> str:
        """The page: one document that needs no network."""
        from sinkpin.sinks.page import render

        return render(self.to_json())

    def save_html(self, path: str | Path) -> None:
        """Write the page, whole or not at all."""
        from sinkpin.atomic import write_together

        text = self.to_html()
        write_together({Path(path): lambda file: file.write(text.encode())})

    def __str__(self) -> str:
        from sinkpin.sinks.text import as_text

        return as_text(self)


def _list(numbers: npt.NDArray[Any]) -> list[float | None]:
    """Numbers to six digits; null where there is none."""
    return [float(f"{x:.6g}") if math.isfinite(x) else None for x in numbers.tolist()]


def as_line(report: Report) -> str:
    """The document on one line."""
    return json.dumps(report.to_json(), ensure_ascii=False, allow_nan=False)
