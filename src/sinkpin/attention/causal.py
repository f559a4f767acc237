"""Attention of new tokens over everything kept and themselves, causally: full caches, scored policies, and any cache
that is not over its budget yet.

Kept and new keys come as one pool in the order of their origins. Memory is O(block x pool), never new x pool.
Not covered: visible sets narrower than the pool (`banded`), and attention weights as evidence.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from sinkpin.attention.rope import Rotary

BLOCK = 256
"""Queries computed at once where a mask has to be written out."""


class Causal:
    """What the queries of one forward see: every earlier real entry of the pool.

    `pool`: int64 `[batch, 1 or kv_heads, entries]`, the index of each entry among its row's real tokens, -1 where a
    slot is empty or padding; its last `new` entries are the queries' own. `ranked`: positions are ranks in the pool
    (frame `slots`) instead of indices. `dense`: the caller knows that no entry is empty or padding.
    """

    def __init__(self, pool: Tensor, new: int, *, ranked: bool, dense: bool) -> None:
        self.new = new
        self.dense = dense
        self.real = pool >= 0
        rank = self.real.cumsum(-1) - 1
        # Only differences of positions matter, so count from the newest: angles stay small however long the text is.
        self.positions = rank - rank[..., -1:] if ranked else pool - pool.amax(-1, keepdim=True)
        self._tables: dict[Rotary, tuple[Tensor, Tensor]] = {}

    def tables(self, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """cos and sin of the pool's positions, made once for all layers that share this plan and rotation."""
        if rotary not in self._tables:
            self._tables[rotary] = rotary.tables(self.positions)
        return self._tables[rotary]

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, rotary: Rotary | None, scaling: float
    ) -> Tensor:
        """Outputs `[batch, heads, new, value_dim]` of unrotated queries `q [batch, heads, new, key_dim]`.

        `keys`, `values`: `[batch, kv_heads, entries, …]`, unrotated. A group's queries share their KV head.
        """
        groups = q.shape[1] // keys.shape[1]
        if rotary is not None:
            cos, sin = self.tables(rotary)
            own = (cos[:, :, -self.new :], sin[:, :, -self.new :])
            if own[0].shape[1] > 1:  # positions differ by KV head: give each query head its group's
                own = (own[0].repeat_interleave(groups, 1), own[1].repeat_interleave(groups, 1))
            q = rotary.rotate(q, own).to(q.dtype)
            keys = rotary.rotate(keys, (cos, sin)).to(keys.dtype)
        entries = keys.shape[2]
        if self.dense and (self.new == 1 or self.new == entries):
            return F.scaled_dot_product_attention(
                q, keys, values, is_causal=self.new > 1, scale=scaling, enable_gqa=groups > 1
            )
        outputs = []
        for start in range(0, self.new, BLOCK):
            stop = min(start + BLOCK, self.new)
            seen = entries - self.new + stop
            block = F.scaled_dot_product_attention(
                q[:, :, start:stop],
                keys[:, :, :seen],
                values[:, :, :seen],
                attn_mask=self.mask(start, stop, seen, groups),
                scale=scaling,
                enable_gqa=groups > 1,
            )
            outputs.append(block)
        return torch.cat(outputs, dim=2)

    def mask(self, start: int, stop: int, seen: int, groups: int) -> Tensor:
        """Bool `[batch, 1 or heads, stop - start, seen]`: what queries start…stop see of the pool's first `seen`."""
        old = self.real.shape[-1] - self.new
        query = torch.arange(old + start, old + stop, device=self.real.device)
        visible = self.real[:, :, None, :seen] & (torch.arange(seen, device=query.device) <= query[:, None])
        # A padding query would see nothing and become NaN; its output is never used, so let it see itself.
        visible = visible | (torch.arange(seen, device=query.device) == query[:, None])
        return visible if visible.shape[1] == 1 else visible.repeat_interleave(groups, 1)
