"""Whether the pins are still there, head by head: what a cache under a policy that pins nothing is asked first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sinkpin.cache.layer import BoundedLayer
from sinkpin.cache.stream import Stream
from sinkpin.policies.base import Frame
from sinkpin.policies.pins import pinned

if TYPE_CHECKING:
    from sinkpin.cache.bounded import BoundedCache

_FIRST = 4
"""How many first tokens are asked after: the sinks that StreamingLLM pins."""


@dataclass(frozen=True)
class HeadAudit:
    """One layer and KV head. `pins_held`, `first_held`: shares of the pins, and of the first four real tokens, met so far
    that are still held, all rows together. `kept`: entries of the fullest row; `evicted`: the sum over rows. `allotment`:
    this layer's budget; where its heads share one (`adakv`) that is their mean, and `kept` each head's own part. `nbytes`:
    of all rows, an equal part of the layer's."""

    layer: int
    head: int
    pins_held: float
    first_held: float
    kept: int
    evicted: int
    allotment: int | None
    frame: Frame
    nbytes: int


def audit(cache: "BoundedCache", layers: Sequence[BoundedLayer], stream: Stream) -> list[HeadAudit]:
    """One line for each bounded layer and KV head of `cache`."""
    spans, real = stream.spans, stream.real
    report = []
    for layer in (layers[index] for index in cache.bounded_layers):
        origins = cache.origins(layer.facts.index)
        size = layer.nbytes()
        for head in range(layer.facts.kv_heads):
            own = origins[:, head]
            share = first = 1.0
            if spans is not None and real is not None:
                due = int(spans.minimum(real[:, None, None]).diff(dim=-1).sum())
                share = int(pinned(spans, own.to(spans.device)).sum()) / due if due else 1.0
                begun = int(real.clamp(max=_FIRST).sum())
                first = int(((own >= 0) & (own < _FIRST)).sum()) / begun if begun else 1.0
            kept = (own >= 0).sum(-1)
            report.append(
                HeadAudit(
                    layer=layer.facts.index,
                    head=head,
                    pins_held=share,
                    first_held=first,
                    kept=int(kept.max()) if kept.numel() else 0,
                    evicted=0 if real is None else int((real - kept.to(real.device)).sum()),
                    allotment=layer.ledger.rule.budget,
                    frame=cache.frame,
                    nbytes=size // layer.facts.kv_heads,
                )
            )
    return report
