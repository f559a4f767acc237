"""What a policy is: a frozen value with one pure function, `keep(view, n) -> indices`.

A policy sees candidates only: real, unpinned entries, the same number in every row and head of the view. Pins,
padding, budgets, rotation and storage are the cache's business, so a policy cannot get them wrong. It keeps no state
between calls: whatever it needs of the past arrives in the view, if its class says so in `needs`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkpin.errors import PolicyError

Kind = Literal["position", "scored", "prompt"]
Frame = Literal["slots", "original"]
Need = Literal["mass", "recent", "keys", "rotated_keys", "values", "queries"]


@dataclass(frozen=True)
class QueryStatistics:
    """All queries so far, before rotation, of each query head: `mean` fp32 `[rows, heads, key_dim]`, `covariance`
    (divided by their number) fp32 `[rows, heads, key_dim, key_dim]`.

    `rotate(x, positions)` turns `x [..., key_dim]` as this layer's rotary would, to positions that broadcast against
    `[...]`, or not at all where there is none; turning to a and then by b is turning to a + b. `positions` int64
    `[rows, heads]`: that of the newest query, counted as those of `View.rotated_keys` are. `scaling` multiplies scores."""

    mean: Tensor
    covariance: Tensor
    rotate: Callable[[Tensor, Tensor], Tensor]
    positions: Tensor
    scaling: float


@dataclass(frozen=True)
class View:
    """The candidates of one layer after one forward; what is evidence is there only for policies that need it.

    `layer`: the layer's index in the model. `origins`: int64 `[rows, kv_heads, candidates]`, the index of each
    candidate among its row's real tokens, ascending; the last one is the newest. `seen`: real tokens so far.

    `mass` fp32, like `origins`: attention that all queries so far paid to each candidate while it was held, summed
    over queries and averaged over a group's query heads. `recent` fp32 `[rows, kv_heads, window, candidates]`:
    attention of each of the last `window` queries, averaged likewise. `keys`, `rotated_keys` `[rows, kv_heads,
    candidates, key_dim]`, `values`: as stored, or rotated in the cache's frame. `queries`: see `QueryStatistics`.
    """

    layer: int
    origins: Tensor
    seen: int = 0
    mass: Tensor | None = None
    recent: Tensor | None = None
    keys: Tensor | None = None
    rotated_keys: Tensor | None = None
    values: Tensor | None = None
    queries: QueryStatistics | None = None

    @property
    def candidates(self) -> int:
        return self.origins.shape[-1]


class Policy:
    """What every policy derives from: defaults for what the cache asks of it, and `keep`, which has none.

    `kind`: *scored* policies choose after every forward; *prompt* ones once, when the prompt ends; *position* is the
    rule of `window` alone, pins and the most recent entries, which the cache computes from indices for every query.
    `frame`: the default position of a kept key, its rank (`slots`) or its index in the text (`original`). `bounded`:
    False only for `full`. `per_head`: whether KV heads keep different entries. `across_heads`: whether they share one
    budget (see `adakv`). `layers_alike`: whether `keep` does without `View.layer`, so that rows of several layers may
    come in one view. `min_sinks`: the fewest sinks it makes sense with. `needs`: the evidence it reads.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind] = "scored"
    frame: ClassVar[Frame] = "original"
    bounded: ClassVar[bool] = True
    per_head: ClassVar[bool] = True
    across_heads: ClassVar[bool] = False
    layers_alike: ClassVar[bool] = False
    min_sinks: ClassVar[int] = 0
    needs: ClassVar[frozenset[Need]] = frozenset()
    paper: ClassVar[str] = ""

    def keep(self, view: View, n: int) -> Tensor:
        """Which `n` candidates stay: distinct int64 indices `[rows, kv_heads, n]` into the view, in any order.

        Called only when there are more than `n >= 1` candidates. Equal scores keep the newer entry.
        """
        raise NotImplementedError(f"{type(self).__name__} has no keep(view, n)")

    def window(self, room: int) -> int:
        """How many of the newest queries `recent` is wanted of, and (prompt policies) how many of the newest entries
        stay in any case, when `room` unpinned entries may be held."""
        return 0

    def layer_budget(self, layer: int, layers: int, budget: int, pins: int) -> int:
        """The budget of the bounded layer `layer` of `layers`; over all of them it must be `layers * budget`."""
        return budget


class Ranked(Policy):
    """A policy that gives each candidate a score and keeps the highest; of equal ones the newer."""

    def scores(self, view: View, n: int) -> Tensor:
        """`[rows, kv_heads, candidates]`, of which the `n` highest are to stay."""
        raise NotImplementedError(f"{type(self).__name__} has no scores(view, n)")

    def keep(self, view: View, n: int) -> Tensor:
        return highest(scored(self, view, n), n)


def scored(policy: Any, view: View, n: int) -> Tensor:
    """`policy.scores(view, n)`. Raises `PolicyError` unless it is a number for each candidate."""
    scores: object = policy.scores(view, n)
    if not isinstance(scores, Tensor) or scores.shape != view.origins.shape:
        hint = "; a field of the view is None unless its name is in needs" if scores is None else ""
        raise PolicyError(
            f"policy {policy!r} returned {described(scores)} from scores(): it must be {list(view.origins.shape)}, a number "
            f"for each candidate{hint}"
        )
    if not scores.is_cuda and (
        bad := int(scores.isnan().sum())
    ):  # on a card, looking would be waiting for it
        raise PolicyError(
            f"policy {policy!r} scored {bad} of {scores.numel()} candidates as NaN, which has no order: correct its formula "
            "(0/0, a root or a logarithm of a negative number?)"
        )
    return scores


def described(answer: object) -> str:
    """What a policy answered, for a message."""
    return (
        f"{answer.dtype} {list(answer.shape)}" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"
    )


def highest(scores: Tensor, n: int) -> Tensor:
    """Indices `[..., n]` of the `n` highest `scores [..., m]`; of equal scores the newer (later) one.

    A stable sort instead of `topk`, whose order among ties differs between backends.
    """
    last = scores.shape[-1] - 1
    order = torch.sort(scores.flip(-1), dim=-1, descending=True, stable=True).indices
    return last - order[..., :n]


def newest(view: View, n: int) -> Tensor:
    """Indices `[rows, kv_heads, n]` of the `n` newest candidates."""
    index = torch.arange(view.candidates - n, view.candidates, device=view.origins.device)
    return index.expand(*view.origins.shape[:-1], n)
