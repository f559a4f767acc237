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

Not covered: kept sets that are not pins + recency (`causal`), ALiBi.
"""

import torch
from torch import Tensor

from sinkpin.attention.rope import Rotary

BLOCK = 256
"""Queries computed at once."""

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
        self, q: Tensor, keys: Tensor, values: Tensor, rotary: Rotary | None, scaling: float
    ) -> Tensor:
        """Outputs `[batch, heads, new, value_dim]` of unrotated queries `q [batch, heads, new, key_dim]`.

        `keys`, `values`: `[batch, kv_heads, entries, …]`, unrotated. Scores, softmax and sums are fp32.
        """
        batch, heads, new, _ = q.shape
        kv_heads, entries = keys.shape[1], keys.shape[2]
        old = entries - new
        q = q.float() * scaling
        values = values.float()
        own = at_last = q
        if rotary is None:
            keys = keys.float()
            pin_keys = self._pins_of(keys)
            pin_near, pin_far = pin_keys, pin_keys
        else:
            (cos, sin), at_rank, last = self.tables(rotary)
            pin_far = rotary.rotate(self._pins_of(keys), at_rank)
            keys = rotary.rotate(keys, (cos, sin))
            pin_near = self._pins_of(keys)
            own = rotary.rotate(q, (cos[:, :, old:], sin[:, :, old:]))
            at_last = rotary.rotate(q, last)
        pin_values = self._pins_of(values)
        pins = pin_values.shape[2]

        outputs = q.new_empty(batch, heads, new, values.shape[-1])
        for start in range(0, new, BLOCK):
            stop = min(start + BLOCK, new)
            first = max(
                0, old + start + 1 - self.budget - self.gaps
            )  # no query of the block sees an earlier slot
            band, window = slice(first, old + stop), slice(old + start, old + stop)
            near = _grouped(own[:, :, start:stop], kv_heads)
            scores = near @ keys[:, :, band].transpose(-1, -2)
            scores = _masked(scores, self._sees(window, band))
            if pins:
                pin_scores = near @ pin_near.transpose(-1, -2)
                causal, saturated = self._sees_pins(window)
                if self.clamped and rotary is not None:
                    far = _grouped(at_last[:, :, start:stop], kv_heads) @ pin_far.transpose(-1, -2)
                    pin_scores = _chosen(saturated, far, pin_scores)
                scores = torch.cat((_masked(pin_scores, causal), scores), dim=-1)
            weights = scores.softmax(-1)
            block = weights[..., pins:] @ values[:, :, band]
            if pins:
                block += weights[..., :pins] @ pin_values
            outputs[:, :, start:stop] = block.view(batch, heads, stop - start, -1)
        return outputs

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


def _grouped(q: Tensor, kv_heads: int) -> Tensor:
    """`[batch, heads, n, d]` -> `[batch, kv_heads, group * n, d]`: a group's queries meet their one KV head at once."""
    batch, heads, n, d = q.shape
    return q.reshape(batch, kv_heads, heads // kv_heads * n, d)


def _spread(mask: Tensor, scores: Tensor) -> Tensor:
    """`mask [batch, n, k]` repeated over KV heads and groups to fit `scores [batch, kv_heads, group * n, k]`."""
    groups = scores.shape[2] // mask.shape[1]
    return mask[:, None].repeat(1, 1, groups, 1)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    # A large finite number, not -inf: a padding query sees nothing, and its (unused) output must not be NaN.
    return scores.masked_fill(~_spread(mask, scores), torch.finfo(scores.dtype).min)


def _chosen(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(_spread(mask, yes), yes, no)
