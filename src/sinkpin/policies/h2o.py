"""Heavy hitters and the recent: half the room for the entries that received most attention so far, half for the newest.

Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models", arXiv 2306.14048.

    score(j) = Σ over all queries i >= j so far, itself included, of A_ij

Defaults: heavy = recent = ½ of the unpinned room, as in the paper; of an odd room the heavy part rounds down, so that
a room of one holds the newest entry. Each KV head keeps its own set, and chooses after every forward, prefill and
decode alike.

The authors' code sums raw probabilities per head and keeps the recent part, and so does this. Raw sums favour old
entries, which more queries could see; `normalize` divides by their number (seen - origin), which is another policy.
We differ: a group's query heads are averaged, since they share one KV head (the authors' models have no groups);
sums are fp32 (their code sums in the model's precision); a pinned entry takes no part, so pins do not use up the heavy
part; and room is a number of entries, not a share of the text (their code that really drops entries does the same).
What an entry received before it was evicted is lost, and it never comes back.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkpin.errors import PolicyError
from sinkpin.policies.base import Need, Ranked, View


@dataclass(frozen=True)
class H2O(Ranked):
    """`normalize`: divide by the number of queries that could see the key. `recent`: the newest entries' share."""

    normalize: bool = False
    recent: float = 0.5

    name: ClassVar[str] = "h2o"
    layers_alike: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({"mass"})
    paper: ClassVar[str] = "arXiv 2306.14048"

    def __post_init__(self) -> None:
        if not 0 <= self.recent <= 1:
            raise PolicyError(
                f"policy 'h2o': recent={self.recent} is the share of the room that the newest entries hold, from 0 to 1"
            )

    def heavy(self, room: int) -> int:
        """How many of `room` entries are chosen by attention; the others are the newest."""
        # The nudge undoes rounding: 100 * (1 - 0.55) is 44.99999999999999.
        return math.floor(room * (1 - self.recent) + 1e-9)

    def scores(self, view: View, n: int) -> Tensor:
        """fp32 `[rows, kv_heads, candidates]`, +inf for the recent part."""
        assert view.mass is not None, "h2o needs the mass"
        scores = view.mass.float().clone()
        if self.normalize:
            scores /= view.seen - view.origins
        recent = n - self.heavy(n)
        scores[..., view.candidates - recent :] = torch.inf
        return scores
