"""SnapKV's choice with unequal layers: the lower ones hold more, the upper ones less, and the total is the budget's.

Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling", arXiv 2406.02069.

With C unpinned entries a layer on average, of which the last w stay in any case, layer l of L chooses

    max - (max - min) · l / (L - 1)   older ones,   min = (C - w) / β,   max = 2 (C - w) - min

so that the mean over the layers is C - w. Defaults: β = 20, and SnapKV's score, window and pooling (see `snapkv`). The
larger β, the steeper; β = 1 is SnapKV. As there, the choice is made once, when the prompt ends.

Whole numbers: each layer's share is rounded down and what that leaves over goes, one each, to the layers that lost
most, so that no layer holds more than a lower one and the sum is exactly L times the budget (the authors round the
step down and leave some of the budget unused). `min` gives way in a small budget: it is at least 1, so that every layer
chooses something; where not even that is possible (C = 1, or a single layer) all layers hold the same.

We differ from the authors' code also in this. It flattens the pyramid for prompts that do not fill its lowest layers,
and falls back to equal layers for shorter ones; here the allotment is fixed when the cache is built, before there is a
prompt, so lower layers may not be full while upper ones evict already, for texts shorter than the budget too. Their
runs observe with w = 8. Our default w follows SnapKV's rule in every layer by itself: where a layer has room for fewer
than 64 entries, half of them. Hybrid models: l and L count the layers that the budget applies to.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from sinkpin.errors import PolicyError
from sinkpin.policies.snapkv import SnapKV


@dataclass(frozen=True)
class PyramidKV(SnapKV):
    """`beta`: the mean share of a layer over that of the top one. The rest as in SnapKV."""

    beta: int = 20

    name: ClassVar[str] = "pyramidkv"
    paper: ClassVar[str] = "arXiv 2406.02069"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 1:
            raise PolicyError(
                f"policy 'pyramidkv': beta={self.beta} would turn the pyramid over; it is at least 1"
            )

    def layer_budget(self, layer: int, layers: int, budget: int, pins: int) -> int:
        """Entries that layer `layer` of `layers` holds, its `pins` included; over all layers `layers * budget`.

        Raises `PolicyError` as `window` does.
        """
        room = budget - pins
        window = self.window(room)
        return pins + window + self._chosen(layers, room - window)[layer]

    def _chosen(self, layers: int, mean: int) -> list[int]:
        """How many older entries each layer chooses when it is `mean` on average."""
        if layers == 1 or mean < 1:
            return [mean] * layers
        least = max(Fraction(1), Fraction(mean, self.beta))
        most = 2 * mean - least
        exact = [most - (most - least) * layer / (layers - 1) for layer in range(layers)]
        chosen = [int(share) for share in exact]
        left_over = layers * mean - sum(chosen)
        lost_most = sorted(range(layers), key=lambda layer: (chosen[layer] - exact[layer], layer))
        for layer in lost_most[:left_over]:
            chosen[layer] += 1
        return chosen
