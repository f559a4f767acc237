"""Perplexity against position in the text as a PNG or SVG file: the page, and the file.

Colour says policy (and budget, where one panel holds several), a dashed line says no pins, the full cache is black.
All panels share their scales. Not here: a panel's lines (`panel`), which arms go into which panel (`facets`),
intervals, and anything that is not in the record.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkpin.atomic import write_together
from sinkpin.errors import InputError
from sinkpin.evaluate.facets import Panel, panels
from sinkpin.evaluate.labels import GAP, GREY, label_lines, label_room
from sinkpin.evaluate.panel import INK, NEIGHBOURS, Line, binned, limits, plot, styles
from sinkpin.evaluate.record import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 40

# No date in an SVG, so that it repeats; the PNG's smaller for a moment's work.
_SAVE: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None}},
    "png": {"pil_kwargs": {"optimize": True}},
}

_DPI = 200  # a picture of one panel is 1,600 dots wide; shown at 800 pixels, 10 points are 14 pixels
_WIDTH, _HEIGHT = 8.0, 3.6  # inches: of a page of one column, and of the axes of a lone panel
_SMALL_WIDTH, _SMALL_HEIGHT = 3.1, 2.4  # inches: of the axes of one of several columns, rows
_LEFT, _TOP, _BOTTOM, _BETWEEN = 0.8, 0.7, 0.55, 0.75  # inches around and between axes


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
            f"matplotlib is not installed ({error}), so {path} cannot be drawn; `pip install matplotlib`, or install "
            "sinkpin with its extra sinkpin[plot]"
        ) from error

    # A fixed salt makes the same result the same SVG, byte for byte; the caller's own settings are left out on purpose.
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "agg", "svg.hashsalt": "sinkpin"}):
        figure = Figure(dpi=_DPI, facecolor="white")
        FigureCanvasAgg(figure)
        _page(figure, result, bin_tokens)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_together({path: lambda file: figure.savefig(file, format=kind, **_SAVE[kind])})
        except OSError as error:
            raise InputError(
                f"cannot write {path} ({error.strerror or error}); choose another place"
            ) from error


def _page(figure: "Figure", result: Comparison, bin_tokens: int | None) -> None:
    rows, left_out = panels(result.arms)
    span = int(result.positions[-1] - result.positions[0]) + 1
    width = bin_tokens or math.ceil(span / BINS)
    drawn = {arm.name: arm for row in rows for panel in row for arm in panel.arms}
    lines = {name: binned(result.positions, result.losses[name], width) for name in drawn}
    points = min(width * (2 * NEIGHBOURS + 1), result.scored_tokens)
    said = [
        f"Running mean over {points:,} tokens. Dashed: nothing pinned.",
        "Names in the order in which the lines end; beside them, perplexity over all scored tokens.",
        left_out,
    ]
    _lay_out(
        figure, rows, lines, f"Perplexity along the text: {result.model}", [line for line in said if line]
    )


def _lay_out(
    figure: "Figure", rows: list[list[Panel]], lines: dict[str, Line], title: str, said: list[str]
) -> None:
    """All measures in inches, from the top left."""
    arms = {arm.name: arm for row in rows for panel in row for arm in panel.arms}
    style = styles(list(arms.values()), by_level=len(rows) == 1 and len(rows[0]) == 1)
    y_range = limits(list(lines.values()))
    columns, room = max(map(len, rows)), label_room(list(arms.values()))
    across = _WIDTH - _LEFT - room if columns == 1 else _SMALL_WIDTH
    page = (_LEFT + across + room) * columns
    least = _HEIGHT if len(rows) == 1 else _SMALL_HEIGHT
    heights = [max(least, GAP * (max(len(panel.arms) for panel in row) + 1)) for row in rows]
    titles = 0.25 if any(panel.title for panel in rows[0]) else 0.0
    top = _TOP + 0.19 * (len(said) - 1) + titles
    total = top + sum(heights) + _BETWEEN * (len(rows) - 1) + _BOTTOM
    figure.set_size_inches(page, total)

    figure.text(0.16 / page, 1 - 0.25 / total, title, fontsize=12, weight="bold", color=INK)
    for number, line in enumerate(said):
        figure.text(0.16 / page, 1 - (0.48 + 0.19 * number) / total, line, fontsize=9.5, color=GREY)
    floor = total - top
    for row, height in zip(rows, heights, strict=True):
        floor -= height
        for column, panel in enumerate(row):
            left = _LEFT + column * (_LEFT + across + room)
            axes = figure.add_axes((left / page, floor / total, across / page, height / total))
            plot(axes, panel.arms, lines, style, y_range)
            axes.set_title(panel.title, loc="left", fontsize=10, weight="bold", color=INK)
            if row is rows[-1]:
                axes.set_xlabel("position in the text (tokens)", color=INK, fontsize=10)
            if column == 0:
                axes.set_ylabel("perplexity (log scale)", color=INK, fontsize=10)
            ends = {arm.name: float(lines[arm.name][1][-1]) for arm in panel.arms}
            colours = {name: colour for name, (colour, _) in style.items()}
            label_lines(figure, axes, panel.arms, colours, ends, room=room)
        floor -= _BETWEEN
