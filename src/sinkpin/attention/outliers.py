"""Which tokens received far more attention than their place in the text explains.

Attention mass depends on where a token stands: the first ones are seen by many, the last ones by neighbours only. So its
logarithm is taken against a trend over positions; what is left is made a robust z (median absolute deviation), and how many
tokens were looked at is paid for by controlling the share of false discoveries (Benjamini and Hochberg 1995). A mean over
layers and heads hides what lives in few of them, so the head that pays most, the number of heads above ε (Gu et al., arXiv
2410.10781) and the layers in which a token is an outlier stand beside it. None is a valid answer. Numbers only. Not
covered: what kind of sink it is, and what losing it costs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sinkpin.statistics import adjusted, robust_z

EPSILON = 0.3
"""Mass above which Gu et al. call a head's first token a sink."""
RATE = 0.01
"""Of false discoveries among outliers."""
RATIO = 2.0
"""An outlier receives at least so many times what its place explains: where nothing scatters, any bend is significant."""

_LEAST = 8  # tokens a stretch of the trend is the median of
_STRETCHES = 24

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Outliers:
    """Of T tokens: `mean`, `most` (the head that pays most), `heads` (how many pay more than ε), `trend` (mass that the
    place explains), `z`, `q` (rate of false discoveries at which a token is just one), `z_of_layers` `[layers, T]`; NaN where
    not measured. `cut`: the smallest z of an outlier, infinite where there is none. `how`: what z was scaled by. `found`:
    the outliers' indices, ascending; `sinks`: those which at least one head pays more than ε."""

    mean: Floats
    most: Floats
    heads: npt.NDArray[np.int32]
    trend: Floats
    z: Floats
    q: Floats
    z_of_layers: Floats
    cut: float
    how: str
    found: tuple[int, ...]
    sinks: tuple[int, ...]


def outliers(
    mass: npt.NDArray[np.floating[Any]], *, epsilon: float = EPSILON, rate: float = RATE
) -> Outliers:
    """Read `mass [layers, heads, T]`, NaN for tokens that are left out."""
    from scipy.stats import norm

    mass = mass.astype(np.float64)
    measured = ~np.isnan(mass).any((0, 1))
    mean, most, trend, z, q = (np.full(mass.shape[-1], np.nan) for _ in range(5))
    z_of_layers = np.full((len(mass), mass.shape[-1]), np.nan)
    heads = (mass > epsilon).sum((0, 1)).astype(np.int32)
    if not measured.any():
        return Outliers(mean, most, heads, trend, z, q, z_of_layers, np.inf, "nothing was measured", (), ())
    here = mass[..., measured]
    mean[measured], most[measured] = here.mean((0, 1)), here.max((0, 1))
    at = _place(np.flatnonzero(measured), mass.shape[-1])
    logs = _log(mean[measured])
    expected = _trend(at, logs)
    trend[measured] = np.exp(expected)
    z[measured], how = robust_z(logs - expected)
    q[measured] = adjusted(norm.sf(z[measured]))
    for layer, row in enumerate(_log(here.mean(1))):
        z_of_layers[layer, measured] = robust_z(row - _trend(at, row))[0]
    out = np.zeros_like(measured)
    out[measured] = (q[measured] <= rate) & (logs - expected >= np.log(RATIO))
    cut = float(z[out].min()) if out.any() else np.inf
    found, sinks = (tuple(np.flatnonzero(x).tolist()) for x in (out, out & (heads > 0)))
    return Outliers(mean, most, heads, trend, z, q, z_of_layers, cut, how, found, sinks)


def _log(mass: Floats) -> Floats:
    return np.log(np.maximum(mass, np.finfo(np.float32).tiny))


def _place(index: npt.NDArray[np.int64], tokens: int) -> Floats:
    """Where a token stands, stretched at both ends, where mass changes fastest: log odds of its place."""
    return np.log((index + 1.0) / (tokens - index))


def _trend(at: Floats, logs: Floats) -> Floats:
    """What a token's place explains: medians over equal stretches of `at`, and straight lines between their middles. A median
    does not notice a sink among `_LEAST` tokens."""
    middles: list[float] = []
    medians: list[float] = []
    start = 0
    for edge in np.linspace(at[0], at[-1], _STRETCHES + 1)[1:]:
        stop = int(np.searchsorted(at, edge, side="right"))
        if stop == start or (stop - start < _LEAST and stop < len(at)):
            continue  # too few to stand alone: with those that come
        start = min(start, max(0, stop - _LEAST))
        middles.append(float(at[start:stop].mean()))
        medians.append(float(np.median(logs[start:stop])))
        start = stop
    if len(middles) < 2:
        return np.full_like(at, medians[0])
    x, y = np.array(middles), np.array(medians)
    # Before the first middle and behind the last, the nearest line goes on: mass is steepest at the ends.
    line = np.searchsorted(x, at).clip(1, len(x) - 1)
    slope = (y[line] - y[line - 1]) / (x[line] - x[line - 1])
    trend: Floats = y[line - 1] + slope * (at - x[line - 1])
    return trend
