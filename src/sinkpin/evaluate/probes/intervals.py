"""Intervals of a share of right answers, and of the difference between two arms that answered the same questions.

Answers to one stream are no independent evidence: they are counted as fewer. SciPy has the intervals; here is what they
are given. Not here: intervals of a mean (`sinkpin.statistics`), corrections for many arms.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]

LEVEL = 0.95


def share_interval(values: Sequence[float], groups: Sequence[int]) -> Interval:
    """95 % interval of the mean of `values`, each 0 or 1, which come in `groups`.

    One answer a group: Wilson's. Several: Clopper and Pearson's, with as many answers as would be as exact if they were
    independent (Korn & Graubard 1998), at least one a group. With one group alone, that is one answer.
    """
    answers, clusters = np.asarray(values, np.float64), len(set(groups))
    right = int(answers.sum())
    if clusters == len(answers):
        found = stats.binomtest(right, len(answers)).proportion_ci(LEVEL, method="wilson")
        return float(found.low), float(found.high)
    n = effective(answers, groups)
    k, tail = answers.mean() * n, (1 - LEVEL) / 2
    low = 0.0 if right == 0 else float(stats.beta.ppf(tail, k, n - k + 1))
    high = 1.0 if right == len(answers) else float(stats.beta.ppf(1 - tail, k + 1, n - k))
    return low, high


def effective(answers: Floats, groups: Sequence[int]) -> float:
    """How many independent answers would tell the share as exactly: from the spread between groups, with Student's t for
    few of them; the number of groups where they all agree, and never more than there are answers."""
    labels, places = np.unique(np.asarray(groups), return_inverse=True)
    clusters, n, mean = len(labels), len(answers), float(answers.mean())
    if mean in (0.0, 1.0) or clusters == 1:
        return float(clusters)
    away = np.bincount(places, weights=answers - mean)  # of each group, summed
    variance = clusters / (clusters - 1) * float((away**2).sum()) / n**2
    if variance == 0:
        return float(clusters)
    few = (stats.norm.ppf(0.975) / stats.t.ppf(0.975, clusters - 1)) ** 2
    return min(max(mean * (1 - mean) / variance * few, clusters * few, 1.0), float(n))


def difference_interval(arm: Sequence[float], full: Sequence[float], groups: Sequence[int]) -> Interval:
    """95 % interval of the mean of `arm` less that of `full`, question by question: Newcombe's method 10 (1998),
    from the two intervals and the correlation of the answers, with his correction of a positive one; in groups, the same
    from the intervals for groups and the correlation of the groups' means."""
    a, b = np.asarray(arm, np.float64), np.asarray(full, np.float64)
    p, q = float(a.mean()), float(b.mean())
    (a_low, a_high), (b_low, b_high) = share_interval(arm, groups), share_interval(full, groups)
    r = _correlation(_means(a, groups), _means(b, groups))
    below = (p - a_low) ** 2 - 2 * r * (p - a_low) * (b_high - q) + (b_high - q) ** 2
    above = (a_high - p) ** 2 - 2 * r * (a_high - p) * (q - b_low) + (q - b_low) ** 2
    delta = p - q
    return max(delta - max(below, 0.0) ** 0.5, -1.0), min(delta + max(above, 0.0) ** 0.5, 1.0)


def _means(values: Floats, groups: Sequence[int]) -> Floats:
    _, places = np.unique(np.asarray(groups), return_inverse=True)
    means: Floats = np.bincount(places, weights=values) / np.bincount(places)
    return means


def _correlation(a: Floats, b: Floats) -> float:
    spread = float(a.std() * b.std())
    if spread == 0:
        return 0.0
    together = float(((a - a.mean()) * (b - b.mean())).mean())
    if together > 0:
        together = max(together - 1 / (2 * len(a)), 0.0)
    return together / spread
