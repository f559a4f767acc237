"""Which tokens a layer holds, and how a forward over them is attended to.

A ledger is the list of origins beside a storage. Layers whose kept set follows from indices alone share one; under
a scored policy each layer has its own. `Plan` is what one forward means for one ledger: the pool of old and new
entries, and the attention over it. What stays of the pool is decided in `choice`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkpin.attention.banded import Band
from sinkpin.attention.causal import Causal
from sinkpin.cache.ragged import opened, packed
from sinkpin.cache.storage import Place, writable
from sinkpin.policies.base import Frame, Policy
from sinkpin.policies.pins import met, pinned


@dataclass(frozen=True)
class Rule:
    """How many entries a layer may hold and who chooses: `budget` None is unbounded; `pins` is the most in any row.
    `turned`: keys are stored rotated, once, to their index in the text (see `docs/design/seam.md`)."""

    policy: Policy
    budget: int | None
    frame: Frame
    pins: int
    turned: bool

    @property
    def across_heads(self) -> bool:
        """Whether the heads of a layer share one budget and hold different numbers of entries."""
        return getattr(self.policy, "across_heads", False)


class Ledger:
    """Origins int32 `[batch, 1 or kv_heads, kept]`: each entry's index among its row's real tokens, ascending, with
    empty slots (-1) first. One head where all KV heads hold the same. While single tokens come in (`step`) a new entry
    lies where the evicted one lay, and `in_order` is False until somebody needs the order."""

    def __init__(self, rule: Rule, heads: int, *, shared: bool) -> None:
        self.rule = rule
        self.heads = heads
        self.shared = shared
        self.clear()

    def clear(self) -> None:
        self._held: Tensor | None = None
        self.in_order = True
        self.counts: Tensor | None = None
        """Entries `[batch, kv_heads]` of each head, once heads hold different numbers; what is held is then packed."""

    @property
    def origins(self) -> Tensor | None:
        return (
            self._held if self._held is None or self.counts is None else opened(self._held, self.counts, -1)
        )

    @property
    def kept(self) -> int:
        """Slots of the fullest head."""
        if self._held is None:
            return 0
        return self._held.shape[-1] if self.counts is None else int(self.counts.max())

    @property
    def total(self) -> int:
        """Entries of a row, all heads, once heads share one budget."""
        assert self.rule.budget is not None
        return self.heads * self.rule.budget

    def hold(self, origins: Tensor, *, ragged: bool) -> None:
        """Hold `origins [batch, heads, kept]`, packed where heads differ in number."""
        self.counts = (origins >= 0).sum(-1, dtype=torch.int32) if ragged else None
        self._held = packed(origins, origins >= 0, self.total) if ragged else origins

    def replace(self, slot: Tensor, origins: Tensor) -> None:
        """The entries at `slot [batch, heads, 1]` gave way to new ones with `origins`, of the same shape."""
        assert self._held is not None
        self._held = writable(self._held).scatter_(-1, slot, origins.to(self._held.dtype))
        self.in_order = False

    def swap(self, where: Place, origins: Tensor) -> None:
        """As `replace`, at a place that may be nowhere."""
        assert self._held is not None
        self._held = where.put(self._held, origins.to(self._held.dtype).expand(-1, self._held.shape[1], -1))
        self.in_order = False

    def order(self) -> Tensor:
        """Slots `[batch, heads, kept]` in the order of what lies there."""
        assert self._held is not None
        return self._held.argsort(-1)

    def restore_order(self, order: Tensor) -> None:
        assert self._held is not None
        self._held = self._held.gather(-1, order)
        self.in_order = True

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor owned."""
        named = {"held": self._held, "counts": self.counts}
        return {name: x for name, x in named.items() if x is not None}

    def restore(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        """As `named_tensors()` had it."""
        self._held, self.counts = (
            None if (x := tensors.get(n)) is None else x.to(device) for n in ("held", "counts")
        )

    def pool(self, index: Tensor) -> Tensor:
        """Old entries, then the new ones `index [batch, new]`: int64 `[batch, heads, pool]`."""
        fresh = index[:, None].expand(-1, self.heads, -1)
        origins = self.origins
        return fresh if origins is None else torch.cat((origins.long().to(index.device), fresh), dim=-1)

    def pins(self, spans: Tensor) -> Tensor:
        """The rows' pins as far as they bind here: not in layers with a window of their own."""
        return spans if self.rule.pins else spans[:, :0]

    def trim(self, entries: int) -> None:
        """Forget the newest `entries`, none of which has been packed away."""
        if self._held is not None:
            self._held = self._held[..., : self._held.shape[-1] - entries].clone()

    def select_rows(self, rows: Tensor) -> None:
        if self._held is not None:
            self._held = self._held.index_select(0, rows.to(self._held.device))
        if self.counts is not None:
            self.counts = self.counts.index_select(0, rows.to(self.counts.device))


class Plan:
    """One forward of one ledger. `spans [batch, s, 2]` are the pins, `index [batch, new]` the new entries' indices;
    `waited` of the old entries are looked at as if they were new, once a rollback is over."""

    def __init__(self, ledger: Ledger, index: Tensor, spans: Tensor, padded: bool, waited: int = 0) -> None:
        spans = ledger.pins(spans)
        self.pool = ledger.pool(index)
        new, entries = index.shape[1] + waited, self.pool.shape[-1]
        self.new = new
        rule = ledger.rule
        assert ledger.in_order
        ranked = rule.frame == "slots"
        self.attention: Band | Causal
        if rule.policy.kind == "position" and rule.budget is not None and entries > rule.budget and new:
            pool = self.pool[:, 0]
            gaps = int((pool < 0).sum(-1).max()) if padded else 0
            self.attention = Band(
                pool,
                new,
                pinned(spans, pool),
                met(spans, pool),
                pins=rule.pins,
                budget=rule.budget,
                ranked=ranked,
                turned=rule.turned,
                gaps=gaps,
            )
        else:
            dense = not padded and not rule.across_heads  # unequal heads have gaps, in a rollback too
            self.attention = Causal(self.pool, new, ranked=ranked, turned=rule.turned, dense=dense)


def held(pool: Tensor, slots: Tensor | None) -> Tensor:
    """The origins to hold: those of `slots [batch, heads, kept]` of the pool (-1: an empty slot), or all of them."""
    kept = pool if slots is None else torch.where(slots < 0, -1, pool.gather(-1, slots.clamp(min=0)))
    return kept.to(torch.int32, memory_format=torch.contiguous_format).clone()
