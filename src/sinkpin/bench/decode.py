"""`sinkpin bench decode`: one token a forward behind a full cache, in turns with DynamicCache of the same length.

The reference is put back after each step, so it has the same length at every one; ours is full and evicts at each.
Recompute is the baseline of the StreamingLLM paper: the window anew for each token, without a cache. Not covered:
sampling, tokenizers, and `generate`'s own overhead.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch

from sinkpin.bench import compiled, floor, gate, machine, stepping
from sinkpin.bench.arms import REFERENCE, Arm, arms_of
from sinkpin.bench.floor import Floor, mean_visible
from sinkpin.bench.report import Report, Row, timed
from sinkpin.bench.settings import Decode
from sinkpin.bench.subject import Subject
from sinkpin.bench.timing import Progress, Step, interleave, paired, silent

RECOMPUTE = "recompute"


def run(subject: Subject, settings: Decode, progress: Progress = silent) -> Report:
    """Check, then measure. Raises `GateError` before anything is timed if an arm is wrong."""
    torch.manual_seed(settings.seed)
    arms = arms_of(settings.policy)
    notes = machine.remarks()
    for arm in arms:
        gate.check(subject, arm, settings.sinks)
    least = floor.measure(subject)
    rows = _eager(subject, settings, arms, least, progress)
    if settings.compile:
        rows += [compiled.row(subject, settings, arm, least, progress) for arm in (None, *arms)]
        notes.append(compiled.remark(subject, settings))
    return Report(
        bench="decode",
        model=subject.name,
        machine=machine.describe(subject),
        settings=settings,
        floor=least.to_json() | {"step_seconds": least.step_seconds(settings.entries, settings.batch[0])},
        rows=rows,
        notes=notes + least.remarks(subject.device),
    )


def _eager(
    subject: Subject, settings: Decode, arms: Sequence[Arm], least: Floor, progress: Progress
) -> list[Row]:
    held, several, first = settings.entries, len(settings.batch) > 1, settings.batch[0]

    def name_of(arm: str, batch: int) -> str:
        return f"{arm} × {batch}" if several else arm

    with ExitStack() as stack:
        steps: list[Step] = []
        kv_bytes: dict[str, int] = {}
        for batch in settings.batch:
            name = name_of(REFERENCE, batch)
            steps.append(stepping.reference(subject, name, held, batch))
            kv_bytes[name] = batch * held * least.entry_bytes
            for arm in arms:
                name = name_of(arm.name, batch)
                cache = stack.enter_context(stepping.full(subject, arm, settings, batch))
                steps.append(Step(name, stepping.stepper(subject, subject.model, cache, cache.seen, batch)))
                kv_bytes[name] = cache.nbytes()
        interleave(steps, settings.warmup, sync=subject.sync)
        if settings.recompute:
            steps.append(_recompute(subject, settings))
            steps[-1].run()
        times = interleave(steps, settings.repeats, sync=subject.sync, progress=progress, what="decode")

    rows = []
    for batch in settings.batch:
        for arm_name in (REFERENCE, *(arm.name for arm in arms)):
            name = name_of(arm_name, batch)
            more: dict[str, Any] = {"batch": batch, "kv_bytes": kv_bytes[name]}
            if several:
                gain = paired(times[name_of(arm_name, first)], times[name])
                more["batch_gain"] = None if gain is None else gain * batch / first
            if settings.recompute and batch == first:
                more["recompute_ratio"] = paired(times[RECOMPUTE], times[name])
            reference = times[name_of(REFERENCE, batch)]
            row = timed(
                name, times[name], reference, floor=least.step_seconds(held, batch), tokens=batch, more=more
            )
            rows.append(row)
    if settings.recompute:
        slow = least.prompt_seconds(first * held, mean_visible(held, held), scored=first)
        reference = times[name_of(REFERENCE, first)]
        rows.append(
            timed(RECOMPUTE, times[RECOMPUTE], reference, floor=slow, tokens=first, more={"batch": first})
        )
    return rows


def _recompute(subject: Subject, settings: Decode) -> Step:
    ids = subject.tokens(0, settings.entries, settings.batch[0])
    every = -(-settings.repeats // settings.recompute_repeats)
    return Step(RECOMPUTE, lambda: subject.recompute(ids), every=every)
