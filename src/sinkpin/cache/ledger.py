"""Which tokens a layer holds, and which of them stay after a forward.

A ledger is the list of origins beside a storage. Layers whose kept set follows from indices alone share one; under
a scored policy each layer has its own. `Plan` is what one forward means for one ledger: the pool of old and new
entries, how to attend to it, and what to keep of it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkpin.attention.banded import Band
from sinkpin.attention.causal import Causal
from sinkpin.policies.base import Frame, Policy, View
from sinkpin.policies.pins import met, pinned


@dataclass(frozen=True)
class Rule:
    """How many entries a layer may hold and who chooses: `budget` None is unbounded; `pins` is the most in any row."""

    policy: Policy
    budget: int | None
    frame: Frame
    pins: int


class Ledger:
    """Origins int32 `[batch, 1 or kv_heads, kept]`: each entry's index among its row's real tokens, ascending, with
    empty slots (-1) first. One head where all KV heads hold the same."""

    def __init__(self, rule: Rule, heads: int, *, shared: bool) -> None:
        self.rule = rule
        self.heads = heads
        self.shared = shared
        self.origins: Tensor | None = None

    @property
    def kept(self) -> int:
        return 0 if self.origins is None else self.origins.shape[-1]

    def pool(self, index: Tensor) -> Tensor:
        """Old entries, then the new ones `index [batch, new]`: int64 `[batch, heads, pool]`."""
        fresh = index[:, None].expand(-1, self.heads, -1)
        if self.origins is None:
            return fresh
        return torch.cat((self.origins.long().to(index.device), fresh), dim=-1)

    def pins(self, spans: Tensor) -> Tensor:
        """The rows' pins as far as they bind here: not in layers with a window of their own."""
        return spans if self.rule.pins else spans[:, :0]

    def choose(self, pool: Tensor, spans: Tensor, layer: int, padded: bool) -> Tensor | None:
        """What stays of `pool`: int64 slots `[batch, heads, min(budget, pool)]` ascending, empty ones (-1) first; None
        where everything does."""
        budget = self.rule.budget
        if budget is None or pool.shape[-1] <= budget:
            return None
        spans = self.pins(spans)
        if self.rule.policy.kind == "position":
            return _most_recent(pool, spans, budget)
        return _policy_choice(self.rule, pool, spans, layer, padded)

    def trim(self, entries: int) -> None:
        """Forget the newest `entries`."""
        if self.origins is not None:
            self.origins = self.origins[..., : self.kept - entries].clone()

    def select_rows(self, rows: Tensor) -> None:
        if self.origins is not None:
            self.origins = self.origins.index_select(0, rows.to(self.origins.device))


class Plan:
    """One forward of one ledger. `spans [batch, s, 2]` are the pins, `index [batch, new]` the new entries' indices."""

    def __init__(self, ledger: Ledger, index: Tensor, spans: Tensor, padded: bool) -> None:
        spans = ledger.pins(spans)
        self.ledger, self.spans, self.padded = ledger, spans, padded
        self.pool = ledger.pool(index)
        new, entries = index.shape[1], self.pool.shape[-1]
        rule = ledger.rule
        ranked = rule.frame == "slots"
        self.attention: Band | Causal
        if rule.policy.kind == "position" and rule.budget is not None and entries > rule.budget:
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
                gaps=gaps,
            )
        else:
            self.attention = Causal(self.pool, new, ranked=ranked, dense=not padded)

        self._choice: tuple[Tensor | None] | None = None

    def slots(self, layer: int) -> Tensor | None:
        """What stays of the pool, see `Ledger.choose`; chosen once for all layers that share the ledger."""
        if self._choice is None:
            self._choice = (self.ledger.choose(self.pool, self.spans, layer, self.padded),)
        return self._choice[0]


def held(pool: Tensor, slots: Tensor | None) -> Tensor:
    """The origins to hold: those of `slots [batch, heads, kept]` of the pool (-1: an empty slot), or all of them."""
    kept = pool if slots is None else torch.where(slots < 0, -1, pool.gather(-1, slots.clamp(min=0)))
    return kept.to(torch.int32, memory_format=torch.contiguous_format).clone()


def _most_recent(pool: Tensor, spans: Tensor, budget: int) -> Tensor:
    """Pins met so far and the most recent unpinned entries, from indices alone. `pool [batch, 1, entries]`."""
    now = pool.amax(-1, keepdim=True)
    is_pin = pinned(spans, pool)
    behind = (now + 1 - met(spans, now)) - (pool + 1 - met(spans, pool))
    stays = is_pin | ((pool >= 0) & (behind < budget - met(spans, now)))
    slots = torch.argsort(stays.to(torch.uint8), dim=-1, stable=True)[..., -budget:]
    return torch.where(stays.gather(-1, slots), slots, -1)


def _policy_choice(rule: Rule, pool: Tensor, spans: Tensor, layer: int, padded: bool) -> Tensor:
    """Pins, and what the policy keeps of the rest. Rows are put to it in groups with equally many candidates."""
    assert rule.budget is not None
    is_pin = pinned(spans, pool)
    candidate = (pool >= 0) & ~is_pin
    uniform = not padded and bool((spans == spans[:1]).all())
    if uniform:
        groups = [torch.arange(pool.shape[0], device=pool.device)]
    else:
        counts = torch.stack((candidate[:, 0].sum(-1), is_pin[:, 0].sum(-1)), dim=-1)
        _, member = counts.unique(dim=0, return_inverse=True)
        groups = [(member == g).nonzero()[:, 0] for g in range(int(member.max()) + 1)]
    out = torch.full((*pool.shape[:2], rule.budget), -1, dtype=torch.int64, device=pool.device)
    for rows in groups:
        n_candidates, n_pins = int(candidate[rows[0], 0].sum()), int(is_pin[rows[0], 0].sum())
        slots = _first(candidate[rows], n_candidates)
        room = rule.budget - n_pins
        if n_candidates > room:
            view = View(layer=layer, origins=pool[rows].gather(-1, slots))
            slots = slots.gather(-1, _checked(rule.policy, view, room))
        both = torch.cat((_first(is_pin[rows], n_pins), slots), dim=-1).sort(-1).values
        out[rows, :, rule.budget - both.shape[-1] :] = both
    return out


def _first(mask: Tensor, count: int) -> Tensor:
    """The slots `[rows, heads, count]` where `mask [rows, heads, entries]` holds, ascending."""
    return torch.argsort((~mask).to(torch.uint8), dim=-1, stable=True)[..., :count]


def _checked(policy: Policy, view: View, n: int) -> Tensor:
    """The policy's answer, which must be `n` distinct candidates for each row and head."""
    chosen = policy.keep(view, n)
    wanted = (*view.origins.shape[:-1], n)
    if chosen.shape != wanted or chosen.dtype != torch.int64:
        raise TypeError(
            f"policy {policy!r} returned {chosen.dtype} {list(chosen.shape)} from keep(); "
            f"it must be int64 {list(wanted)}"
        )
    ordered = chosen.sort(-1).values
    if (
        ordered[..., 0].lt(0).any()
        or ordered[..., -1].ge(view.candidates).any()
        or ordered.diff().eq(0).any()
    ):
        raise ValueError(
            f"policy {policy!r} kept an entry twice or one that is not there, of {view.candidates}"
        )
    return chosen
