"""What an arm's outcomes amount to: its score, each cell's, and the difference from the full cache, with intervals.

Plain numbers: neither torch nor transformers. Not here: what follows from them, in words (`verdict`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkpin.evaluate.probes.base import Cell, Outcome, Probe
from sinkpin.evaluate.probes.intervals import Interval


def score(probe: Probe, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """`score`, `ci95` and `n`."""
    values = [outcome.value for outcome in outcomes]
    low, high = probe.interval(values, [outcome.group for outcome in outcomes])
    return {"score": float(np.mean(values)), "ci95": (low, high), "n": len(values)}


def cells(probe: Probe, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One object for each cell of the grid, in the order of the trials: its place on each axis, and its score. A cell with one
    answer has no interval of a mean."""
    found: dict[Cell, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.cell, []).append(outcome)
    return [{**dict(cell), **score(probe, own)} for cell, own in found.items() if cell]


def difference(
    probe: Probe, outcomes: Sequence[Outcome], full: Sequence[Outcome]
) -> tuple[float, Interval] | tuple[None, None]:
    """`outcomes` less `full`, over the questions that both answered; None where there is none."""
    reference = {outcome.key: outcome.value for outcome in full}
    both = [outcome for outcome in outcomes if outcome.key in reference]
    if not both:
        return None, None
    own, others = [outcome.value for outcome in both], [reference[outcome.key] for outcome in both]
    interval = probe.difference(own, others, [outcome.group for outcome in both])
    return float(np.mean(own) - np.mean(others)), interval


def measures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The mean of whatever else was measured."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.measures)
    return {name: float(np.mean([outcome.measures[name] for outcome in outcomes])) for name in names}
