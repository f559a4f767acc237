"""Which arms are drawn in which panel, so that a picture of many arms can still be read.

Few arms share one panel. More are parted by budget, one row each, and where that is not enough by pins: a column
without and one with. What is left out even then is said in words. Not here: drawing (`picture`, `panel`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sinkpin.evaluate.pairs import usual
from sinkpin.evaluate.record import ArmResult

MOST = 8  # lines in a panel, beside the full cache's
MOST_IN_COLUMNS = 12  # the same where none shares its colour with another
ROWS = 4


@dataclass(frozen=True)
class Panel:
    """`arms[0]` is the full cache. No title where there is one panel."""

    title: str
    arms: list[ArmResult]


def panels(arms: Sequence[ArmResult]) -> tuple[list[list[Panel]], str]:
    """Rows of panels, and what they leave out (empty if nothing)."""
    full, *others = arms
    if len(others) <= MOST:
        return [[Panel("", [full, *others])]], ""
    levels = list(dict.fromkeys(arm.level for arm in sorted(others, key=lambda arm: arm.budget_tokens or 0)))
    by_level = {level: [arm for arm in others if arm.level == level] for level in levels}
    left_out = []
    if len(levels) > ROWS:
        left_out.append(f"the smallest {ROWS} of {len(levels)} budgets")
    if all(len(group) <= MOST for group in by_level.values()):
        rows = [[Panel(_title(group), [full, *group])] for group in list(by_level.values())[:ROWS]]
        return rows, _only(left_out)

    without = [arm for arm in others if not arm.pinned]
    pinned = [arm for arm in others if arm.pinned]
    counts = {arm.pinned_tokens for arm in pinned}
    if len(counts) > 1:
        shown = max(pinned, key=usual).pinned_tokens
        pinned = [arm for arm in pinned if arm.pinned_tokens == shown]
        left_out.append(f"{'0 and ' if without else ''}{shown} pins of {len(counts) + bool(without)} numbers")
    rows = []
    for level in levels[:ROWS]:
        row = []
        for column in (without, pinned):
            group = [arm for arm in column if arm.level == level]
            if not group:
                continue
            if len(group) > MOST_IN_COLUMNS:
                lowest = sorted(group, key=lambda arm: arm.ppl)[:MOST_IN_COLUMNS]
                left_out.append(f"the {MOST_IN_COLUMNS} lowest of {len(group)} arms in a panel")
                group = [arm for arm in group if arm in lowest]
            pins = f"{group[0].pinned_tokens} pinned" if column is pinned else "nothing pinned"
            row.append(Panel(f"{_title(group)}, {pins}", [full, *group]))
        if row:
            rows.append(row)
    return rows, _only(left_out)


def _title(group: Sequence[ArmResult]) -> str:
    held = sorted({arm.budget_tokens or 0 for arm in group})
    entries = f"{held[0]:,} entries" if len(held) == 1 else f"{held[0]:,} to {held[-1]:,} entries"
    level = group[0].level
    return entries if level.isdecimal() else f"{level}: {entries}"


def _only(left_out: Sequence[str]) -> str:
    return f"Drawn: {', '.join(dict.fromkeys(left_out))}; all are in results.json." if left_out else ""
