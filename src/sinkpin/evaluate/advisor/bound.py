"""How much is lost at most, on the evidence of some blocks: the bound that choosing and certifying are decided by.

A block's difference is the mean, over at least `BLOCK` neighbouring tokens, of a setting's loss minus the full cache's, in
nats. Loss in words is exp(ΔNLL) − 1: by how much perplexity grows. Blocks count as independent; those of one passage share
its beginning, so that they nearly are at best. Not here: where blocks come from (`passages`), and how an interval is made
(`sinkpin.statistics`).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from sinkpin.statistics import mean_interval

CONFIDENCE = 0.95
"""One-sided: a loss at the limit or above is promised away in one certificate of twenty."""
BLOCK = 512
"""Tokens of a block: losses of neighbouring tokens are correlated, so that a token is no unit of evidence."""
FEWEST = 20
"""Blocks below which nothing is promised: an interval of fewer is too narrow."""


@dataclass(frozen=True)
class Bound:
    """`nll` the mean difference, `low` and `high` its two one-sided bounds, all in nats, from `blocks` blocks."""

    blocks: int
    nll: float
    low: float
    high: float

    @property
    def loss(self) -> float:
        """What was measured: exp(ΔNLL) − 1."""
        return _loss(self.nll)

    @property
    def at_most(self) -> float:
        """What it is at most, with `CONFIDENCE`."""
        return _loss(self.high)

    def within(self, limit: float) -> bool:
        """Whether the loss is below `limit` (a share) as far as can be known."""
        return self.at_most < limit

    def beyond(self, limit: float) -> bool:
        """Whether it is above, as far as can be known."""
        return _loss(self.low) > limit

    def blocks_needed(self, limit: float) -> int | None:
        """About how many blocks of this spread would bring the bound below `limit`, were the mean to stay; None where the
        mean itself is not below. The distance of the bound shrinks with the root of their number."""
        room = math.log1p(limit) - self.nll
        if room <= 0:
            return None
        return max(math.floor(self.blocks * ((self.high - self.nll) / room) ** 2) + 1, FEWEST)


def bound(differences: npt.ArrayLike, resamples: int = 10_000) -> Bound:
    """The bound from one difference a block, at least two.

    The larger of two upper bounds (and the smaller of two lower ones): the bootstrap's (BCa), which follows a skewed
    distribution, and Student's t, since the bootstrap of few blocks is too narrow. In simulation with 20 normal blocks,
    the first alone lies below the truth in 6.3 % of cases, the two together in 4.7 %; with blocks as skewed as a gamma
    distribution of shape 2, in 7.3 and 7.1 %, and in 6.3 % with 40 of them.
    """
    values = np.asarray(differences, dtype=np.float64)
    low, high = mean_interval(values, level=2 * CONFIDENCE - 1, resamples=resamples)
    mean = float(values.mean())
    reach = float(stats.t.ppf(CONFIDENCE, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return Bound(len(values), mean, min(low, mean - reach), max(high, mean + reach))


def _loss(nats: float) -> float:
    return math.expm1(nats) if nats < 700 else math.inf
