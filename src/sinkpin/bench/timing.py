"""Turns, medians, paired ratios: whatever disturbs the machine for a while disturbs all arms alike.

A round is one step of each arm; every second round goes backwards, so that none always follows the same other. Ratios
are taken within rounds and the median is taken of them. Not here: what a step does, and what it should cost (`floor`).
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Progress = Callable[[str, int, int], None]
"""`(what, done, of)`."""
Seconds = npt.NDArray[np.float64]
"""`[rounds]`, NaN where an arm had no turn."""


def silent(what: str, done: int, of: int) -> None:
    """A progress that says nothing."""


def nothing() -> None:
    """What comes before a step where nothing has to."""


@dataclass(frozen=True)
class Step:
    """`run` is timed, `before` is not. `every`: has its turn in one of so many rounds only."""

    name: str
    run: Callable[[], object]
    before: Callable[[], object] = nothing
    every: int = 1


def interleave(
    steps: Sequence[Step],
    rounds: int,
    *,
    sync: Callable[[], None],
    progress: Progress = silent,
    what: str = "",
) -> dict[str, Seconds]:
    """Seconds of each step in each round. `sync` waits for the device."""
    seconds = {step.name: np.full(rounds, np.nan) for step in steps}
    assert len(seconds) == len(steps), "two steps of one name"
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()  # a collection would be charged to whoever is running
    try:
        for number in range(rounds):
            for step in steps if number % 2 == 0 else reversed(steps):
                if number % step.every:
                    continue
                step.before()
                sync()
                started = time.perf_counter()
                step.run()
                sync()
                seconds[step.name][number] = time.perf_counter() - started
            progress(what, number + 1, rounds)
    finally:
        if collecting:
            gc.enable()
    return seconds


def paired(mine: Seconds, theirs: Seconds) -> float | None:
    """Median over rounds of mine / theirs; None where no round had both."""
    both = np.isfinite(mine) & np.isfinite(theirs)
    return float(np.median(mine[both] / theirs[both])) if both.any() else None


def spread(seconds: Seconds) -> tuple[float, float, float]:
    """Median, tenth and ninetieth percentile of the rounds it had."""
    ran = seconds[np.isfinite(seconds)]
    return float(np.median(ran)), float(np.percentile(ran, 10)), float(np.percentile(ran, 90))
