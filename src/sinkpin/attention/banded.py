"""Exact sinks + window attention for a chunk of queries of any length: what token-by-token feeding gives, in blocks.

The query at index t sees the pins met so far and the most recent unpinned entries, `budget` in all, itself included.
Fed token by token, its rank is min(t, budget - 1), and everything unpinned that it sees lies at its true distance:
between query and key no visible entry is missing. Only pins are nearer than the text has them. With o(i) unpinned
entries before pin i, and i the c(i)-th pin,

    distance(t, i) = min(t - o(i), budget - 1) - (c(i) - 1).

So a chunk is two score blocks under one softmax: a *band* of plain relative attention, and a thin block of pins, in
which a query past its pin's saturation (t - o(i) >= budget - 1) is rotated at rank budget - 1. Nothing is
approximated. Memory is O(block x (budget + block)). The formula is StreamingLLM's (arXiv 2309.17453); computing it
for chunks is not in the paper, whose script goes token by token.

With ALiBi the same distances enter the bias. Not covered: kept sets that are not pins + recency (`causal`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkpin.attention.fused import attend, available, bias, merged
from sinkpin.attention.rope import Rotary
from sinkpin.attention.scores import Scoring, block_size, masked, summed

_Tables = tuple[Tensor, Tensor]
_REMEMBERED = (
    16  # blocks whose masks all layers share; in longer forwards the others are made again, a few percent
)


@dataclass(frozen=True)
class _Block:
    """Slots of some queries and of the keys they may see, and which of those each sees: bool `[batch, n, k]`. `met`,
    `saturated`: bool `[batch, n, pins]`, see `Band._sees_pins`. `bias`: `sees` as a fused kernel takes it."""

    queries: slice
    keys: slice
    sees: Tensor
    met: Tensor
    saturated: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class _Pins:
    """The pins' keys at their indices and at their ranks, fp32 `[batch, kv_heads, pins, key_dim]`, and their values."""

    near: Tensor
    far: Tensor
    values: Tensor


class Band:
    """What the queries of one forward see, for all layers with the same pool of entries.

    `pool`: int64 `[batch, entries]`, the index of each entry among its row's real tokens, -1 where a slot is empty or
    padding, ascending; its last `new` entries are the queries' own. `is_pin`, `met_so_far`: of the same shape, whether
    an entry is a pin and how many pins its row has up to and including it; `pins` is the most in any row. `ranked`:
    positions are ranks in the cache (frame `slots`) instead of indices. `turned`: keys come rotated to their indices
    already. `gaps`: the most empty or padding slots of any row.
    """

    def __init__(
        self,
        pool: Tensor,
        new: int,
        is_pin: Tensor,
        met_so_far: Tensor,
        *,
        pins: int,
        budget: int,
        ranked: bool,
        turned: bool,
        gaps: int,
    ) -> None:
        self.pool, self.new, self.budget, self.gaps = pool, new, budget, gaps
        self.clamped, self.turned = ranked, turned
        self.ordinal = pool + 1 - met_so_far  # of the unpinned: how many up to and including this entry
        self.room = budget - met_so_far  # how many unpinned entries this query sees
        self.windowed = (pool >= 0) & ~is_pin
        pins = min(pins, pool.shape[1])
        self.pin_slots = torch.argsort((~is_pin).to(torch.uint8), dim=-1, stable=True)[:, :pins]
        self.pin_index = torch.where(is_pin, pool, -1).gather(1, self.pin_slots)
        self.pin_count = met_so_far.gather(1, self.pin_slots)  # c(i): the how-many-eth pin this is
        self._tables: dict[Rotary, tuple[_Tables, _Tables, _Tables, _Tables | None]] = {}
        self._blocks: dict[tuple[int, int, torch.dtype | None], _Block] = {}

    def tables(self, rotary: Rotary) -> tuple[_Tables, _Tables, _Tables, _Tables | None]:
        """cos and sin for queries at their indices, a query at the last rank, pins as stored to their ranks, and for
        keys to their indices, unless they come that way."""
        if rotary not in self._tables:
            # Only differences of positions matter, so count from the newest where the keys let us.
            where = self.pool if self.turned else self.pool - self.pool.amax(-1, keepdim=True)
            stored_at = self.pin_index if self.turned else 0
            self._tables[rotary] = (
                rotary.tables(where[:, None, where.shape[1] - self.new :]),
                rotary.tables(torch.full((1, 1, 1), self.budget - 1, device=where.device)),
                rotary.tables((self.pin_count - 1 - stored_at)[:, None]),
                None if self.turned else rotary.tables(where[:, None]),
            )
        return self._tables[rotary]

    def of_new(self, rotary: Rotary) -> _Tables:
        """cos and sin at the indices of the new entries."""
        return self.tables(rotary)[0]

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, rotary: Rotary | None, scoring: Scoring
    ) -> Tensor:
        """Outputs `[batch, heads, new, value_dim]` of unrotated queries `q [batch, heads, new, key_dim]`.

        `keys`, `values`: `[batch, kv_heads, entries, …]`, as stored. Softmax and sums are fp32.
        """
        batch, heads, new, _ = q.shape
        own, at_last, far_pins = q, q, self._pins_of(keys)
        if rotary is not None:
            at_index, last, to_rank, of_keys = self.tables(rotary)
            own, at_last = rotary.rotate(q, at_index), rotary.rotate(q, last)
            far_pins = rotary.rotate(far_pins, to_rank)
            keys = keys if of_keys is None else rotary.rotate(keys, of_keys).to(keys.dtype)
        pins = _Pins(self._pins_of(keys).float(), far_pins.float(), self._pins_of(values))
        moves = self.clamped and (rotary is not None or scoring.slopes is not None)
        fused = scoring.plain and available(q, values.shape[-1])
        at_last = at_last.float()

        outputs = torch.empty(
            batch, heads, new, values.shape[-1], dtype=q.dtype if fused else torch.float32, device=q.device
        )
        size = block_size(heads, min(self.budget, keys.shape[2]) + self.gaps)
        for start in range(0, new, size):
            stop = min(start + size, new)
            block = self._block(start, stop, q.dtype if fused else None)
            near = own[:, :, start:stop].float()
            pin_scores = self._pin_scores(block, near, at_last[:, :, start:stop], pins, scoring, moves)
            seen_keys, seen_values = keys[:, :, block.keys], values[:, :, block.keys]
            if block.bias is not None:
                out, lse = attend(near.to(q.dtype), seen_keys, seen_values, block.bias, scoring.scale)
                out = out if pin_scores is None else merged(out, lse, pin_scores, pins.values)
            else:
                out = self._written_out(block, near, seen_keys, seen_values, pin_scores, pins, scoring)
            outputs[:, :, start:stop] = out
        return outputs

    def _block(self, start: int, stop: int, fused: torch.dtype | None) -> "_Block":
        """What the new queries `start … stop - 1` see, worked out once for all layers that share this plan."""
        if (block := self._blocks.get((start, stop, fused))) is None:
            old = self.pool.shape[1] - self.new
            # No query of the block sees an earlier slot.
            first = max(0, old + start + 1 - self.budget - self.gaps)
            queries, keys = slice(old + start, old + stop), slice(first, old + stop)
            sees = self._sees(queries, keys)
            met, saturated = self._sees_pins(queries)
            additive = None if fused is None else bias(sees, fused)
            block = _Block(queries, keys, sees, met, saturated, additive)
            if len(self._blocks) < _REMEMBERED:
                self._blocks[start, stop, fused] = block
        return block

    def _pin_scores(
        self, block: "_Block", near: Tensor, at_last: Tensor, pins: "_Pins", scoring: Scoring, moves: bool
    ) -> Tensor | None:
        """fp32 `[batch, kv_heads, group, n, pins]`; None where nothing is pinned."""
        if pins.values.shape[2] == 0:
            return None
        scores = scoring.scores(near, pins.near, self._ahead(scoring, block.queries, self.pin_index))
        if moves:
            far = scoring.scores(at_last, pins.far, _over_heads(self.pin_count[:, None] - self.budget))
            scores = torch.where(_over_heads(block.saturated), far, scores)
        return masked(scores, _over_heads(block.met))

    def _written_out(
        self,
        block: "_Block",
        near: Tensor,
        keys: Tensor,
        values: Tensor,
        pin_scores: Tensor | None,
        pins: "_Pins",
        scoring: Scoring,
    ) -> Tensor:
        """The same with the scores in memory, for all that a fused kernel does not know."""
        ahead = self._ahead(scoring, block.queries, self.pool[:, block.keys])
        scores = masked(scoring.scores(near, keys.float(), ahead), _over_heads(block.sees))
        if pin_scores is None:
            return summed(scoring.weights(scores), values.float())
        n_pins = pin_scores.shape[-1]
        weights = scoring.weights(torch.cat((pin_scores, scores), dim=-1))
        out = summed(weights[..., n_pins:], values.float())
        return out + summed(weights[..., :n_pins], pins.values.float())

    def _ahead(self, scoring: Scoring, queries: slice, keys: Tensor) -> Tensor | None:
        """Key index minus query index, `[batch, 1, 1, queries, keys]`, where biases want it."""
        if scoring.slopes is None:
            return None
        return _over_heads(keys[:, None] - self.pool[:, queries, None])

    def _pins_of(self, x: Tensor) -> Tensor:
        """The pins' rows of `x [batch, kv_heads, entries, dim]`."""
        index = self.pin_slots[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
        return x.gather(2, index)

    def _sees(self, queries: slice, keys: slice) -> Tensor:
        """Bool `[batch, queries, keys]`: unpinned keys that are recent enough, and not in the future."""
        behind = self.ordinal[:, queries, None] - self.ordinal[:, None, keys]
        past = self.pool[:, None, keys] <= self.pool[:, queries, None]
        return self.windowed[:, None, keys] & past & (behind < self.room[:, queries, None])

    def _sees_pins(self, queries: slice) -> tuple[Tensor, Tensor]:
        """Bool `[batch, queries, pins]` twice: pins met so far, and pins whose distance has stopped growing."""
        index, pin = self.pool[:, queries, None], self.pin_index[:, None]
        unpinned_before = pin - (self.pin_count[:, None] - 1)
        return (pin >= 0) & (pin <= index), index - unpinned_before >= self.budget - 1


def _over_heads(x: Tensor) -> Tensor:
    """`[batch, n, k]` -> `[batch, 1, 1, n, k]`, to meet scores of all heads and groups."""
    return x[:, None, None]
