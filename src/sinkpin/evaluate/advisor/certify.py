"""The promise: a few settings, fixed beforehand, tested in a fixed order on text that had no part in choosing them.

The order is from the largest budget to the chosen one: the chosen setting and up to `STEPS` larger budgets of the same policy
and pins. Each is tested once at the full level, and the first that fails ends it (fixed-sequence testing): the
probability that *anything* false is promised is then that of one test, without a correction. Suppose some of them are
really above the limit. To promise any of those, the first of them in the order has to be passed, which happens in one case of twenty.

Not here: the choice (`search`).
"""

from collections.abc import Callable, Sequence

from sinkpin.evaluate.advisor.bound import bound
from sinkpin.evaluate.advisor.passages import Passage
from sinkpin.evaluate.advisor.search import Measure, Trial
from sinkpin.evaluate.advisor.settings import Setting
from sinkpin.evaluate.advisor.workloads import Line

STEPS = 2


def ladder(chosen: Setting, lines: Sequence[Line]) -> list[Setting]:
    """What is certified, in order: the last is the chosen one. Nothing of the certifying part is needed to say it."""
    line = next(line for line in lines if chosen in line)
    at = line.index(chosen)
    return list(reversed(line[at : at + STEPS + 1]))


def certify(
    rungs: Sequence[Setting],
    limit: float,
    passages: Sequence[Passage],
    measure: Measure,
    bytes_of: Callable[[Setting], int],
    resamples: int = 10_000,
) -> list[Trial]:
    """The tests that were made, in order, up to and with the first that failed."""
    found = measure(rungs, passages)  # together, since they share the run of the full cache
    trials = []
    for rung in rungs:
        seen = bound(found[rung.name], resamples)
        trials.append(Trial(rung, bytes_of(rung), seen, seen.within(limit)))
        if not trials[-1].within:
            break
    return trials


def promised(trials: Sequence[Trial]) -> Trial | None:
    """The last that passed: of the settings that may be promised, the one with the fewest bytes."""
    return next((trial for trial in reversed(trials) if trial.within), None)
