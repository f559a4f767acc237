"""One new token in every row, into layers that are full: what goes makes room in place, nothing else moves.

This is decoding in its steady state, where a cache spends its life. Nothing is copied, appended or sorted that need
not be; no host waits for a device, unless a policy's own `keep` has to be checked. Which entries are seen and which one
goes is what `ledger` and `choice` say, at equal scores too. Entries then no longer lie in the order of the text;
`in_order` restores it for everything else.

Not covered, and left to `ledger.Plan`: several tokens at once, padding, rollback, gradients, heads that share a budget,
and policies that read keys, values or all queries.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from sinkpin.attention.rope import Rotary
from sinkpin.attention.scores import Scoring
from sinkpin.attention.single import First, Near, Ranks, attend
from sinkpin.cache.choice import dropped
from sinkpin.cache.layer import BoundedLayer
from sinkpin.cache.ledger import Ledger
from sinkpin.cache.storage import Place
from sinkpin.cache.stream import Stream
from sinkpin.policies.base import View
from sinkpin.spans import Span

_SINGLE = frozenset({"mass", "recent"})
"""Evidence that one query gives by itself."""
_LATE = torch.iinfo(torch.int32).max


@dataclass(frozen=True)
class Arrival:
    """The new token: its `index`, int64 `[batch, 1]`, `at` as a number, the same in all rows, as are the `spans` of pins.
    `length` is the text length that rotary frequencies are for."""

    index: Tensor
    at: int
    spans: tuple[Span, ...]
    length: int
    _tables: dict[tuple[Rotary, int | None], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def tables(self, rotary: Rotary, last: int | None) -> tuple[Tensor, Tensor]:
        """cos and sin `[2, 1, 1, 1, rotary_dim / 2]` of the token's index and of the last rank; made once for all
        layers. `[1, …]`, of its index alone, where `last` is None."""
        if (rotary, last) not in self._tables:
            where = self.index[0]
            if last is not None:
                where = torch.cat((where, torch.full_like(where, last)))
            self._tables[rotary, last] = rotary.tables(where[:, None, None, None])
        return self._tables[rotary, last]

    def pins(self, ledger: Ledger) -> tuple[Span, ...]:
        return self.spans if ledger.rule.pins else ()


class Step(Protocol):
    """One ledger's share of a step."""

    def attend(self, layer: BoundedLayer, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        """Outputs `[batch, heads, 1, value_dim]` of unrotated `q`, `k`."""
        ...

    @property
    def nbytes(self) -> int:
        """Of new entries that wait beside the cache."""
        ...

    def finish(self) -> None:
        """Every layer was attended to: those that have not yet taken their new entry do, and the ledgers say so."""
        ...


def plan(ledgers: Iterable[Ledger], stream: Stream, index: Tensor, length: int) -> dict[Ledger, Step]:
    """A step for each ledger that can take one."""
    rows_agree = not stream.padded and stream.pins.alike
    if index.shape[1] != 1 or not rows_agree or stream.recording or torch.is_grad_enabled():
        return {}
    arrival = Arrival(index, stream.columns - 1, stream.pins.rows[0], length)
    found: dict[Ledger, Step] = {}
    alike: dict[tuple[int, ...], list[Ledger]] = {}
    for number, ledger in enumerate(ledgers):
        rule = ledger.rule
        if rule.budget is None or ledger.kept != rule.budget or rule.across_heads:
            continue
        if rule.policy.kind == "position" and rule.turned:
            found[ledger] = Slide(ledger, arrival)
        elif (
            rule.policy.kind == "scored"
            and rule.policy.needs <= _SINGLE
            and (rule.turned or rule.frame == "slots")
        ):
            key = (rule.budget, ledger.heads) if rule.policy.layers_alike else (-1, number)
            alike.setdefault(key, []).append(ledger)
    for group in alike.values():
        found |= dict.fromkeys(group, Swap(group, arrival))
    return found


def in_order(layers: Sequence[BoundedLayer]) -> None:
    """Let entries lie in the order of the text again."""
    orders: dict[Ledger, Tensor] = {}
    for layer in layers:
        ledger = layer.ledger
        if not ledger.in_order:
            if ledger not in orders:
                orders[ledger] = ledger.order()
            layer.reorder(orders[ledger])
    for ledger, order in orders.items():
        ledger.restore_order(order)


class Slide:
    """Pins and the most recent: the oldest unpinned entry goes, the same in every layer, head and row."""

    def __init__(self, ledger: Ledger, arrival: Arrival) -> None:
        self.ledger, self.arrival = ledger, arrival
        rule = ledger.rule
        assert rule.budget is not None and ledger.origins is not None
        held, spans = ledger.origins[0, 0], arrival.pins(ledger)
        self.slot = torch.where(_pinned(spans, held), _LATE, held).argmin(-1, keepdim=True)
        self.origins = held.index_copy(0, self.slot, arrival.index[0].to(held.dtype))
        pins = _met(spans, arrival.at)
        self.last = rule.budget - 1 if rule.frame == "slots" and pins else None
        if self.last is not None:
            self.pins = pins
            rank = torch.arange(pins, device=held.device)
            self.ahead = rank - self.last
            # The first tokens' ranks are their indices, and they have lain in the first slots since before any step.
            self.are_first = not any(start for start, _ in spans)
            if not self.are_first:
                early = torch.where(_pinned(spans, self.origins), self.origins, _LATE)
                self.pin_slots = early.argsort(-1)[:pins]
                self.to_rank = rank - self.origins[self.pin_slots]
                # A pin's distance grows until the unpinned entries after it fill the window, see `banded`.
                self.nearer = arrival.at + self.to_rank >= self.last
        self._turns: dict[Rotary, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: BoundedLayer, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        rotary = layer.rotary(self.arrival.length)
        here = last = q.float()
        if rotary is not None:
            k, here, last = _rotated(q, k, rotary, self.arrival.tables(rotary, self.last))
        layer.storage.put(self.slot, k, v)
        biased = scoring.slopes is not None
        near: First | Near | None = None
        if self.last is not None and (biased or rotary is not None):
            if self.are_first:
                near = First(self.pins, last, self.ahead)
            else:
                near = Near(self.pin_slots, self.nearer, self.ahead, last, rotary, self._turn(rotary))
        ahead = (self.origins - self.arrival.at).expand(len(q), 1, -1) if biased else None
        out, _ = attend(here, *layer.storage.read(), scoring, ahead=ahead, near=near)
        return out

    def _turn(self, rotary: Rotary | None) -> tuple[Tensor, Tensor] | None:
        """What turns pins on from their indices to their ranks, made once for all layers."""
        if rotary is None:
            return None
        if rotary not in self._turns:
            self._turns[rotary] = rotary.tables(self.to_rank)
        return self._turns[rotary]

    @property
    def nbytes(self) -> int:
        return 0  # each layer took its entry before it attended

    def finish(self) -> None:
        self.ledger.replace(
            self.slot.expand(self.arrival.index.shape[0], 1)[..., None], self.arrival.index[:, None]
        )


class Swap:
    """The policy's choice: of everything held and the new entry, the one it would rather lose, in each head. It is made
    when all layers have attended, for all of them at once where they are chosen for alike: a choice is many operations
    on few numbers, so that thirty at a time cost hardly more than one. New entries wait beside the cache until then."""

    def __init__(self, ledgers: Sequence[Ledger], arrival: Arrival) -> None:
        self.arrival, self.rule = arrival, ledgers[0].rule
        self.origins = torch.stack([_of(ledger) for ledger in ledgers])
        """int32 `[layers, batch, heads, entries]`."""
        self.order = self.origins.argsort(-1)
        self.at: Tensor | None = None
        if self.rule.frame == "slots":
            rank = torch.arange(self.order.shape[-1], device=self.order.device).expand_as(self.order)
            self.at = torch.empty_like(self.order).scatter_(-1, self.order, rank)
        self._row = {ledger: row for row, ledger in enumerate(ledgers)}
        self._waiting: dict[int, _Waiting] = {}

    def attend(self, layer: BoundedLayer, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        rotary, row = layer.rotary(self.arrival.length), self._row[layer.ledger]
        here, own, stored, ranks = q.float(), k.float(), k, None
        if self.at is not None and rotary is not None:
            held = self.at.shape[-1]
            ranks = Ranks(rotary, rotary.up_to(held + 1, q.device), self.at[row].to(q.device))
            cos, sin = ranks.table[held:].chunk(2, dim=-1)
            here, own = (rotary.rotate(x, (cos, sin)) for x in (q, k))
        elif rotary is not None:
            stored, here, _ = _rotated(q, k, rotary, self.arrival.tables(rotary, None))
            own = stored.float()
        out, paid = attend(
            here,
            *layer.storage.read(),
            scoring,
            own=(own, v),
            ahead=None if scoring.slopes is None else self._ahead(row).to(q.device),
            ranks=ranks,
            mass=True,
        )
        assert paid is not None
        told = layer.evidence.after_one(paid, self.origins.shape[2])
        self._waiting[row] = _Waiting(layer, stored, v, told)
        return out

    def _ahead(self, row: int) -> Tensor:
        """Position minus the query's, of what is held."""
        return self.origins[row] - self.arrival.at if self.at is None else self.at[row] - self.at.shape[-1]

    @property
    def nbytes(self) -> int:
        return sum(one.keys.nbytes + one.values.nbytes for one in self._waiting.values())

    def finish(self) -> None:
        waiting = [self._waiting[row] for row in range(len(self.origins))]
        slot = self._slot(waiting)
        held = self.origins.shape[-1]
        at, nowhere = slot.clamp(max=held - 1), slot == held
        # On a card, asking which layers let the new entry go would be waiting for it.
        ask = not nowhere.is_cuda
        some = nowhere.flatten(1).any(-1).tolist() if ask else [True] * len(waiting)
        for row, one in enumerate(waiting):
            where = Place(at[row], nowhere[row] if some[row] else None)
            one.layer.storage.swap(where, one.keys, one.values)
            one.layer.evidence.swap(where)
            one.layer.ledger.swap(where, self.arrival.index[:, None])

    def _slot(self, waiting: "Sequence[_Waiting]") -> Tensor:
        """The slot `[layers, batch, heads, 1]` of the entry that goes; one past the last is the new entry's own."""
        arrival, spans = self.arrival, self.arrival.pins(waiting[0].layer.ledger)
        layers, batch, heads, entries = self.origins.shape
        new = arrival.index[None, :, None].to(self.origins.dtype).expand(layers, batch, heads, 1)
        everything = torch.cat((self.origins, new), dim=-1)
        order = torch.cat((self.order, torch.full_like(self.order[..., :1], entries)), dim=-1)
        ascending = everything.gather(-1, order)
        if len(spans) > 1 or any(start for start, _ in spans):  # the first tokens stand first as it is
            apart = _pinned(spans, ascending).to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
            order, ascending = order.gather(-1, apart), ascending.gather(-1, apart)
        pins = _met(spans, arrival.at)
        order = order[..., pins:].flatten(0, 1)
        fields: dict[str, Any] = {}
        for name in waiting[0].told:
            told = torch.cat([one.told[name].to(order.device) for one in waiting])
            fields[name] = told.gather(-1, order)
        if "recent" in fields:
            fields["recent"] = fields["recent"][:, :, None]
        view = View(
            layer=waiting[0].layer.facts.index,
            origins=ascending[..., pins:].flatten(0, 1).long(),
            seen=arrival.at + 1,
            **fields,
        )
        return order.gather(-1, dropped(self.rule, view)[..., None]).unflatten(0, (layers, batch))


@dataclass(frozen=True)
class _Waiting:
    """A layer's new entry, and what its policy is told of everything held and, last, of the new entry."""

    layer: BoundedLayer
    keys: Tensor
    values: Tensor
    told: dict[str, Tensor]


def _of(ledger: Ledger) -> Tensor:
    assert ledger.origins is not None
    return ledger.origins


def _pinned(spans: tuple[Span, ...], index: Tensor) -> Tensor:
    held = torch.zeros_like(index, dtype=torch.bool)
    for start, stop in spans:
        held = held | ((index >= start) & (index < stop))
    return held


def _met(spans: tuple[Span, ...], at: int) -> int:
    """How many pins have an index of at most `at`."""
    return sum(max(0, min(stop, at + 1) - start) for start, stop in spans)


def _rotated(
    q: Tensor, k: Tensor, rotary: Rotary, tables: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """`k` at the first position, as it is stored, and `q` at the first and at the last, fp32: all in one go."""
    both = torch.cat((k, q), dim=1)
    turned = rotary.rotate(both.expand(len(tables[0]), *both.shape), tables)
    heads = k.shape[1]
    return turned[0, :, :heads].to(k.dtype), turned[0, :, heads:], turned[-1, :, heads:]
