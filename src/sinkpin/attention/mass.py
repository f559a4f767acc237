"""What keys were paid, summed over queries while attention is computed, so that no queries x keys matrix ever exists.

`Mass` is the evidence of scored policies, `HeadMass` what the detector reads. Not covered: attention whose weights are
not written out (`banded`, `single`, fused kernels).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from sinkpin.attention.causal import Causal


class Mass:
    """`received`: fp32 `[batch, kv_heads, entries]`, summed over the real queries of one forward, averaged over the query
    heads of a group; None before anything was paid."""

    def __init__(self) -> None:
        self.received: Tensor | None = None

    def take(self, plan: Causal, weights: Tensor) -> None:
        if self.received is None:
            self.received = weights.new_zeros(*weights.shape[:2], plan.real.shape[-1])
        self.received[..., : weights.shape[-1]] += plan.paid(weights).sum(-2)


class HeadMass:
    """`received`: fp32 `[batch, heads, entries]`, of each query head, what each key was paid by later queries: what a token
    pays itself is left out. `learned`: fp32 `[batch, heads]`, what is missing from the sums of rows: the share of learned
    sinks, where a model has them. `queries`: int64 `[batch]`, how many real queries paid. It goes on over several forwards,
    as long as nothing is evicted between them."""

    def __init__(self) -> None:
        self.received: Tensor | None = None
        self.learned: Tensor | None = None
        self.queries: Tensor | None = None

    def take(self, plan: Causal, weights: Tensor) -> None:
        batch, kv_heads, group, n, seen = weights.shape
        heads, real = kv_heads * group, plan.real[:, :1, :seen]
        if not plan.dense:
            weights.mul_(real[:, :, None, seen - n :, None]).mul_(real[:, :, None, None])
        itself = weights.diagonal(offset=seen - n, dim1=-2, dim2=-1)
        own = itself.sum(-1).view(batch, heads)
        itself.zero_()
        paid = weights.sum(-2).view(batch, heads, seen)
        asked = real[:, 0, seen - n :].sum(-1)
        if self.received is None or self.learned is None or self.queries is None:
            self.received = paid.new_zeros(batch, heads, 0)
            self.learned, self.queries = paid.new_zeros(batch, heads), torch.zeros_like(asked)
        more = plan.real.shape[-1] - self.received.shape[-1]
        self.received = F.pad(self.received, (0, more)) if more else self.received
        self.received[..., :seen] += paid
        self.learned = self.learned + (asked[:, None] - paid.sum(-1) - own)
        self.queries = self.queries + asked
