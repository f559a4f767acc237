"""What a probe's numbers say, in words: whether the model can do the task at all, and which arms are worse at it.

Where the full cache is not better than chance, arms are not ranked: they could only differ by luck. Intervals are of each
arm by itself; with many arms, one in twenty excludes 0 by luck. Not here: the numbers (`tally`) and the table (`text`).
"""

from collections.abc import Sequence

from sinkpin.evaluate.probes.record import ProbeArm


def can(full: ProbeArm, chance: float) -> bool:
    """Whether the full cache beats chance: its interval lies above it."""
    return full.ci95[0] > chance


def sentence(arms: Sequence[ProbeArm], chance: float, chance_says: str, what: str) -> str:
    """`arms[0]` is the full cache; `what` is counted: right answers, say."""
    full, *others = arms
    reached = f"{_percent(full.score)} of {what} ({_range(full.ci95)}, {full.n} in all)"
    if not can(full, chance):
        few = full.score > chance
        shown = f", as far as {full.n} answer{'s show' if full.n != 1 else ' shows'}" if few else ""
        return (
            f"This model cannot do this task{shown}: with the full cache it reaches {reached}, and chance is {_percent(chance)} "
            f"({chance_says}). The arms are not ranked: between them there is nothing but luck."
            f"{' More --trials may show more.' if few else ''}"
        )
    said = [f"With the full cache the model reaches {reached}; chance is {_percent(chance)} ({chance_says})."]
    lost = [arm for arm in others if arm.delta_ci95 is not None and arm.delta_ci95[1] < 0]
    won = [arm for arm in others if arm.delta_ci95 is not None and arm.delta_ci95[0] > 0]
    same = [arm for arm in others if arm.delta_ci95 is not None and arm not in lost and arm not in won]
    none = [arm.name for arm in others if arm.delta_ci95 is None]
    if lost:
        said.append(f"Worse than full: {_listed(lost)}.")
    if won:
        said.append(f"Better than full: {_listed(won)}.")
    if same:
        said.append(f"Not told apart from full, which is not the same as equal: {_listed(same)}.")
    if none:
        said.append(
            f"No question was answered by full and by {', '.join(none)} too, so nothing is said of them."
        )
    return " ".join(said)


def _listed(arms: Sequence[ProbeArm]) -> str:
    ordered = sorted(arms, key=lambda arm: arm.delta or 0.0)
    return ", ".join(
        f"{arm.name} by {100 * (arm.delta or 0.0):+.0f} points ({_points(arm.delta_ci95)})" for arm in ordered
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def _range(interval: tuple[float, float]) -> str:
    return f"{100 * interval[0]:.0f} to {100 * interval[1]:.0f}"


def _points(interval: tuple[float, float] | None) -> str:
    assert interval is not None
    return f"{100 * interval[0]:+.0f} to {100 * interval[1]:+.0f}"
