"""Attention of one query in every row over all that a full cache holds: decoding, once nothing grows any more.

Every slot holds a real entry, in any order. Plain tensor operations on a CPU; on a card one Triton kernel (`kernel`),
which computes the same. Not covered: more than one query (`causal`, `banded`), empty slots, gradients.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sinkpin.attention import kernel
from sinkpin.attention.rope import Rotary
from sinkpin.attention.scores import Scoring, summed


@dataclass(frozen=True)
class First:
    """The text's first tokens, pinned, in the first `count` slots: all nearer to the query than their indices say, because
    what lay behind them was evicted. `q [batch, heads, 1, key_dim]` is the query at the last rank, fp32; `ahead` int
    `[count]`: their positions minus the query's then."""

    count: int
    q: Tensor
    ahead: Tensor


@dataclass(frozen=True)
class Near:
    """Pins anywhere that are nearer to the query than their indices say, because what lay between them was evicted.

    `slots` int64 `[pins]`; `nearer` bool `[pins]`: whether the pin's distance has stopped growing; `ahead` int `[pins]`:
    its position minus the query's then. `q [batch, heads, 1, key_dim]` is the query at the last rank; `turn`: cos and
    sin by which a stored key is turned on to its rank, None where no pin needs to be; `rotary` does it.
    """

    slots: Tensor
    nearer: Tensor
    ahead: Tensor
    q: Tensor
    rotary: Rotary | None = None
    turn: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class Ranks:
    """Keys that are stored unrotated: slot i is at position `at` int64 `[batch, 1 or kv_heads, entries]`, a row of `table`
    as `Rotary.up_to` makes it."""

    rotary: Rotary
    table: Tensor
    at: Tensor


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scoring: Scoring,
    *,
    own: tuple[Tensor, Tensor] | None = None,
    ahead: Tensor | None = None,
    near: First | Near | None = None,
    ranks: Ranks | None = None,
    mass: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Outputs `[batch, heads, 1, value_dim]` and, with `mass`, what each entry was paid, fp32 `[batch, kv_heads,
    entries]`, one more where there is an `own`; averaged over a group's query heads.

    `q [batch, heads, 1, key_dim]` fp32, at its position. `keys`, `values` `[batch, kv_heads, entries, …]`. `own`: the
    query's own key, at its position, and value, where they are not among those. `ahead` int, `[batch, 1 or kv_heads,
    entries]`: position minus the query's, where biases want it.
    """
    if kernel.available(q.device) and not (isinstance(near, Near) and near.turn is not None):
        return _in_kernel(q, keys, values, scoring, own, ahead, near, ranks, mass)
    held = keys.float()
    if ranks is not None:
        cos, sin = F.embedding(ranks.at, ranks.table).chunk(2, dim=-1)
        held = ranks.rotary.rotate(held, (cos, sin))
    spread = None if ahead is None else ahead[:, :, None, None]
    if isinstance(near, First):
        n = near.count
        loose = None if spread is None else spread[..., n:]
        first = scoring.scores(near.q, held[:, :, :n], near.ahead)
        scores = torch.cat((first, scoring.scores(q, held[:, :, n:], loose)), dim=-1)
    else:
        scores = scoring.scores(q, held, spread)
    if isinstance(near, Near):
        pins = keys.index_select(2, near.slots).float()
        if near.rotary is not None and near.turn is not None:
            pins = near.rotary.rotate(pins, near.turn)
        moved = scoring.scores(near.q, pins, near.ahead)
        still = scores.index_select(-1, near.slots)
        scores.index_copy_(-1, near.slots, torch.where(near.nearer, moved, still))
    if own is not None:
        here = None if spread is None else torch.zeros_like(spread[..., :1])
        scores = torch.cat((scores, scoring.scores(q, own[0], here)), dim=-1)
    weights = scoring.weights(scores)
    out = summed(weights[..., : keys.shape[2]], values.float())
    if own is not None:
        out = out + summed(weights[..., keys.shape[2] :], own[1].float())
    return out, weights.mean(2)[:, :, 0] if mass else None


def _in_kernel(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scoring: Scoring,
    own: tuple[Tensor, Tensor] | None,
    ahead: Tensor | None,
    near: First | Near | None,
    ranks: Ranks | None,
    mass: bool,
) -> tuple[Tensor, Tensor | None]:
    far = None
    if isinstance(near, First):
        first = torch.arange(keys.shape[2], device=q.device) < near.count
        far = near.q[:, :, 0], first.expand(len(q), 1, -1)
        if ahead is not None:
            there = near.ahead.to(ahead.dtype).expand(*ahead.shape[:2], -1)
            ahead = torch.cat((there, ahead[..., near.count :]), dim=-1)
    elif near is not None:
        marked = torch.zeros(keys.shape[2], dtype=torch.bool, device=q.device)
        marked.index_copy_(0, near.slots, near.nearer)
        far = near.q[:, :, 0], marked.expand(len(q), 1, -1)
        if ahead is not None:
            there = torch.where(near.nearer, near.ahead, ahead[..., near.slots])
            ahead = ahead.index_copy(-1, near.slots, there.to(ahead.dtype))
    rotation = None
    if ranks is not None:
        cos, sin = ranks.table.chunk(2, dim=-1)
        rotation = cos.contiguous(), sin.contiguous(), ranks.at, ranks.rotary.interleaved
    out, paid = kernel.decode(
        q[:, :, 0],
        keys,
        values,
        scale=scoring.scale,
        own=None if own is None else (own[0][:, :, 0], own[1][:, :, 0]),
        rotation=rotation,
        far=far,
        softcap=scoring.softcap,
        slopes=scoring.slopes,
        distances=None if ahead is None else -ahead,
        sinks=scoring.sinks,
        mass=mass,
    )
    return out[:, :, None], paid
