"""Keys and values that stand out against the block that follows them: no attention needed.

Liang et al., "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important", arXiv 2504.04704.

Candidates are cut, from the oldest, into blocks of `lag`. In each block, channel by channel and for X = K and V,

    x'_j = (x_j - min(next block)) / (max(next block) - min(next block))
    score(j) = softmax over the block of std(k'_j) + the same of std(v'_j),   std over the channels of one head

The last whole block has no next one: it stays, and so do the candidates behind it that fill no block. Each KV head
keeps its own set; chooses after every forward.

Defaults: a lag of 128 (their class has 1024). The last block and the rest must fit in the room, so in a small
room the default gives way: the lag is min(128, room // 4), at least 1 (in a room under 8, where a block is a single
entry and nothing can be told apart, that is recency). `window(room)` says what it has become. A `lag` that was asked
for and cannot hold, 2 * lag - 1 > room, raises.

The paper takes the same share of every block. Here that is a rank: of each block the best entry goes before the second
best of any, and of equal ranks the newer stays. `across=true` compares scores between blocks (and, under adakv,
between heads) instead. `rotated` (the default) takes keys with their rotation, as the authors' cache holds them, each
at its own position; `rotated=false` takes them before it.

We differ: the authors' cache keeps a fixed share for good and grows with the text; a bounded one must choose again
among what it kept, so survivors of several blocks come to share one, in the order of the text. A channel on which the
next block does not vary (which their code divides by zero) counts as 0. Deviations are fp32 (theirs are of the model's
precision) and the softmax is fp64, since it saturates. Pins take the place of their fixed number of sinks.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkpin.errors import PolicyError
from sinkpin.policies.base import Need, Ranked, View

LAG = 128
"""Entries in a block, where the room allows it."""


@dataclass(frozen=True)
class LagKV(Ranked):
    """`lag`: entries in a block. `across`: compare scores between blocks instead of taking the same share of each.
    `rotated`: take the keys with their rotation, as the authors do, or without."""

    lag: int | None = None
    across: bool = False
    rotated: bool = True

    name: ClassVar[str] = "lagkv"
    paper: ClassVar[str] = "arXiv 2504.04704"

    def __post_init__(self) -> None:
        if self.lag is not None and self.lag < 1:
            raise PolicyError(f"policy 'lagkv': lag={self.lag}, but a block holds at least one entry")

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        return frozenset({"rotated_keys" if self.rotated else "keys", "values"})

    def window(self, room: int) -> int:
        """The lag in a room of `room` entries: so many of the newest, at least, stay in any case.

        Raises `PolicyError` for a lag that was asked for and cannot hold.
        """
        if self.lag is None:
            return min(LAG, max(1, room // 4))
        if 2 * self.lag - 1 > room:
            raise PolicyError(
                f"policy 'lagkv': with lag={self.lag} up to {2 * self.lag - 1} of the newest entries stay in any case, "
                f"but there is room for {room} beside the pins: use a lag of at most {(room + 1) // 2}, or none"
            )
        return self.lag

    def scores(self, view: View, n: int) -> Tensor:
        """fp32 `[rows, kv_heads, candidates]`, +inf for the last block and what is behind it."""
        keys = view.rotated_keys if self.rotated else view.keys
        assert keys is not None and view.values is not None, f"lagkv needs {set(self.needs)}"
        lag = self.window(n)
        blocks = view.candidates // lag  # at least 2, since candidates > n >= 2 * lag - 1
        scores = _standing_out(keys, lag, blocks) + _standing_out(view.values, lag, blocks)
        if not self.across:
            scores = scores.argsort(dim=-1, stable=True).argsort(dim=-1) / lag
        out = torch.full(view.origins.shape, torch.inf, device=keys.device)
        out[..., : (blocks - 1) * lag] = scores.flatten(-2).float()
        return out


def _standing_out(x: Tensor, lag: int, blocks: int) -> Tensor:
    """`x [rows, kv_heads, candidates, dim]` -> `[rows, kv_heads, blocks - 1, lag]`, a block's entries summing to 1."""
    cut = x[:, :, : blocks * lag].float().unflatten(2, (blocks, lag))
    low, high = cut[:, :, 1:].aminmax(dim=-2, keepdim=True)
    span = high - low
    scaled = torch.where(span > 0, (cut[:, :, :-1] - low) / span, 0.0)
    # Where keys and values each favour another entry by far, both sums are 1 but for a little, which fp32 would lose.
    exact = torch.float32 if x.device.type == "mps" else torch.float64
    return scaled.std(-1).to(exact).softmax(-1)
