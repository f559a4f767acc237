"""A long run as a picture: perplexity, memory and speed against tokens fed, one above the other.

Drawn from the JSON document, so that a committed result can be drawn anywhere. Needs matplotlib, which is optional
(`sinkpin[plot]`). Not here: the picture of a comparison (`evaluate.picture`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkpin.atomic import write_together
from sinkpin.errors import InputError

PICTURE = "stream.png"
_INK, _BLUE, _ORANGE = "#222222", "#0072B2", "#D55E00"
_MIB = 2**20


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Raises `InputError`, whose cause is an `ImportError`, where there is no matplotlib."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            f"matplotlib is not installed ({error}), so {path} cannot be drawn; `pip install matplotlib`, or install "
            "sinkpin with its extra sinkpin[plot]"
        ) from error

    rows = document["rows"]
    fed = [int(row["name"].removeprefix("to ").replace(",", "")) for row in rows]
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "agg"}):
        figure = Figure(figsize=(8, 6.4), dpi=200, facecolor="white", layout="constrained")
        FigureCanvasAgg(figure)
        settings = document["settings"]
        figure.suptitle(
            f"{fed[-1]:,} tokens through {settings['entries']:,} entries: {document['model']}",
            x=0.02,
            ha="left",
            fontsize=12,
            weight="bold",
            color=_INK,
        )
        quality, memory, speed = figure.subplots(3, 1, sharex=True)
        quality.plot(fed, [row["ppl"] for row in rows], color=_BLUE, marker="o", markersize=3)
        quality.set_ylabel("perplexity\nof each block")
        held = [row["resident_bytes"] for row in rows]
        if None not in held:
            memory.plot(fed, [size / _MIB for size in held], color=_BLUE, marker="o", markersize=3)
            memory.annotate(
                "process", (fed[-1], held[-1] / _MIB), (0, -12), textcoords="offset points", ha="right"
            )
        memory.plot(fed, [row["nbytes"] / _MIB for row in rows], color=_ORANGE, marker="o", markersize=3)
        memory.annotate(
            "cache", (fed[-1], rows[-1]["nbytes"] / _MIB), (0, 6), textcoords="offset points", ha="right"
        )
        memory.set_ylabel("memory (MiB)")
        speed.plot(fed, [row["tokens_per_s"] for row in rows], color=_BLUE, marker="o", markersize=3)
        speed.set_ylabel("tokens/s")
        speed.set_xlabel("tokens fed")
        for axes in (quality, memory, speed):
            axes.set_ylim(bottom=0)  # flat must look flat, and noise like noise
            axes.margins(y=0.15)
            axes.spines[["top", "right"]].set_visible(False)
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_together({path: lambda file: figure.savefig(file, format="png")})
        except OSError as error:
            raise InputError(
                f"cannot write {path} ({error.strerror or error}); choose another place"
            ) from error
