"""From dot products to attention weights, in the ways models differ: scale, soft cap, linear biases, learned sinks.

Scores are fp32 and five-dimensional, `[batch, kv_heads, group, queries, keys]`: a group's query heads share one KV
head. Not covered: which keys a query sees, and rotation.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_SCORES = 2**21
"""Scores that may be written out at once: 8 MiB of fp32, of which softmax and mask need a few copies."""


def block_size(heads: int, keys: int) -> int:
    """How many queries to compute at once against `keys` keys, so that memory does not grow with the text."""
    return max(1, min(256, _SCORES // (heads * keys)))


def workspace(q: Tensor, keys: Tensor, *others: Tensor | None) -> Tensor | None:
    """Room for the scores of any block of `q [batch, heads, n, d]` against `keys [batch, kv_heads, k, d]`, to be written
    over by each; None where gradients are asked for of these or of `others` that meet the weights (values, learned sinks):
    they need the weights of every block to stay.

    Blocks grow with what they see. Were each allocated, a heap would keep freed ones of which none fits the next (0.14 GiB
    after 4,096 tokens of the demo model). So the room does not follow the text either, as long as it can.
    """
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, keys, *others)):
        return None
    batch, heads, k = q.shape[0], q.shape[1], keys.shape[2]
    return q.new_empty(batch * max(_SCORES, heads * k), dtype=torch.float32)


@dataclass(frozen=True, eq=False)
class Scoring:
    """How one layer makes weights of dot products.

    `scale` multiplies them. `softcap` bounds them by `cap * tanh(x / cap)` (Gemma 2). `slopes` `[heads]` add
    `slope * (key position - query position)` (ALiBi, arXiv 2108.12409). `sinks` `[heads]` are learned logits that
    take their share of the softmax and return nothing (gpt-oss): rows then sum to less than 1.
    """

    scale: float
    softcap: float | None = None
    slopes: Tensor | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether an ordinary fused kernel computes this."""
        return self.softcap is None and self.slopes is None and self.sinks is None

    def scores(self, q: Tensor, keys: Tensor, ahead: Tensor | None, room: Tensor | None = None) -> Tensor:
        """`q [batch, heads, n, d]` against `keys [batch, kv_heads, k, d]`, both fp32 and rotated.

        `ahead`: key position minus query position, broadcastable to the result; needed where there are slopes. `room`: a
        `workspace` to write them into.
        """
        batch, heads, n, d = q.shape
        kv_heads, k = keys.shape[1], keys.shape[2]
        grouped = (q * self.scale).reshape(batch, kv_heads, heads // kv_heads * n, d)
        shape = (batch, kv_heads, heads // kv_heads * n, k)
        into = None if room is None else room[: math.prod(shape)].view(shape)
        scores = torch.matmul(grouped, keys.transpose(-1, -2), out=into)
        scores = scores.view(batch, kv_heads, heads // kv_heads, n, k)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.slopes is not None:
            assert ahead is not None, "slopes need distances"
            scores = scores + self.slopes.float().view(kv_heads, -1, 1, 1) * ahead
        return scores

    def weights(self, scores: Tensor, *, in_place: bool = False) -> Tensor:
        """Softmax over the keys, less what learned sinks take. `in_place`: the scores may be written over."""
        if self.sinks is None:
            return torch.softmax(scores, -1, out=scores) if in_place else scores.softmax(-1)
        sinks = self.sinks.float().view(scores.shape[1], scores.shape[2], 1, 1).expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]


def summed(weights: Tensor, values: Tensor) -> Tensor:
    """`weights [batch, kv_heads, group, n, k]` over `values [batch, kv_heads, k, d]` -> `[batch, heads, n, d]`."""
    batch, kv_heads, group, n, k = weights.shape
    out = weights.reshape(batch, kv_heads, group * n, k) @ values
    return out.view(batch, kv_heads * group, n, -1)


def masked(scores: Tensor, visible: Tensor) -> Tensor:
    """`scores` where `visible` (broadcastable), else a large finite negative: a padding query sees nothing, and its
    (unused) output must not be NaN."""
    return scores.masked_fill_(~visible, torch.finfo(scores.dtype).min)
