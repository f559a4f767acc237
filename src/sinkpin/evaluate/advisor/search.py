"""Choosing: the setting of the fewest bytes whose bound is below the limit on the part to choose on.

Economical, not exhaustive: along a line (one policy, one kind of pins) loss is taken to fall with the budget, so budgets are
bisected; what could not be smaller than the best so far is not run; and what is clearly above the limit on the first few
passages is not run on the others. All of that may miss a better setting; none of it touches the promise, which rests on other
text (`certify`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sinkpin.evaluate.advisor.bound import Bound, bound
from sinkpin.evaluate.advisor.passages import Passage
from sinkpin.evaluate.advisor.settings import Setting
from sinkpin.evaluate.advisor.workloads import Line
from sinkpin.statistics import Floats

Measure = Callable[[Sequence[Setting], Sequence[Passage]], Mapping[str, Floats]]
"""The differences `[blocks]` of each setting, by its name, on some passages."""

_SCREEN = 5
"""Blocks after which a setting clearly above the limit is given up."""


@dataclass(frozen=True)
class Trial:
    """One setting on one part: its bytes (`nbytes()` of one full row), its bound, and whether that is below the limit."""

    setting: Setting
    bytes: int
    bound: Bound
    within: bool


def search(
    lines: Sequence[Line],
    limit: float,
    passages: Sequence[Passage],
    measure: Measure,
    bytes_of: Callable[[Setting], int],
    resamples: int = 10_000,
) -> list[Trial]:
    """Everything that was tried, in order; `best` says what is chosen."""
    reach = [
        [0, len(line)] for line in lines
    ]  # of each line, the indices among which its smallest passing one is
    best: int | None = None
    trials: list[Trial] = []
    while True:
        asked: list[tuple[int, int]] = []
        for number, (line, ends) in enumerate(zip(lines, reach, strict=True)):
            while best is not None and ends[1] > ends[0] and bytes_of(line[ends[1] - 1]) >= best:
                ends[1] -= 1
            if ends[0] < ends[1]:
                asked.append((number, (ends[0] + ends[1]) // 2))
        if not asked:
            return trials
        settings = [lines[number][index] for number, index in asked]
        found = _try(settings, limit, passages, measure, resamples)
        for (number, index), setting in zip(asked, settings, strict=True):
            trial = Trial(setting, bytes_of(setting), *found[setting.name])
            trials.append(trial)
            if trial.within:
                reach[number][1] = index
                best = trial.bytes if best is None else min(best, trial.bytes)
            else:
                reach[number][0] = index + 1


def best(trials: Sequence[Trial]) -> Trial | None:
    """The fewest bytes within the limit; of equal bytes the lower bound."""
    passed = [trial for trial in trials if trial.within]
    return min(passed, key=lambda trial: (trial.bytes, trial.bound.high)) if passed else None


def _try(
    settings: Sequence[Setting],
    limit: float,
    passages: Sequence[Passage],
    measure: Measure,
    resamples: int,
) -> dict[str, tuple[Bound, bool]]:
    """Screened on the first passages; those left on all. What is given up is beyond the limit, so never within it."""
    few = 0
    while few < len(passages) and sum(passage.blocks for passage in passages[:few]) < _SCREEN:
        few += 1
    early = measure(settings, passages[:few])
    bounds = {name: bound(values, resamples) for name, values in early.items()}
    left = [setting for setting in settings if not bounds[setting.name].beyond(limit)]
    late = measure(left, passages[few:]) if left and few < len(passages) else {}
    for name, values in late.items():
        bounds[name] = bound(np.concatenate([early[name], values]), resamples)
    return {name: (found, found.within(limit)) for name, found in bounds.items()}
