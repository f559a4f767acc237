"""Keep everything: the reference that every other policy is compared with. It takes no budget."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkpin.policies.base import Frame, Kind, View


@dataclass(frozen=True)
class Full:
    """The unbounded cache, equal to transformers' `DynamicCache`."""

    name: ClassVar[str] = "full"
    kind: ClassVar[Kind] = "position"
    frame: ClassVar[Frame] = "original"
    bounded: ClassVar[bool] = False
    per_head: ClassVar[bool] = False
    min_sinks: ClassVar[int] = 0
    paper: ClassVar[str] = ""

    def keep(self, view: View, n: int) -> Tensor:
        """Every candidate; the cache never asks, since nothing is over a budget that does not exist."""
        return torch.arange(view.candidates, device=view.origins.device).expand(view.origins.shape)
