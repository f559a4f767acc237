"""`sinkpin bench prefill`: what a prompt costs a token, at several lengths, in turns with plain SDPA attention.

The prompt is fed whole by default, as `generate` does. A position policy costs the same for each token whatever the
length; the others and DynamicCache look at all of the prompt, so their cost grows with its square and they stop at
`quadratic` tokens. Not covered: padding, batches, and where the prompt's first token waits for the last.
"""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sinkpin.bench import floor, gate, machine
from sinkpin.bench.arms import REFERENCE, Arm, arms_of, dynamic
from sinkpin.bench.floor import Floor, mean_visible
from sinkpin.bench.report import Report, Row, timed
from sinkpin.bench.settings import Prefill
from sinkpin.bench.subject import Subject
from sinkpin.bench.timing import Progress, Seconds, Step, interleave, paired, silent
from sinkpin.cache.bounded import BoundedCache
from sinkpin.cache.compat import causal_lm

CHUNK = 2048
"""Tokens a forward where the whole prompt does not fit."""
_ALIVE = 8  # tensors as wide as the residual or the MLP that a layer holds at once, about
_SHARE = 0.5  # of the free memory that a prompt's activations may take


def run(subject: Subject, settings: Prefill, progress: Progress = silent) -> Report:
    """Check, then measure. Raises `GateError` before anything is timed if an arm is wrong."""
    torch.manual_seed(settings.seed)
    arms = arms_of(settings.policy)
    notes = machine.remarks()
    for arm in arms:
        gate.check(subject, arm, settings.sinks)
    least = floor.measure(subject)
    lengths = sorted(set(settings.tokens))
    chunks = {length: _chunk(subject, settings, length) for length in lengths}
    notes += [
        f"{length:,} tokens were fed {chunk:,} at a time: their activations would not fit in memory at once"
        for length, chunk in chunks.items()
        if chunk and not settings.chunk
    ]
    measured = [
        (arm, length)
        for length in lengths
        for arm in (None, *arms)
        if length <= settings.quadratic or (arm is not None and arm.kind == "position")
    ]
    if longer := [length for length in lengths if length > settings.quadratic]:
        notes.append(f"only position policies were fed more than {settings.quadratic:,} tokens ({longer})")
    times = _times(subject, settings, measured, chunks, progress)
    return Report(
        bench="prefill",
        model=subject.name,
        machine=machine.describe(subject),
        settings=settings,
        floor=least.to_json(),
        rows=[_row(arm, length, times, chunks, settings, least) for arm, length in measured],
        notes=notes + least.remarks(subject.device),
    )


def _name(arm: Arm | None, length: int) -> str:
    return f"{REFERENCE if arm is None else arm.name}, {length:,}"


def _times(
    subject: Subject,
    settings: Prefill,
    measured: list[tuple[Arm | None, int]],
    chunks: dict[int, int],
    progress: Progress,
) -> dict[str, Seconds]:
    with ExitStack() as stack:
        steps = []
        for arm, length in measured:
            ids = subject.tokens(0, length)
            if arm is None:
                steps.append(Step(_name(arm, length), partial(_dense, subject, ids, chunks[length])))
                continue
            cache = stack.enter_context(arm.cache(subject, settings.entries, settings.sinks, length))
            steps.append(Step(_name(arm, length), partial(_bounded, subject, ids, cache, chunks[length])))
        shortest = min(length for _, length in measured)
        for step in (step for step, (_, length) in zip(steps, measured, strict=True) if length == shortest):
            step.run()  # warms up what is warmed up once
        return interleave(steps, settings.repeats, sync=subject.sync, progress=progress, what="prefill")


def _dense(subject: Subject, ids: torch.Tensor, chunk: int) -> None:
    subject.feed(subject.reference, ids, dynamic(subject), chunk=chunk)


def _bounded(subject: Subject, ids: torch.Tensor, cache: BoundedCache, chunk: int) -> None:
    cache.reset()
    subject.feed(subject.model, ids, cache, chunk=chunk)


def _row(
    arm: Arm | None,
    length: int,
    times: dict[str, Seconds],
    chunks: dict[int, int],
    settings: Prefill,
    least: Floor,
) -> Row:
    mine = times[_name(arm, length)]
    shortest = min(settings.tokens)
    growth = paired(mine, times[_name(arm, shortest)]) if _name(arm, shortest) in times else None
    more: dict[str, Any] = {
        "tokens": length,
        "chunk": chunks[length] or length,
        # of the time a token: 1 is a cost linear in the length
        "growth": None if growth is None else growth * shortest / length,
    }
    position = arm is not None and arm.kind == "position"
    visible = mean_visible(length, settings.entries if position else length)
    return timed(
        _name(arm, length),
        mine,
        times.get(_name(None, length)),
        floor=least.prompt_seconds(length, visible),
        tokens=length,
        per_token=True,
        more=more,
    )


def _chunk(subject: Subject, settings: Prefill, length: int) -> int:
    """0, the whole prompt, if its activations fit into half of the free memory, by a rough count."""
    if settings.chunk:
        return settings.chunk if settings.chunk < length else 0
    config = causal_lm(subject.model).config.get_text_config()
    wide = max(getattr(config, "intermediate_size", None) or 4 * config.hidden_size, config.hidden_size)
    needed = _ALIVE * length * wide * subject.dtype.itemsize
    free = _free(subject.device)
    return 0 if free is None or needed <= _SHARE * free or length <= CHUNK else CHUNK


def _free(device: torch.device) -> int | None:
    """Bytes that can still be had; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    info = Path("/proc/meminfo")
    if not info.exists():
        return None
    line = next((line for line in info.read_text().splitlines() if line.startswith("MemAvailable:")), None)
    return None if line is None else int(line.split()[1]) * 1024
