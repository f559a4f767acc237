"""Attention of new tokens over everything kept and themselves, causally: full caches, scored policies, and any cache
that is not over its budget yet.

Kept and new keys come as one pool in the order of their origins. Memory is O(block x pool), never new x pool. Where
a policy wants to know what queries paid to keys, it is summed in the same pass. Not covered: visible sets narrower
than the pool (`banded`).
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from sinkpin.attention.rope import Rotary
from sinkpin.attention.scores import Scoring, block_size, masked, summed, workspace


class Witness(Protocol):
    """Somebody who wants to know what queries pay to keys (`mass`)."""

    def take(self, plan: "Causal", weights: Tensor) -> None:
        """fp32 `[batch, kv_heads, group, n, seen]`: what the queries of slots `seen - n … seen - 1` of the pool pay to its
        first `seen` keys. The witness may write into the tensor, and must not keep it: the next block is written over it."""
        ...


class Causal:
    """What the queries of one forward see: every earlier real entry of the pool.

    `pool`: int64 `[batch, 1 or kv_heads, entries]`, the index of each entry among its row's real tokens, -1 where a
    slot is empty or padding; its last `new` entries are the queries' own. `ranked`: positions are ranks in the pool
    (frame `slots`) instead of indices. `turned`: keys come rotated to their indices already, which are their positions.
    `dense`: the caller knows that no entry is empty or padding.
    """

    def __init__(self, pool: Tensor, new: int, *, ranked: bool, turned: bool, dense: bool) -> None:
        self.new = new
        self.turned = turned
        self.dense = dense
        self.real = pool >= 0
        if ranked and not turned:
            pool = pool[:1, :1] if dense else pool  # without gaps all rows and heads have the same ranks
            self.absolute = (pool >= 0).cumsum(-1) - 1
        else:
            self.absolute = pool
        # Only differences of positions matter, so count from the newest where the keys let us: angles stay small.
        self.positions = self.absolute if turned else self.absolute - self.absolute.amax(-1, keepdim=True)
        self._tables: dict[tuple[Rotary, int], tuple[Tensor, Tensor]] = {}

    @property
    def newest(self) -> Tensor:
        """int64 `[batch, 1 or kv_heads]`: the position of each head's newest entry, counted as `absolute` is."""
        return self.absolute.amax(-1).expand(len(self.real), -1)

    def tables(self, rotary: Rotary, last: int) -> tuple[Tensor, Tensor]:
        """cos and sin at the positions of the pool's `last` entries, made once for all layers that share this plan."""
        if (rotary, last) not in self._tables:
            where = self.positions[..., self.positions.shape[-1] - last :]
            # What has just come is at one position in all heads.
            self._tables[rotary, last] = rotary.tables(where[:, :1] if last <= self.new else where)
        return self._tables[rotary, last]

    def of_new(self, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """cos and sin at the positions of the new entries."""
        return self.tables(rotary, self.new)

    def rotated(self, keys: Tensor, rotary: Rotary | None) -> Tensor:
        """The pool's `keys [batch, kv_heads, entries, key_dim]` at their positions, fp32."""
        if rotary is None or self.turned:
            return keys.float()
        return rotary.rotate(keys, self.tables(rotary, keys.shape[2]))

    def rotated_queries(self, q: Tensor, rotary: Rotary | None, kv_heads: int) -> Tensor:
        """`q [batch, heads, n, key_dim]`, the pool's last n tokens, at their positions, fp32."""
        if rotary is None:
            return q.float()
        cos, sin = self.tables(rotary, q.shape[2])
        if cos.shape[1] > 1:  # positions differ by KV head: give each query head its group's
            groups = q.shape[1] // kv_heads
            cos, sin = cos.repeat_interleave(groups, 1), sin.repeat_interleave(groups, 1)
        return rotary.rotate(q, (cos, sin))

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        rotary: Rotary | None,
        scoring: Scoring,
        witness: Witness | None = None,
    ) -> Tensor:
        """Outputs `[batch, heads, new, value_dim]` of unrotated queries `q [batch, heads, new, key_dim]`.

        `keys`, `values`: `[batch, kv_heads, entries, …]`, as stored. A group's queries share their KV head.
        """
        kv_heads, entries = keys.shape[1], keys.shape[2]
        rotated_q = self.rotated_queries(q, rotary, kv_heads)
        if witness is None and scoring.plain:
            at_place = keys if self.turned else self.rotated(keys, rotary).to(q.dtype)
            return self._fused(rotated_q.to(q.dtype), at_place, values, scoring.scale)
        rotated_keys = self.rotated(keys, rotary)
        values = values.float()
        # One buffer, not a list of pieces: what stays between what comes and goes would scatter the heap.
        outputs = rotated_q.new_empty(*q.shape[:3], values.shape[-1])
        block = block_size(q.shape[1], entries)
        room = workspace(rotated_q, rotated_keys, values, scoring.sinks, scoring.slopes)
        for start in range(0, self.new, block):
            stop = min(start + block, self.new)
            seen = entries - self.new + stop
            weights = self.weights(rotated_q[:, :, start:stop], rotated_keys[:, :, :seen], scoring, room)
            outputs[:, :, start:stop] = summed(weights, values[:, :, :seen])
            if witness is not None:
                witness.take(self, weights if not weights.requires_grad else weights.detach().clone())
        return outputs

    def weights(self, q: Tensor, keys: Tensor, scoring: Scoring, room: Tensor | None = None) -> Tensor:
        """What the queries of the pool's slots `seen - n … seen - 1` pay to its first `seen` keys, causally: fp32
        `[batch, kv_heads, group, n, seen]`. `q [batch, heads, n, d]`, `keys [batch, kv_heads, seen, d]`, rotated. `room`: a
        `workspace` to write them into."""
        seen, n = keys.shape[2], q.shape[2]
        ahead = None
        if scoring.slopes is not None:
            own = self.positions[:, :, seen - n : seen, None]
            ahead = (self.positions[:, :, None, :seen] - own)[:, :, None]
        scores = scoring.scores(q, keys, ahead, room)
        scores = masked(scores, self._visible(seen, n)[:, :, None])
        return scoring.weights(scores, in_place=room is not None)

    def paid(self, weights: Tensor) -> Tensor:
        """Weights averaged over a group's query heads, `[batch, kv_heads, n, seen]`; padding neither gives nor
        receives."""
        n, seen = weights.shape[-2:]
        mean = weights.mean(2)
        if self.dense:
            return mean
        real = self.real[:, :, :seen]
        return mean * real[:, :, seen - n :, None] * real[:, :, None]

    def _fused(self, q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        entries = keys.shape[2]
        groups = q.shape[1] // keys.shape[1]
        if self.dense and (self.new == 1 or self.new == entries):
            return F.scaled_dot_product_attention(
                q, keys, values, is_causal=self.new > 1, scale=scale, enable_gqa=groups > 1
            )
        outputs, size = q.new_empty(*q.shape[:3], values.shape[-1]), block_size(1, entries)
        for start in range(0, self.new, size):
            stop = min(start + size, self.new)
            seen = entries - self.new + stop
            visible = self._visible(seen, stop - start)
            outputs[:, :, start:stop] = F.scaled_dot_product_attention(
                q[:, :, start:stop],
                keys[:, :, :seen],
                values[:, :, :seen],
                attn_mask=visible if visible.shape[1] == 1 else visible.repeat_interleave(groups, 1),
                scale=scale,
                enable_gqa=groups > 1,
            )
        return outputs

    def _visible(self, seen: int, n: int) -> Tensor:
        """Bool `[batch, 1 or kv_heads, n, seen]`: what the queries of slots `seen - n … seen - 1` see."""
        key = torch.arange(seen, device=self.real.device)
        query = key[seen - n :, None]
        visible = self.real[:, :, None, :seen] & (key <= query)
        # A padding query would see nothing and become NaN; its output is never used, so let it see itself.
        return visible | (key == query)
