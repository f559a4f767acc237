"""A policy of one's own: every `stride`-th older entry, and the newest half. (An example, not a recommendation.)

Run it:                   sinkpin.BoundedCache(model, budget=256, policy=Strided(stride=4))
Hold it to the contract:  pytest test_strided.py      (beside this file)
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkpin.errors import PolicyError
from sinkpin.policies.base import Ranked, View


@dataclass(frozen=True)
class Strided(Ranked):
    """Spreads what it keeps of the past evenly, by the entry's index in the text."""

    stride: int = 4

    name: ClassVar[str] = "strided"

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise PolicyError(f"policy 'strided': stride={self.stride}, but every entry cannot be kept twice")

    def scores(self, view: View, n: int) -> Tensor:
        scores = (view.origins % self.stride == 0).float()
        scores[..., view.candidates - (n + 1) // 2 :] = torch.inf  # the newest half stays in any case
        return scores
