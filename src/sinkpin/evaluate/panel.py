"""One panel: perplexity against position, one line an arm, on a log scale with plain numbers.

A point is exp of the mean loss over a bin of positions and its two neighbours: losses are averaged, never
perplexities. Not here: the page around the panels (`picture`), and the labels at the lines' ends (`labels`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sinkpin.evaluate.labels import plain
from sinkpin.evaluate.record import ArmResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEIGHBOURS = 1  # bins on either side that a point averages over, too
INK = "#222222"

# Okabe and Ito's colours, told apart with any kind of colour vision, less black (the full cache) and yellow (too pale
# on white), and four more. More series than colours begin again with another marker.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#882255", "#999933", "#6A3D9A", "#8C564B"),
)
_MARKERS = ("", "o", "s", "^", "D", "v")

_LEAST_SPAN = 1.2  # a y axis spans at least this factor, so that noise does not look like a difference

Line = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""Positions and perplexities of an arm's points."""


def binned(positions: npt.NDArray[np.int64], losses: npt.NDArray[np.float32], width: int) -> Line:
    """Mean position of each bin of `width` positions, and the perplexity of it and its neighbours together.

    A last bin less than half full joins the one before it, since a few tokens make a wild point; a bin
    without scored tokens is left out.
    """
    bins = (positions - positions[0]) // width
    if bins[-1] > 0 and np.count_nonzero(bins == bins[-1]) < width / 2:
        bins[bins == bins[-1]] -= 1
    _, inverse, counts = np.unique(bins, return_inverse=True, return_counts=True)
    middles = np.bincount(inverse, weights=positions) / counts
    sums = np.bincount(inverse, weights=losses)
    first = np.maximum(np.arange(len(counts)) - NEIGHBOURS, 0)
    last = np.minimum(np.arange(len(counts)) + NEIGHBOURS + 1, len(counts))
    total, count = (np.concatenate(([0], np.cumsum(each))) for each in (sums, counts))
    return middles, np.exp((total[last] - total[first]) / (count[last] - count[first]))


def styles(arms: Sequence[ArmResult], *, by_level: bool) -> dict[str, tuple[str, str]]:
    """Colour and marker of each arm, shared by its pinned and unpinned versions; `by_level`: not by those at another
    budget."""

    def series(arm: ArmResult) -> tuple[str, ...]:
        return (arm.family, arm.frame or "", arm.level if by_level else "")

    known = list(dict.fromkeys(series(arm) for arm in arms if arm.policy != "full"))
    found = {}
    for arm in arms:
        turn, place = divmod(0 if arm.policy == "full" else known.index(series(arm)), len(_COLOURS))
        style = (_COLOURS[place], _MARKERS[turn % len(_MARKERS)])
        found[arm.name] = ("#000000", "") if arm.policy == "full" else style
    return found


def limits(lines: Sequence[Line]) -> tuple[float, float]:
    """The y range that holds all `lines`, a little air included."""
    low = min(float(perplexities.min()) for _, perplexities in lines)
    high = max(float(perplexities.max()) for _, perplexities in lines)
    air = max((high / low) ** 0.05, math.sqrt(max(_LEAST_SPAN / (high / low), 1.0)))
    return low / air, high * air


def plot(
    axes: "Axes",
    arms: Sequence[ArmResult],
    lines: Mapping[str, Line],
    style: Mapping[str, tuple[str, str]],
    y_range: tuple[float, float],
) -> None:
    for arm in arms:
        middles, perplexities = lines[arm.name]
        colour, marker = style[arm.name]
        full = arm.policy == "full"
        axes.plot(
            middles,
            perplexities,
            color=colour,
            linestyle="-" if full or arm.pinned else "--",
            linewidth=2.2 if full else 1.6,
            marker=marker if len(middles) > 1 else "o",  # a line of one point would not show
            markersize=3.5,
            solid_joinstyle="round",
            zorder=4 if full else 3,
        )
    axes.set_yscale("log")
    _ticks(axes, *y_range)
    if len(middles) > 1:
        axes.set_xlim(float(middles[0]), float(middles[-1]))
    axes.grid(axis="y", which="major", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#888888")
    axes.tick_params(colors=INK, labelsize=9.5)


def _ticks(axes: "Axes", low: float, high: float) -> None:
    """Plain numbers (20, 50, 100, 1,000) where a log axis would say 10²."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, StrMethodFormatter

    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_major_locator(FixedLocator(y_ticks(low, high)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: plain(tick)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(low, high)


def y_ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, at least two: by digits over decades, or evenly over a short span."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 4:
            return ticks
    power = 10.0 ** math.ceil(math.log10(high - low))
    while True:
        for step in (power, power / 2, power / 5):
            first, last = math.ceil(low / step), math.floor(high / step)
            if last - first >= 2:
                return [number * step for number in range(first, last + 1)]
        power /= 10
