"""What a policy is: a frozen value with one pure function, `keep(view, n) -> indices`.

A policy sees candidates only: real, unpinned entries, the same number in every row and head of the view. Pins,
padding, budgets, rotation and storage are the cache's business, so a policy cannot get them wrong. It keeps no state
between calls: whatever it needs of the past arrives in the view.

Not covered: attention evidence (no policy here needs it yet), policies that choose once at the end of the prompt.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

Kind = Literal["position", "scored"]
Frame = Literal["slots", "original"]


@dataclass(frozen=True)
class View:
    """The candidates of one layer after one forward.

    `origins`: int64 `[rows, kv_heads, candidates]`, the index of each candidate among its row's real tokens,
    ascending; the last one is the newest. `layer`: the layer's index in the model.
    """

    layer: int
    origins: Tensor

    @property
    def candidates(self) -> int:
        return self.origins.shape[-1]


class Policy(Protocol):
    """What the cache asks of a policy.

    `kind`: *position* policies follow from indices alone and keep the pins and the most recent entries; *scored* ones
    choose after every forward. `frame`: the default position of a kept key, its rank (`slots`) or its index in the
    text (`original`). `bounded`: False only for `full`. `min_sinks`: the fewest sinks it makes sense with.
    `per_head`: whether KV heads keep different entries.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    frame: ClassVar[Frame]
    bounded: ClassVar[bool]
    per_head: ClassVar[bool]
    min_sinks: ClassVar[int]
    paper: ClassVar[str]

    def keep(self, view: View, n: int) -> Tensor:
        """Which `n` candidates stay: distinct int64 indices `[rows, kv_heads, n]` into the view, in any order.

        Called only when there are more than `n >= 1` candidates. Equal scores keep the newer entry.
        """
        ...


def highest(scores: Tensor, n: int) -> Tensor:
    """Indices `[..., n]` of the `n` highest `scores [..., m]`; of equal scores the newer (later) one.

    A stable sort instead of `topk`, whose order among ties differs between backends.
    """
    last = scores.shape[-1] - 1
    order = torch.sort(scores.flip(-1), dim=-1, descending=True, stable=True).indices
    return last - order[..., :n]
