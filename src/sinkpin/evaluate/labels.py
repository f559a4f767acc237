"""Labels at the right end of a panel's lines: each arm's name and its perplexity over all scored tokens.

Matplotlib's legends cover lines or stand far from them; these stand where the lines end, in that order, and are pushed
apart where lines end close together. Not here: the lines themselves (`panel`).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sinkpin.evaluate.record import ArmResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#555555"
_LABEL_POINTS = 9.0
GAP = 1.35 * _LABEL_POINTS / 72  # inches from label to label
_LEADER = 24 / 72  # inches from the axes to a label, bridged by a thin line
_LONGEST_NAME = 34


def plain(number: float) -> str:
    if number >= 1e6:
        return f"{number / 1e6:,.4g} M"
    return f"{number:,.0f}" if number >= 1e3 else f"{number:.4g}"


def label_room(arms: Sequence[ArmResult]) -> float:
    """Inches that the longest label needs, its leader line and margin included."""
    name = max(len(shortened(arm.name)) for arm in arms)
    number = max(len(_number(arm)) for arm in arms)
    return min(4.0, 0.62 * _LABEL_POINTS * (name + number + 1) / 72 + _LEADER + 0.16)


def label_lines(
    figure: "Figure",
    axes: "Axes",
    arms: Sequence[ArmResult],
    colours: Mapping[str, str],
    ends: Mapping[str, float],
    *,
    room: float,
) -> None:
    """Name and overall perplexity in the `room` inches right of the axes, where each line ends (`ends`, in data)."""
    figure.canvas.draw()  # settles the transforms that place labels
    width, height = figure.get_figwidth(), figure.get_figheight()
    bottom, top = axes.bbox.y0 / figure.dpi, axes.bbox.y1 / figure.dpi
    order = sorted(arms, key=lambda arm: ends[arm.name])
    wanted = [float(axes.transData.transform((0, ends[arm.name]))[1]) / figure.dpi for arm in order]
    places = spread(wanted, gap=GAP, low=bottom, high=top)
    edge = axes.bbox.x1 / figure.dpi
    name_left, number_right = (edge + _LEADER) / width, (edge + room - 0.16) / width
    figure.text(
        number_right,
        (places[-1] + 1.2 * GAP) / height,
        "all tokens",
        ha="right",
        va="center",
        fontsize=_LABEL_POINTS,
        color=GREY,
    )
    for arm, place in zip(order, places, strict=True):
        colour = colours[arm.name]
        axes.annotate(
            "",
            xy=(1.0, ends[arm.name]),
            xycoords=("axes fraction", "data"),
            xytext=(name_left - 4 / 72 / width, place / height),
            textcoords="figure fraction",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0},
            annotation_clip=False,
        )
        weight = "bold" if arm.policy == "full" else "normal"
        font: dict[str, Any] = {"va": "center", "fontsize": _LABEL_POINTS, "color": colour, "weight": weight}
        figure.text(name_left, place / height, shortened(arm.name), ha="left", **font)
        figure.text(number_right, place / height, _number(arm), ha="right", **font)


def shortened(name: str) -> str:
    """An arm's name in at most `_LONGEST_NAME` characters, cut in its options, or else in its middle: the policy stands
    first, budget and pins last."""
    if len(name) <= _LONGEST_NAME:
        return name
    end = len(name) - name.rfind("]") if "]" in name else 0
    if not 0 < end <= 2 * _LONGEST_NAME // 3:
        end = _LONGEST_NAME // 2
    return f"{name[: _LONGEST_NAME - 1 - end]}…{name[-end:]}"


def _number(arm: ArmResult) -> str:
    return f"{arm.ppl:.1f}" if arm.ppl < 100 else plain(round(arm.ppl))


def spread(wanted: list[float], *, gap: float, low: float, high: float) -> list[float]:
    """Places as near as possible to the ascending `wanted`, at least `gap` apart, between `low` and `high` if
    they fit.

    Neighbours that are too close become one block about its own mean, until no two blocks touch (isotonic
    regression).
    """
    blocks: list[tuple[float, int]] = []  # mean of (wanted - index * gap), length
    for index, want in enumerate(wanted):
        mean, length = want - index * gap, 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean, length = (before * count + mean * length) / (count + length), count + length
        blocks.append((mean, length))
    ceiling = max(high - gap * (len(wanted) - 1), low)
    means = [min(max(mean, low), ceiling) for mean, length in blocks for _ in range(length)]
    places = [mean + index * gap for index, mean in enumerate(means)]
    assert all(after - before > gap - 1e-9 for before, after in pairwise(places))
    return places
