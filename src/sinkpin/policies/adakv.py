"""Another policy's scores, with unequal heads: a layer's heads share one budget, and the highest scores of all stay.

Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM Inference",
arXiv 2407.11550.

With n unpinned entries a head on average and H KV heads: every head keeps its ceil(α n) highest scores, and the rest of
the H n places goes to the highest of all other scores in the layer, whatever their head. Default: α = 0.2, over `h2o`
(the paper's own arms are over SnapKV and PyramidKV: `base=snapkv`, `base=pyramidkv`). When it chooses, what it needs
and the frame are the base's; what the base keeps in any case (+inf), every head keeps.

Options of the base are written with its name before them: `adakv:base=snapkv,base.kernel=5`.

We differ from the authors' code. There the joint choice decides only how many entries a head gets, its share is then
drawn towards the mean (share = α n + (1 - α) · joint share, rounded), and each head takes its own best; their rounding
may miss the total. Here α is a floor, as in NVIDIA's kvpress: where it does not bind, the joint choice stands as it is,
and the total is exact. Their `normalize` (weighting a head by the mass its best entries hold) is not offered. Of equal
scores the newer stays, and of equally old ones that of the lower head.

Scores are compared between heads as they are: attention sums have one scale, other bases' scores may not. A base that
keeps one set for all heads (`tova`), or has no scores (`window`, `random`), cannot be wrapped.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkpin.errors import PolicyError
from sinkpin.policies import resolve
from sinkpin.policies.base import Frame, Kind, Need, Policy, View, highest, scored


@dataclass(frozen=True)
class AdaKV(Policy):
    """`base`: the policy whose scores decide, by name or as an object. `alpha`: the share of an even allotment that
    every head keeps in any case."""

    base: Any = "h2o"
    alpha: float = 0.2

    name: ClassVar[str] = "adakv"
    across_heads: ClassVar[bool] = True
    paper: ClassVar[str] = "arXiv 2407.11550"

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", resolve(self.base))
        if not callable(getattr(self.base, "scores", None)):
            raise PolicyError(
                f"policy 'adakv' over {self.base.name!r}, which has no scores to compare between heads"
            )
        if not self.base.per_head:
            raise PolicyError(
                f"policy 'adakv' over {self.base.name!r}, which keeps one set for all heads: there is nothing to allot"
            )
        if not 0 <= self.alpha <= 1:
            raise PolicyError(
                f"policy 'adakv': alpha={self.alpha} is the share of an even allotment that every head keeps, from 0 to 1"
            )

    # What the class says for other policies, the base says here.

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        return self.base.kind

    @property
    def frame(self) -> Frame:  # type: ignore[override]
        return self.base.frame

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        return self.base.needs

    @property
    def min_sinks(self) -> int:  # type: ignore[override]
        return self.base.min_sinks

    def window(self, room: int) -> int:
        return self.base.window(room)

    def layer_budget(self, layer: int, layers: int, budget: int, pins: int) -> int:
        """The base's allotment of layers, where it has one."""
        return self.base.layer_budget(layer, layers, budget, pins)

    def floor(self, n: int) -> int:
        """Entries that every head keeps in any case when the mean is `n`."""
        return math.ceil(Fraction(str(self.alpha)) * n)  # as written: 0.07 * 100 is above 7 in binary

    def share(self, view: View, n: int) -> Tensor:
        """Which candidates stay: bool `[rows, kv_heads, candidates]`, of every row exactly `kv_heads * n`.

        Heads that hold fewer candidates than others are filled up in front with origins of -1, which never stay; every
        head keeps at least `floor(n)`, or all it has.
        """
        scores = self._scores(view, n)
        best = torch.zeros_like(scores, dtype=torch.bool)
        best.scatter_(-1, highest(scores, self.floor(n)), True)
        missing = view.origins < 0
        scores = scores.masked_fill(best, torch.inf).masked_fill(missing, -torch.inf).flatten(1)
        # A head's own floor and what the base wants in any case never exceed n, so all of +inf is kept. Sorting twice,
        # stably, orders by score, then by age, then by head.
        by_age = view.origins.flatten(1).argsort(dim=-1, descending=True, stable=True)
        order = scores.gather(-1, by_age).argsort(dim=-1, descending=True, stable=True)
        kept = by_age.gather(-1, order)[:, : view.origins.shape[1] * n]
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, kept, True).view_as(missing) & ~missing

    def keep(self, view: View, n: int) -> Tensor:
        """`share` where there is one head and so nothing to share. Raises `PolicyError` where there are several."""
        if (heads := view.origins.shape[1]) != 1:
            raise PolicyError(
                f"policy 'adakv' keeps different numbers of entries in the {heads} heads of a layer: ask share(view, n), "
                f"or use {self.base.name!r} itself"
            )
        return highest(scored(self.base, view, n), n)

    def _scores(self, view: View, n: int) -> Tensor:
        """The base's scores; it never sees a missing candidate, so heads of different length are put to it singly."""
        missing = view.origins < 0
        if not missing.any():
            return scored(self.base, view, n)
        scores = torch.full(view.origins.shape, -torch.inf, device=view.origins.device)
        for row, head in (~missing).any(-1).nonzero().tolist():
            first = int(missing[row, head].sum())
            scores[row, head, first:] = scored(self.base, _alone(view, row, head, first), n)[0, 0]
        return scores


def _alone(view: View, row: int, head: int, first: int) -> View:
    """One row and KV head of a view, from its candidate `first` on."""

    def cut(x: Tensor | None, candidates_dim: int = 2) -> Tensor | None:
        if x is None:
            return None
        return x[row : row + 1, head : head + 1].narrow(
            candidates_dim, first, x.shape[candidates_dim] - first
        )

    queries = view.queries
    if queries is not None:
        group = queries.mean.shape[1] // view.origins.shape[1]
        mine = slice(head * group, (head + 1) * group)
        queries = replace(
            queries,
            mean=queries.mean[row : row + 1, mine],
            covariance=queries.covariance[row : row + 1, mine],
            positions=queries.positions[row : row + 1, mine],
        )
    return replace(
        view,
        origins=view.origins[row : row + 1, head : head + 1, first:],
        mass=cut(view.mass),
        recent=cut(view.recent, 3),
        keys=cut(view.keys),
        rotated_keys=cut(view.rotated_keys),
        values=cut(view.values),
        queries=queries,
    )
