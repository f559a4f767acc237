"""A probe's record as text: a line for each arm, the grid where it has one, and the sentence.

Not here: the page (`sinkpin report`), and where it is printed.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

from sinkpin.evaluate.probes.record import ProbeArm, ProbeResult

_HEAD = ("arm", "score %", "95 %", "n", "− full", "95 %", "evicted", "KV MiB")


def as_text(result: ProbeResult, *, width: int = 100, notes: bool = False) -> str:
    more = list(dict.fromkeys(name for arm in result.arms for name in arm.measures))
    rows = [(*_HEAD, *(f"{name} %" for name in more)), *(_line(arm, more) for arm in result.arms)]
    parts = [
        f"{result.model}: {result.probe}, chance {100 * result.chance:.3g} % ({result.chance_says})",
        "",
        _table(rows),
    ]
    for grid in _grids(result):
        parts += ["", grid]
    parts += ["", textwrap.fill(result.sentence, width)]
    if notes:
        parts.append("")
        parts += [textwrap.fill(f"note: {note}", width, subsequent_indent="  ") for note in result.notes]
    return "\n".join(parts)


def _line(arm: ProbeArm, more: Sequence[str]) -> tuple[str, ...]:
    delta, interval = arm.delta, arm.delta_ci95
    return (
        arm.name,
        f"{100 * arm.score:.1f}",
        f"{100 * arm.ci95[0]:.0f} to {100 * arm.ci95[1]:.0f}",
        str(arm.n),
        "-" if interval is None or delta is None else f"{100 * delta:+.1f}",
        "-" if interval is None else f"{100 * interval[0]:+.0f} to {100 * interval[1]:+.0f}",
        f"{arm.evicted:,.0f}",
        f"{arm.kv_bytes_steady / 2**20:.1f}",
        *(f"{100 * arm.measures[name]:.0f}" if name in arm.measures else "-" for name in more),
    )


def _grids(result: ProbeResult) -> list[str]:
    """Scores by the values of each axis: one line an arm, the mean of the cells."""
    found = []
    for axis in result.axes:
        values = list(dict.fromkeys(cell[axis] for arm in result.arms for cell in arm.cells))
        if len(values) < 2:
            continue
        rows: list[tuple[str, ...]] = [(f"score % by {axis}", *(str(value) for value in values))]
        for arm in result.arms:
            rows.append((arm.name, *(_mean([c for c in arm.cells if c[axis] == value]) for value in values)))
        found.append(_table(rows))
    return found


def _mean(cells: Sequence[dict[str, Any]]) -> str:
    answers = sum(cell["n"] for cell in cells)
    return f"{100 * sum(cell['score'] * cell['n'] for cell in cells) / answers:.0f}" if answers else "-"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "─" * max(map(len, lines)))
    return "\n".join(lines)
