"""The keys least like the others: no attention needed, only the keys themselves.

Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in Resource-Constrained
Environments", arXiv 2504.15364.

    anchor = mean over all candidates of k_j / |k_j|;    score(j) = -cos(k_j, anchor)

Each KV head keeps its own set; chooses after every forward, so the chunk is the paper's block. There is no window of
recent entries, so the newest one may go.

`rotated` (the default) compares keys as the paper's cache holds them, with their rotation; `rotated=false` compares
them before it, so that distance in the text plays no part. We differ: pinned entries are not part of the anchor (the
paper pins nothing), cosines are fp32, and two candidates, whose cosines with their own mean are equal, are a tie by
rule and not by rounding: the newer stays. Turning all keys by one angle changes nothing.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from sinkpin.policies.base import Need, Ranked, View


@dataclass(frozen=True)
class KeyDiff(Ranked):
    """`rotated`: compare the keys with their rotation, as the paper does, or without."""

    rotated: bool = True

    name: ClassVar[str] = "keydiff"
    paper: ClassVar[str] = "arXiv 2504.15364"

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        return frozenset({"rotated_keys" if self.rotated else "keys"})

    def scores(self, view: View, n: int) -> Tensor:
        """fp32 `[rows, kv_heads, candidates]`."""
        keys = view.rotated_keys if self.rotated else view.keys
        assert keys is not None, f"keydiff needs {set(self.needs)}"
        unit = F.normalize(keys.float(), dim=-1)
        anchor = F.normalize(unit.mean(dim=-2, keepdim=True), dim=-1)
        scores = -(unit * anchor).sum(-1)
        return scores.mean(-1, keepdim=True).expand_as(scores) if view.candidates == 2 else scores
