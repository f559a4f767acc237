"""`sinkpin bench memory`: what keeps growing, and what a long prompt takes on the way.

Growth: once the budget is full, so many further tokens; the process is read again and again, the cache counts itself.
Peak: a long prompt in chunks against budget + chunk + workspace. The workspace is measured, not estimated: what one
forward of a chunk takes behind a DynamicCache of `entries`, less its keys and values; any cache needs that. What a
DynamicCache would hold is computed. Not covered: fragmentation over days.
"""

from typing import Any

import torch

from sinkpin.bench import floor, gate, machine
from sinkpin.bench.arms import Arm, arms_of, dynamic
from sinkpin.bench.floor import Floor
from sinkpin.bench.report import Report, Row
from sinkpin.bench.resident import Resident
from sinkpin.bench.settings import Memory
from sinkpin.bench.subject import Subject
from sinkpin.bench.timing import Progress, silent
from sinkpin.cache.bounded import BoundedCache
from sinkpin.errors import InputError

MARKS = 10
"""Readings while the further tokens are fed."""
_SETTLING = 8  # forwards of the same shape before the first reading


def run(subject: Subject, settings: Memory, progress: Progress = silent) -> Report:
    """Check, then measure. Raises `GateError` before anything is measured if an arm is wrong, `InputError` where the
    system tells nothing about memory."""
    torch.manual_seed(settings.seed)
    arms = arms_of(settings.policy)
    resident = Resident(subject.device)
    if resident.now() is None or not resident.restart_peak():
        raise InputError(
            "the memory of this process cannot be read here (no writable /proc/self/clear_refs): measure on Linux, or "
            "with --device cuda"
        )
    notes = machine.remarks()
    for arm in arms:
        gate.check(subject, arm, settings.sinks)
    least = floor.measure(subject, read_bytes=1 << 24)  # nothing here is timed
    workspace = _workspace(subject, settings, resident, least)
    rows = []
    for number, arm in enumerate(arms):
        rows.append(_growth(subject, settings, arm, resident, least))
        progress("memory", 2 * number + 1, 2 * len(arms))
        rows.append(_peak(subject, settings, arm, resident, least, workspace))
        progress("memory", 2 * number + 2, 2 * len(arms))
    notes.append(f"read: {resident.what}; a DynamicCache's bytes, which `ratio` is taken of, are computed")
    return Report(
        bench="memory",
        model=subject.name,
        machine=machine.describe(subject),
        settings=settings,
        floor={"entry_bytes": least.entry_bytes, "weight_bytes": least.weight_bytes},
        rows=rows,
        notes=notes,
    )


def _reading(resident: Resident) -> int:
    resident.settle()
    now = resident.now()
    assert now is not None, "checked when the run began"
    return now


def _growth(subject: Subject, settings: Memory, arm: Arm, resident: Resident, least: Floor) -> Row:
    """The process from the full budget on."""
    start = settings.entries + _SETTLING * settings.step
    stop = start + settings.tokens
    marks = [start + settings.tokens * (number + 1) // MARKS for number in range(MARKS)]
    with arm.cache(subject, settings.entries, settings.sinks, settings.entries) as cache:
        _feed(subject, cache, 0, settings.entries, settings.chunk)
        _feed(subject, cache, settings.entries, start, settings.step)
        before, owned = _reading(resident), cache.nbytes()
        readings, at = [], start
        for mark in marks:
            _feed(subject, cache, at, mark, settings.step)
            readings.append(_reading(resident) - before)
            at = mark
        assert at == stop
        grown = cache.nbytes() - owned
    spread = torch.tensor(readings, dtype=torch.float64).quantile(
        torch.tensor([0.1, 0.9], dtype=torch.float64)
    )
    more: dict[str, Any] = {
        "tokens": settings.tokens,
        "nbytes_growth": grown,
        "growth_at_marks": readings,
        "dynamic_bytes": settings.tokens * least.entry_bytes,
    }
    return Row(
        name=f"{arm.name}, growth over {settings.tokens:,} tokens",
        unit="bytes",
        median=float(readings[-1]),  # what it came to; the spread is that of the marks
        p10=float(spread[0]),
        p90=float(spread[1]),
        repeats=MARKS,
        ratio=readings[-1] / more["dynamic_bytes"],
        more=more,
    )


def _peak(
    subject: Subject, settings: Memory, arm: Arm, resident: Resident, least: Floor, workspace: int
) -> Row:
    """The most a long prompt took, above what there was before the cache."""
    chunk = min(settings.chunk, settings.prefill)
    before = _reading(resident)
    resident.restart_peak()
    with arm.cache(subject, settings.entries, settings.sinks, settings.entries) as cache:
        _feed(subject, cache, 0, settings.prefill, chunk)
        budget_bytes, held = cache.footprint.bytes_of(settings.entries), cache.nbytes()
        per_entry, counted = cache.footprint.per_entry, cache.peak_nbytes
    highest = resident.peak()
    assert highest is not None, "checked when the run began"
    taken, chunk_bytes = highest - before, chunk * per_entry
    allowed = budget_bytes + chunk_bytes + workspace
    more = {
        "tokens": settings.prefill,
        "chunk": chunk,
        "budget_bytes": budget_bytes,
        "chunk_bytes": chunk_bytes,
        "workspace_bytes": workspace,
        "allowed_bytes": allowed,
        "within": taken <= allowed,
        "held_bytes": held,
        "cache_peak_bytes": counted,
    }
    return Row(
        name=f"{arm.name}, peak of {settings.prefill:,} tokens",
        unit="bytes",
        median=float(taken),
        p10=float(taken),
        p90=float(taken),
        repeats=1,
        ratio=taken / (settings.prefill * least.entry_bytes + workspace),
        floor=float(budget_bytes + chunk_bytes),
        more=more,
    )


def _workspace(subject: Subject, settings: Memory, resident: Resident, least: Floor) -> int:
    """Bytes that a forward of one chunk takes beside keys and values, whatever the cache."""
    chunk = min(settings.chunk, settings.prefill)
    cache = dynamic(subject)
    subject.feed(subject.reference, subject.tokens(0, settings.entries), cache, chunk=chunk)
    before = _reading(resident)
    resident.restart_peak()
    subject.feed(
        subject.reference, subject.tokens(settings.entries, settings.entries + chunk), cache, chunk=chunk
    )
    highest = resident.peak()
    assert highest is not None, "checked when the run began"
    return max(highest - before - chunk * least.entry_bytes, 0)


def _feed(subject: Subject, cache: BoundedCache, start: int, stop: int, chunk: int) -> None:
    """Tokens `start` to `stop`, made piece by piece: their ids must not be what grows."""
    for at in range(start, stop, chunk):
        subject.feed(subject.model, subject.tokens(at, min(at + chunk, stop)), cache)
