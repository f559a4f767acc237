"""One forward of a bounded cache, from the model's door to its exit.

What all layers share is worked out once: the indices of the new tokens, the plan of each ledger. A forward that ends
before every layer was attended to leaves the cache half-written, and the cache says so from then on.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from sinkpin.cache.layer import BoundedLayer
from sinkpin.cache.ledger import Ledger, Plan, held
from sinkpin.cache.stream import Stream
from sinkpin.errors import InputError


class Forward:
    """`index`: int64 `[batch, new]`, the new tokens' indices, -1 for padding. `length`: the text length that rotary
    frequencies are for. `nbytes`: what the cache owns at the start. `done(complete)` is called once, at the exit."""

    def __init__(
        self,
        layers: list[BoundedLayer],
        stream: Stream,
        index: Tensor,
        *,
        length: int,
        nbytes: int,
        done: Callable[[bool], None],
    ) -> None:
        self.layers, self.stream, self.index, self.length, self.nbytes = layers, stream, index, length, nbytes
        self._done = done
        self._plans: dict[Ledger, Plan] = {}
        self._origins: dict[Ledger, Tensor] = {}
        self._attended: set[int] = set()

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, None]:
        """Attention of one layer, and the eviction that follows it. `q [batch, heads, new, key_dim]`, unrotated."""
        if given.get("dropout"):
            raise InputError(
                f"attention dropout of {given['dropout']} with a bounded cache: call model.eval() first"
            )
        layer = self.layers[module.layer_idx]  # type: ignore[index]
        ledger = layer.ledger
        plan = self._plan(ledger)
        scaling = given.get("scaling")
        before = layer.storage.nbytes()
        out = layer.attend(plan, q, k, v, self.length, q.shape[-1] ** -0.5 if scaling is None else scaling)
        self.stream.peak = max(self.stream.peak, self.nbytes - before + layer.storage.nbytes())
        slots = None if self.stream.recording else plan.slots(layer.facts.index)
        layer.evict(slots, empties=self.stream.padded)
        self.stream.evicted |= slots is not None
        self.nbytes += layer.storage.nbytes() - before
        if ledger not in self._origins:
            self._origins[ledger] = held(plan.pool, slots)
        if not ledger.shared:
            del self._plans[ledger]
        self._attended.add(layer.facts.index)
        return out, None

    def _plan(self, ledger: Ledger) -> Plan:
        if ledger not in self._plans:
            assert self.stream.spans is not None
            self._plans[ledger] = Plan(ledger, self.index, self.stream.spans, self.stream.padded)
        return self._plans[ledger]

    def finish(self, *, failed: bool) -> None:
        """What was decided becomes so. Raises `CacheError` where a layer was left out of a forward that went well."""
        for ledger, origins in self._origins.items():
            ledger.origins = origins
        self._plans.clear()
        self._done(not failed and len(self._attended) == len(self.layers))
