"""Perplexity against position in the text, one line per arm, as a PNG or SVG file.

A point is exp of the mean loss over a bin of positions and its two neighbours: losses are averaged, never
perplexities. Colour says policy and budget, a dashed line says no pins, the full cache is black. Lines are
labelled at their right end, in their order there, so that nothing covers them. Not here: intervals, and
anything that is not in the record.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sinkpin.errors import InputError
from sinkpin.evaluate.atomic import write_together
from sinkpin.evaluate.labels import GAP, GREY, WIDTH, label_lines, label_room, plain
from sinkpin.evaluate.record import ArmResult, Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 40
_NEIGHBOURS = 1  # bins on either side that a point averages over, too

# Okabe and Ito's colours, told apart with any kind of colour vision, less black (the full cache) and yellow (too pale
# on white). More series than colours begin again with another marker.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("", "o", "s", "^", "D", "v")
_INK = "#222222"

# No date in an SVG, so that it repeats; the PNG's smaller for a moment's work.
_SAVE: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None}},
    "png": {"pil_kwargs": {"optimize": True}},
}

_HEIGHT, _DPI = 4.8, 200  # inches, dots per inch; shown at 800 pixels, 10 points are 14 pixels
_LEFT, _AXES_HEIGHT = 0.1, 0.745  # shares of the figure


def draw(result: Comparison, path: Path, *, bin_tokens: int | None = None) -> None:
    """Draw `result` into `path` (.png or .svg); `bin_tokens` is the width of a bin, by default a 40th of the
    span."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise InputError(f"cannot draw {path}: the suffix is {path.suffix!r}, and pictures are .png or .svg")
    if bin_tokens is not None and bin_tokens < 1:
        raise InputError(f"bins of {bin_tokens} tokens hold nothing to draw; give 1 or more")
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            f"matplotlib is not installed ({error}), so {path} cannot be drawn; pip install 'sinkpin[plot]'"
        ) from error

    # A fixed salt makes the same result the same SVG, byte for byte; the caller's own settings are left out on purpose.
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "agg", "svg.hashsalt": "sinkpin"}):
        height = max(_HEIGHT, GAP * (len(result.arms) + 2) / 72 / _AXES_HEIGHT)
        figure = Figure(figsize=(WIDTH, height), dpi=_DPI, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_axes((_LEFT, 0.115, 1 - _LEFT - label_room(result.arms), _AXES_HEIGHT))
        _plot(figure, axes, result, bin_tokens)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_together({path: lambda file: figure.savefig(file, format=kind, **_SAVE[kind])})
        except OSError as error:
            raise InputError(
                f"cannot write {path} ({error.strerror or error}); choose another place"
            ) from error


def _plot(figure: "Figure", axes: "Axes", result: Comparison, bin_tokens: int | None) -> None:
    span = int(result.positions[-1] - result.positions[0]) + 1
    width = bin_tokens or math.ceil(span / BINS)
    styles = _styles(result.arms)
    ends: dict[str, float] = {}
    for arm in result.arms:
        middles, perplexities = binned(result.positions, result.losses[arm.name], width)
        ends[arm.name] = float(perplexities[-1])
        colour, marker = styles[arm.name]
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
    _ticks(axes)
    if len(middles) > 1:
        axes.set_xlim(float(middles[0]), float(middles[-1]))
    axes.set_xlabel("position in the text (tokens)", color=_INK, fontsize=10)
    axes.set_ylabel("perplexity (log scale; lower is better)", color=_INK, fontsize=10)
    inch = 1 / figure.get_figheight()
    figure.text(
        0.02,
        1 - 0.25 * inch,
        f"Perplexity along the text: {result.model}",
        fontsize=12,
        weight="bold",
        color=_INK,
    )
    figure.text(
        0.02,
        1 - 0.5 * inch,
        f"Each point is a mean over up to {width * (2 * _NEIGHBOURS + 1):,} tokens. Dashed lines have no pinned tokens.",
        fontsize=9.5,
        color=GREY,
    )
    axes.grid(axis="y", which="major", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#888888")
    axes.tick_params(colors=_INK, labelsize=9.5)
    label_lines(figure, axes, result.arms, styles, ends)


def binned(
    positions: npt.NDArray[np.int64], losses: npt.NDArray[np.float32], width: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
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
    first = np.maximum(np.arange(len(counts)) - _NEIGHBOURS, 0)
    last = np.minimum(np.arange(len(counts)) + _NEIGHBOURS + 1, len(counts))
    total, count = (np.concatenate(([0], np.cumsum(each))) for each in (sums, counts))
    return middles, np.exp((total[last] - total[first]) / (count[last] - count[first]))


def _styles(arms: list[ArmResult]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each arm: one pair for each policy and budget, so pinned and unpinned share
    theirs."""
    series = list(dict.fromkeys((arm.family, arm.budget_tokens) for arm in arms if arm.policy != "full"))
    styles = {}
    for arm in arms:
        if arm.policy == "full":
            styles[arm.name] = ("#000000", "")
        else:
            turn, place = divmod(series.index((arm.family, arm.budget_tokens)), len(_COLOURS))
            styles[arm.name] = (_COLOURS[place], _MARKERS[turn % len(_MARKERS)])
    return styles


def _ticks(axes: "Axes") -> None:
    """Plain numbers (20, 50, 100, 1,000) where a log axis would say 10², and enough of them on a short span."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, StrMethodFormatter

    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    low, high = axes.get_ylim()
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8), tuple(np.arange(1, 10, 0.5))):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        if sum(low <= tick <= high for tick in ticks) >= 4:
            break
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: plain(tick)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(low, high)
