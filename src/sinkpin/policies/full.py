"""Keep everything: the reference that every other policy is compared with. It takes no budget."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkpin.policies.base import Kind, Policy, View


@dataclass(frozen=True)
class Full(Policy):
    """Everything: the unbounded cache, equal to transformers' `DynamicCache`."""

    name: ClassVar[str] = "full"
    kind: ClassVar[Kind] = "position"
    bounded: ClassVar[bool] = False
    per_head: ClassVar[bool] = False

    def keep(self, view: View, n: int) -> Tensor:
        """Every candidate; the cache never asks, since nothing is over a budget that does not exist."""
        return torch.arange(view.candidates, device=view.origins.device).expand(view.origins.shape)
