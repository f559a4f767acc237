"""The most recent entries, on top of the pins: the classic sliding window, and StreamingLLM when a sink is pinned.

Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453. Their code evicts after a
step, so that a query sees one entry more than the budget; here a query sees `budget` entries, itself included.
Their positions are ranks in the cache, and so are these by default (`slots`).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sinkpin.policies.base import Frame, Kind, Policy, View, newest


@dataclass(frozen=True)
class Window(Policy):
    """The most recent entries. With `sinks=0` the plain sliding window, which collapses once the first tokens leave it."""

    name: ClassVar[str] = "window"
    kind: ClassVar[Kind] = "position"
    frame: ClassVar[Frame] = "slots"
    per_head: ClassVar[bool] = False
    paper: ClassVar[str] = "arXiv 2309.17453"

    def keep(self, view: View, n: int) -> Tensor:
        return newest(view, n)


@dataclass(frozen=True)
class Streaming(Window):
    """The most recent entries, and at least one pinned sink: StreamingLLM."""

    name: ClassVar[str] = "streaming"
    min_sinks: ClassVar[int] = 1
