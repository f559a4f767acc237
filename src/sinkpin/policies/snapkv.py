"""What the end of the prompt looks at: chosen once, by the attention of the last `w` queries, smoothed over neighbours.

Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", arXiv 2404.14469.

    score(j) = pool over j's neighbours j' of  Σ over the last w queries i of the prompt of A_ij'

The `w` newest entries stay in any case; of the older ones, those with the highest scores. Each KV head keeps its own
set. Until the prompt ends all of it is held; afterwards the choice is frozen, and decoded tokens slide through the
slots of the last `w`: of what is newer than the frozen part, the oldest goes first. A pin that is met only then takes
the place of the oldest that was chosen, so that `w` slots stay.

Defaults: w = 32, kernel 7, max-pool, the setting of the authors' LongBench runs (their class defaults to w = 64,
kernel 5 and averaging). In a small room the window gives way: min(32, room // 2), at least 1. A `window_size` that was
asked for and cannot hold, window_size >= room, raises.

We differ from the authors' code. It repeats keys and values for every query head and chooses for each; here a group
shares one KV head, and its attention is averaged, *before* pooling. Average pooling there counts the zeros beyond the
ends, which scales the first positions by 3/5 and 4/5 and pushes a sink down; here what is not there does not count.
Probabilities are summed in fp32 (theirs are first rounded to the model's precision). Of equal scores, and a max-pool
makes plateaus of them, the newer stays (their `topk` leaves that open). It never evicts a decoded token; here the bound
holds throughout. Pinned entries take no part: neighbours are neighbours among the unpinned, and while the last `w`
queries are those of the text, the last `w` entries are the newest unpinned ones.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sinkpin.errors import PolicyError
from sinkpin.policies.base import Kind, Need, Ranked, View

WINDOW = 32
"""Queries that choose, where the room allows it."""


@dataclass(frozen=True)
class SnapKV(Ranked):
    """`window_size`: how many of the last queries choose, and how many of the newest entries stay. `kernel`: how many
    neighbours are pooled over, an odd number (1: no pooling). `pool`: "max" or "avg"."""

    window_size: int | None = None
    kernel: int = 7
    pool: str = "max"

    name: ClassVar[str] = "snapkv"
    kind: ClassVar[Kind] = "prompt"
    needs: ClassVar[frozenset[Need]] = frozenset({"recent"})
    paper: ClassVar[str] = "arXiv 2404.14469"

    def __post_init__(self) -> None:
        if self.window_size is not None and self.window_size < 1:
            raise PolicyError(
                f"policy {self.name!r}: window_size={self.window_size}, but at least one query must choose"
            )
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise PolicyError(
                f"policy {self.name!r}: kernel={self.kernel} has no middle; the number of neighbours pooled over is odd"
            )
        if self.pool not in ("max", "avg"):
            raise PolicyError(f"policy {self.name!r}: pool={self.pool!r} is neither 'max' nor 'avg'")

    def window(self, room: int) -> int:
        """The observation window in a room of `room` entries.

        Raises `PolicyError` for a window that was asked for and leaves no room for a choice.
        """
        if self.window_size is None:
            return min(WINDOW, max(1, room // 2))
        if self.window_size >= room:
            raise PolicyError(
                f"policy {self.name!r}: the last window_size={self.window_size} entries stay in any case, but there is "
                f"room for {room} beside the pins, so that nothing could be chosen: use a smaller window, or none"
            )
        return self.window_size

    def scores(self, view: View, n: int) -> Tensor:
        """fp32 `[rows, kv_heads, candidates]`, +inf for the newest, as many as there are queries in `view.recent`."""
        assert view.recent is not None, f"{self.name} needs the last queries' attention"
        older = view.candidates - view.recent.shape[-2]
        received = view.recent[..., :older].float().sum(-2)
        pad = self.kernel // 2
        if self.pool == "max":
            pooled = F.max_pool1d(received, self.kernel, stride=1, padding=pad)
        else:
            pooled = F.avg_pool1d(received, self.kernel, stride=1, padding=pad, count_include_pad=False)
        return F.pad(pooled, (0, view.candidates - older), value=torch.inf)
