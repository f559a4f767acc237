"""What the newest token attends to: one set of entries for all heads of a layer.

Oren et al., "Transformers are Multi-State RNNs", arXiv 2401.06104 (TOVA, token omission via attention).

    score(j) = mean over all query heads of A_tj, with t the newest query

There are no other defaults: no window of recent entries, no history. As in the authors' code nothing is kept in any
case: the newest entry competes with the attention that its query paid to itself, and may be the one to go (a known
port forces it to stay). In a room of one it often is: then the cache clings to one strong entry and the newest tokens
pass it by. Chooses after every forward; in a forward of many tokens only the last one's attention counts.

We differ: scores are fp32 (their code ranks in the model's precision, where most are ties in bf16), of equal scores
the newer entry stays (their `topk` leaves that open), and pinned entries take no part, although what the softmax gave
to them is missing from the others.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sinkpin.policies.base import Need, Ranked, View


@dataclass(frozen=True)
class TOVA(Ranked):
    """What the newest query attends to: averaged over all heads of the layer."""

    name: ClassVar[str] = "tova"
    per_head: ClassVar[bool] = False
    layers_alike: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({"recent"})
    paper: ClassVar[str] = "arXiv 2401.06104"

    def window(self, room: int) -> int:
        return 1

    def scores(self, view: View, n: int) -> Tensor:
        """fp32 `[rows, 1, candidates]`: the view comes with one head, averaged over all."""
        assert view.recent is not None, "tova needs the last query's attention"
        return view.recent[..., -1, :].float()
