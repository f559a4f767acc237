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

import torch
from torch import Tensor

from sinkpin.attention.rope import Rotary
from sinkpin.attention.scores import Scoring, block_size, masked, summed

_Tables = tuple[Tensor, Tensor]


class Band:
    """What the queries of one forward see, for all layers with the same pool of entries.

    `pool`: int64 `[batch, entries]`, the index of each entry among its row's real tokens, -1 where a slot is empty or
    padding, ascending; its last `new` entries are the queries' own. `is_pin`, `met_so_far`: of the same shape, whether
    an entry is a pin and how many pins its row has up to and including it; `pins` is the most in any row. `ranked`:
    positions are ranks in the cache (frame `slots`) instead of indices. `gaps`: the most empty or padding slots of
    any row.
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
        gaps: int,
    ) -> None:
        self.pool, self.new, self.budget, self.gaps = pool, new, budget, gaps
        self.clamped = ranked
        self.ordinal = pool + 1 - met_so_far  # of the unpinned: how many up to and including this entry
        self.room = budget - met_so_far  # how many unpinned entries this query sees
        self.windowed = (pool >= 0) & ~is_pin
        # Only differences of positions matter, so count from the newest: angles stay small however long the text is.
        self.positions = pool - pool.amax(-1, keepdim=True)
        pins = min(pins, pool.shape[1])
        self.pin_slots = torch.argsort((~is_pin).to(torch.uint8), dim=-1, stable=True)[:, :pins]
        self.pin_index = torch.where(is_pin, pool, -1).gather(1, self.pin_slots)
        self.pin_count = met_so_far.gather(1, self.pin_slots)  # c(i): the how-many-eth pin this is
        self._tables: dict[Rotary, tuple[_Tables, _Tables, _Tables]] = {}

    def tables(self, rotary: Rotary) -> tuple[_Tables, _Tables, _Tables]:
        """cos and sin of the pool at its indices, of the pins at their ranks, of a query at the last rank."""
        if rotary not in self._tables:
            last = torch.full((1, 1, 1), self.budget - 1, device=self.pool.device)
            self._tables[rotary] = (
                rotary.tables(self.positions[:, None]),
                rotary.tables(self.pin_count[:, None] - 1),
                rotary.tables(last),
            )
        return self._tables[rotary]

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, rotary: Rotary | None, scoring: Scoring
    ) -> Tensor:
        """Outputs `[batch, heads, new, value_dim]` of unrotated queries `q [batch, heads, new, key_dim]`.

        `keys`, `values`: `[batch, kv_heads, entries, …]`, unrotated. Scores, softmax and sums are fp32.
        """
        batch, heads, new, _ = q.shape
        old = keys.shape[2] - new
        values = values.float()
        own = at_last = q.float()
        if rotary is None:
            keys = keys.float()
            pin_near = pin_far = self._pins_of(keys)
        else:
            (cos, sin), at_rank, last = self.tables(rotary)
            pin_far = rotary.rotate(self._pins_of(keys), at_rank)
            keys = rotary.rotate(keys, (cos, sin))
            pin_near = self._pins_of(keys)
            own, at_last = rotary.rotate(q, (cos[:, :, old:], sin[:, :, old:])), rotary.rotate(q, last)
        pin_values = self._pins_of(values)
        pins = pin_values.shape[2]
        moves = self.clamped and (rotary is not None or scoring.slopes is not None)

        outputs = own.new_empty(batch, heads, new, values.shape[-1])
        size = block_size(heads, min(self.budget, old + new) + self.gaps)
        for start in range(0, new, size):
            stop = min(start + size, new)
            first = max(
                0, old + start + 1 - self.budget - self.gaps
            )  # no query of the block sees an earlier slot
            band, window = slice(first, old + stop), slice(old + start, old + stop)
            near = own[:, :, start:stop]
            scores = scoring.scores(near, keys[:, :, band], self._ahead(scoring, window, self.pool[:, band]))
            scores = masked(scores, _over_heads(self._sees(window, band)))
            if pins:
                causal, saturated = self._sees_pins(window)
                pin_scores = scoring.scores(near, pin_near, self._ahead(scoring, window, self.pin_index))
                if moves:
                    far_ahead = _over_heads(self.pin_count[:, None] - self.budget)
                    far = scoring.scores(at_last[:, :, start:stop], pin_far, far_ahead)
                    pin_scores = torch.where(_over_heads(saturated), far, pin_scores)
                scores = torch.cat((masked(pin_scores, _over_heads(causal)), scores), dim=-1)
            weights = scoring.weights(scores)
            block = summed(weights[..., pins:], values[:, :, band])
            if pins:
                block += summed(weights[..., :pins], pin_values)
            outputs[:, :, start:stop] = block
        return outputs

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
