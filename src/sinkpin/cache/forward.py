"""One forward of a bounded cache, from the model's door to its exit.

What all layers share is worked out once: the indices of the new tokens, the plan of each ledger. A forward that ends
before every layer was attended to leaves the cache half-written, and the cache says so from then on.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from sinkpin.attention.scores import Scoring
from sinkpin.cache import step
from sinkpin.cache.layer import BoundedLayer
from sinkpin.cache.ledger import Ledger, Plan, held
from sinkpin.cache.stream import Stream
from sinkpin.errors import CacheError, InputError


class Forward:
    """`index`: int64 `[batch, new]`, the new tokens' indices, -1 for padding. `length`: the text length that rotary
    frequencies are for. `nbytes()`: what the cache owns. `done(complete)` is called once, at the exit."""

    def __init__(
        self,
        layers: list[BoundedLayer],
        stream: Stream,
        index: Tensor,
        *,
        length: int,
        nbytes: Callable[[], int],
        done: Callable[[bool], None],
    ) -> None:
        self.layers, self.stream, self.index, self.length = layers, stream, index, length
        self._done = done
        self._steps = step.plan(dict.fromkeys(layer.ledger for layer in layers), stream, index, length)
        step.in_order([layer for layer in layers if layer.ledger not in self._steps])
        self.nbytes = nbytes()
        self._plans: dict[Ledger, Plan] = {}
        self._slots: dict[Ledger, Tensor | None] = {}
        self._origins: dict[Ledger, tuple[Tensor, bool]] = {}
        self._attended: set[int] = set()

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, None]:
        """Attention of one layer, and the eviction that follows it. `q [batch, heads, new, key_dim]`, unrotated."""
        return self._attend(self.layers[module.layer_idx], q, k, v, _scoring(q, given))  # type: ignore[index]

    def _attend(
        self, layer: BoundedLayer, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring
    ) -> tuple[Tensor, None]:
        ledger = layer.ledger
        if ledger in self._steps:
            return self._step(layer, q, k, v, scoring), None
        plan = self._plan(ledger)
        before = layer.nbytes()
        out = layer.attend(plan, q, k, v, self.length, scoring)
        self.stream.peak = max(self.stream.peak, self.nbytes - before + layer.nbytes())
        slots = None if self.stream.recording else self._chosen(layer, plan)
        layer.evict(slots, empties=self.stream.padded)
        self.stream.evicted |= slots is not None
        self.nbytes += layer.nbytes() - before
        if ledger not in self._origins:
            self._origins[ledger] = held(plan.pool, slots), slots is not None and ledger.rule.across_heads
        if not ledger.shared:
            del self._plans[ledger]
        self._attended.add(layer.facts.index)
        return out, None

    def attend_in_graph(self, layer: int, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
        """As `attend`, from within a compiled graph, where `update` could not announce what comes."""
        # The graph writes on where these lie, and a new entry may wait for the exit.
        k, v = k.clone(), v.clone()
        self.layers[layer].incoming = (k, v)
        out, _ = self._attend(self.layers[layer], q, k, v, _scoring(q, given))
        return out.contiguous()

    def _step(self, layer: BoundedLayer, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        """As `attend`, where one entry takes the place of another: nothing grows."""
        layer.take(k, v, scoring)
        out = self._steps[layer.ledger].attend(layer, q, k, v, scoring)
        self._attended.add(layer.facts.index)
        return out.transpose(1, 2).to(q.dtype)

    @property
    def has_begun(self) -> bool:
        """Whether the first layer has put something into the cache."""
        return bool(self._attended) or any(layer.incoming is not None for layer in self.layers)

    def _plan(self, ledger: Ledger) -> Plan:
        if ledger not in self._plans:
            assert self.stream.spans is not None
            self._plans[ledger] = Plan(ledger, self.index, self.stream.spans, self.stream.padded)
        return self._plans[ledger]

    def _chosen(self, layer: BoundedLayer, plan: Plan) -> Tensor | None:
        """What stays of the pool, decided once for all layers that share a ledger."""
        ledger = layer.ledger
        if ledger not in self._slots:
            self._slots[ledger] = layer.choose(plan, self.stream, self.length)
        return self._slots[ledger]

    def finish(self, *, failed: bool) -> None:
        """What was decided becomes so, and the cache hears whether every layer was attended to."""
        left_out, complete = len(self.layers) - len(self._attended), False
        try:
            for ledger, (origins, ragged) in self._origins.items():
                ledger.hold(origins, ragged=ragged)
            if not left_out:
                self._finish_steps()
            self.stream.evicted |= bool(self._steps)
            self._plans.clear()
            complete = not failed and not left_out
        finally:
            self._done(complete)
        if left_out and not failed:
            raise CacheError(
                f"{left_out} of {len(self.layers)} layers were not attended to through this cache: the result is not "
                "what it should be; the model was changed since the cache was built, build a new one"
            )

    def _finish_steps(self) -> None:
        steps = dict.fromkeys(self._steps.values())
        self.stream.peak = max(self.stream.peak, self.nbytes + sum(taken.nbytes for taken in steps))
        for taken in steps:
            taken.finish()


def _scoring(q: Tensor, given: dict[str, Any]) -> Scoring:
    """How this model makes weights of dot products, from what it gave its attention function."""
    if given.get("dropout"):
        raise InputError(
            f"attention dropout of {given['dropout']} with a bounded cache: call model.eval() first"
        )
    scale = given.get("scaling")
    return Scoring(
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        softcap=given.get("softcap"),
        slopes=given.get("slopes"),
        sinks=given.get("s_aux"),
    )
