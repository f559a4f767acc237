"""Heads that hold different numbers of entries, without wasting a byte on the difference.

Between forwards the entries of all KV heads of a row lie behind one another, `[batch, total, …]`; for a forward they
are opened into the usual rectangle `[batch, kv_heads, most, …]`, empty slots first.
"""

import torch
from torch import Tensor


def packed(x: Tensor, valid: Tensor, total: int) -> Tensor:
    """The valid entries of `x [batch, heads, entries, …]`, head by head: `[batch, total, …]`, zeros behind them."""
    flat, inside = x.flatten(1, 2), valid.flatten(1)
    order = torch.argsort((~inside).to(torch.uint8), dim=-1, stable=True)[:, :total]
    rows = torch.arange(len(x), device=x.device)[:, None]
    real = inside.gather(1, order).view(*order.shape, *[1] * (flat.ndim - 2))
    return flat[rows, order].masked_fill(~real, 0)


def opened(flat: Tensor, counts: Tensor, fill: int = 0) -> Tensor:
    """The rectangle `[batch, heads, most, …]` of `flat [batch, total, …]`; `counts [batch, heads]` says how many entries
    are whose; empty slots, first, hold `fill`."""
    most = int(counts.max())
    slot = torch.arange(most, device=flat.device) - (most - counts[..., None])
    index = (counts.cumsum(-1) - counts)[..., None] + slot
    rows = torch.arange(len(flat), device=flat.device)[:, None, None]
    empty = (slot < 0).view(*slot.shape, *[1] * (flat.ndim - 2))
    return flat[rows, index.clamp(min=0)].masked_fill(empty, fill)
