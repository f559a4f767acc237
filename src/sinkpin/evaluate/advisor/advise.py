"""From passages and settings to an answer: choose on one part, certify on the other, or say what is lacking.

What measures is an argument, so that the statistics can be tested on drawn numbers. Not here: a model (`measure`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sinkpin.evaluate.advisor.advice import Advice, Memory, Part, Verdict
from sinkpin.evaluate.advisor.bound import FEWEST
from sinkpin.evaluate.advisor.certify import certify, ladder, promised
from sinkpin.evaluate.advisor.passages import Passage, blocks
from sinkpin.evaluate.advisor.search import Measure, Trial, best, search
from sinkpin.evaluate.advisor.settings import Setting
from sinkpin.evaluate.advisor.workloads import Line

LEAST_TO_CHOOSE = 10
"""Blocks of the choosing part below which nothing is run: the choice would be chance."""


def advise(
    lines: Sequence[Line],
    parts: tuple[Sequence[Passage], Sequence[Passage]],
    limit: float,
    measure: Measure,
    bytes_of: Callable[[Setting], int],
    *,
    about: Mapping[str, Any],
    memory_of: Callable[[Setting], Memory] | None = None,
    emit: Callable[[Setting], Mapping[str, str]] | None = None,
    resamples: int = 10_000,
) -> Advice:
    """The answer. `parts`: to choose on, to certify on. `about`: fields of `Advice` that are known beforehand.

    Where a part has too few blocks, nothing is measured, and the answer is how many tokens are lacking.
    """
    choosing, certifying = parts
    said: dict[str, Any] = dict(about)
    said |= {"max_loss": limit, "parts": {"choosing": _part(choosing), "certifying": _part(certifying)}}
    if lacking := tokens_lacking(parts, said["length"], said["first"]):
        return Advice(verdict="not enough text", needed=lacking, **said)
    tried = search(lines, limit, choosing, measure, bytes_of, resamples)
    said["choosing"] = tried
    chosen = best(tried)
    if chosen is None:
        verdict, needed = _lacking(tried, limit, choosing)
        return Advice(verdict=verdict, needed=needed, **said)
    tested = certify(ladder(chosen.setting, lines), limit, certifying, measure, bytes_of, resamples)
    said["certificate"] = tested
    held = promised(tested)
    if held is None:
        verdict, needed = _lacking(tested, limit, certifying)
        return Advice(verdict=verdict, needed=needed, **said)
    return Advice(
        verdict="promised",
        memory=None if memory_of is None else memory_of(held.setting),
        emitted={} if emit is None else emit(held.setting),
        **said,
    )


def tokens_lacking(parts: tuple[Sequence[Passage], Sequence[Passage]], length: int, first: int) -> int | None:
    """About how many more tokens of text there must be for both parts to have blocks enough; None where they have."""
    choosing, certifying = (blocks(part) for part in parts)
    if certifying >= FEWEST and choosing >= LEAST_TO_CHOOSE:
        return None
    # The parts have about the same size, so the one that certifies says how much is needed.
    each = blocks([Passage("", tuple(range(length)), first)])
    wanted = 2 * math.ceil(FEWEST / each) * length
    there = sum(len(passage.ids) for part in parts for passage in part)
    return max(wanted - there, length)


def _lacking(trials: Sequence[Trial], limit: float, part: Sequence[Passage]) -> tuple[Verdict, int | None]:
    """No setting of `trials` passed: is it that they lose too much, or that the interval is too wide?"""
    needed = [count for trial in trials if (count := trial.bound.blocks_needed(limit)) is not None]
    if not needed:
        return "none qualifies", None
    tokens = sum(len(passage.ids) for passage in part) / blocks(part)  # of text for each block
    more = max(min(needed) - blocks(part), 1)
    return "not enough text", math.ceil(2 * more * tokens)  # twice: half of it is to choose on


def _part(passages: Sequence[Passage]) -> Part:
    return Part(len(passages), blocks(passages), sum(len(passage.ids) for passage in passages))
