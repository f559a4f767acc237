"""`sinkpin bench stream`: a text without end through one bounded cache, and whether anything drifts.

The texts are read in order, again and again, in chunks; every token is scored (teacher-forced). A line for each block
as it ends: perplexity, memory, bytes owned, speed. After each block everything is put away, so that a run that was
stopped can be read and continued. Not covered: whether the text is understood; what is evicted is forgotten.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sinkpin.bench import floor, gate, machine, stream_folder
from sinkpin.bench.arms import Arm, arms_of
from sinkpin.bench.floor import Floor
from sinkpin.bench.report import Report, Row
from sinkpin.bench.resident import Resident
from sinkpin.bench.settings import Stream, as_json
from sinkpin.bench.stream_folder import Log
from sinkpin.bench.subject import Subject
from sinkpin.bench.timing import Progress, silent
from sinkpin.bench.trend import sentence, verdict
from sinkpin.cache.bounded import BoundedCache
from sinkpin.errors import InputError
from sinkpin.evaluate.scoring import score

Say = Callable[[str], None]

_NOT_PART = ("tokens", "out", "resume")  # settings in which a continued run may differ


def run(
    subject: Subject, settings: Stream, progress: Progress = silent, say: Say = lambda line: None
) -> Report:
    """Check, then feed. `say` hears one line a block. Raises `GateError` before anything is fed if the arm is wrong."""
    torch.manual_seed(settings.seed)
    if len(settings.policy) != 1:
        raise InputError(f"{len(settings.policy)} policies: a stream has one; run once for each")
    (arm,) = arms_of(settings.policy)
    notes = machine.remarks()
    gate.check(subject, arm, settings.sinks)
    least = floor.measure(subject)
    log, cache = _begin(subject, settings, arm)
    with cache:
        _feed(subject, settings, log, cache, progress, say)
        notes += cache.notes
    notes += [f"continued in a new process after {at:,} tokens" for at in log.resumed]
    blocks = log.blocks
    found = verdict(blocks, log.passes)
    say(sentence(found))
    return Report(
        bench="stream",
        model=subject.name,
        machine=machine.describe(subject),
        settings=settings,
        floor=least.to_json(),
        rows=[_row(block, blocks, settings, arm, least) for block in blocks],
        notes=notes + least.remarks(subject.device),
        more={"passes": log.passes, "verdict": found, "period": len(subject.text)},
    )


def _begin(subject: Subject, settings: Stream, arm: Arm) -> tuple[Log, BoundedCache]:
    """An empty log and cache, or those of the run that is continued."""
    header = {key: value for key, value in as_json(settings).items() if key not in _NOT_PART}
    header |= {"model": subject.name, "dtype": str(subject.dtype), "text": _fingerprint(subject)}
    if not settings.resume:
        return Log(header), arm.cache(subject, settings.entries, settings.sinks, settings.entries)
    log, file = stream_folder.load(Path(settings.out), header)
    cache = BoundedCache.load(file, subject.model)
    if cache.seen != log.fed:
        cache.close()
        raise InputError(
            f"{file} has seen {cache.seen:,} tokens, the blocks {log.fed:,}: run without --resume"
        )
    log.resumed.append(log.fed)
    return log, cache


def _fingerprint(subject: Subject) -> list[int]:
    """Length of the text, and a sum that another text will hardly have."""
    weights = torch.arange(len(subject.text)) % 1009 + 1
    return [len(subject.text), int((subject.text * weights).sum())]


def _feed(
    subject: Subject, settings: Stream, log: Log, cache: BoundedCache, progress: Progress, say: Say
) -> None:
    resident = Resident(subject.device)
    # A forward ends on a multiple of the chunk, wherever a block or a run ends: so do blocks.
    size = max(settings.block // settings.chunk, 1) * settings.chunk
    last = settings.tokens - 1  # nothing is predicted from the last token
    for start in range(log.fed, last, size):
        stop = min(start + size, last)
        ends: list[float] = []

        def fed(done: int, of: int, start: int = start, ends: list[float] = ends) -> None:
            ends.append(time.perf_counter())
            progress("stream", start + done, last)

        ids = subject.tokens(start, stop + 1)[0].cpu()
        began = time.perf_counter()
        losses = score(subject.model, ids, cache, first=1, chunk=settings.chunk, progress=fed).losses
        seconds = np.diff([began, *ends])
        _count(log, losses, start, len(subject.text))
        resident.settle()
        log.blocks.append(
            _block(start, stop, losses, seconds, settings.chunk, resident.now(), cache.nbytes())
        )
        stream_folder.save(Path(settings.out), log, cache)
        say(line(log.blocks[-1]))


def _count(log: Log, losses: np.ndarray, start: int, period: int) -> None:
    """Add losses of the tokens from `start + 1` on to the passes over the texts that they belong to."""
    index = np.arange(start + 1, start + 1 + len(losses))
    for number in np.unique(index // period):
        mine = losses[index // period == number].astype(np.float64)
        while len(log.passes) <= number:
            log.passes.append({"pass": len(log.passes) + 1, "tokens": 0, "nll": 0.0, "whole": False})
        each = log.passes[number]
        tokens = each["tokens"] + len(mine)
        each["nll"] = (each["nll"] * each["tokens"] + mine.sum()) / tokens
        each["tokens"] = tokens
        # the very first token of all is never scored
        each["whole"] = bool(tokens >= period - (number == 0))


def _block(
    start: int,
    stop: int,
    losses: np.ndarray,
    seconds: np.ndarray,
    chunk: int,
    resident: int | None,
    nbytes: int,
) -> dict[str, Any]:
    each = seconds / np.minimum(chunk, stop - start - chunk * np.arange(len(seconds)))
    nll = float(losses.astype(np.float64).mean())
    return {
        "start": start,
        "stop": stop,
        "nll": nll,
        "ppl": float(np.exp(nll)),
        "resident_bytes": resident,
        "nbytes": nbytes,
        "tokens_per_s": (stop - start) / float(seconds.sum()),
        "seconds_per_token": [float(np.percentile(each, percent)) for percent in (50, 10, 90)],
        "forwards": len(seconds),
    }


def line(block: dict[str, Any]) -> str:
    """A block in one line, said as it ends."""
    memory = block["resident_bytes"]
    return (
        f"{block['stop']:>12,} tokens  ppl {block['ppl']:8.3f}  "
        f"{'-' if memory is None else f'{memory / 2**20:,.1f}'} MiB resident  "
        f"{block['nbytes'] / 2**20:,.1f} MiB owned  {block['tokens_per_s']:,.0f} tokens/s"
    )


def _row(
    block: dict[str, Any], blocks: list[dict[str, Any]], settings: Stream, arm: Arm, least: Floor
) -> Row:
    """Its ratio is to the second block, or the only one: in the first the budget still fills."""
    base = blocks[min(1, len(blocks) - 1)]["seconds_per_token"][0]
    median, p10, p90 = block["seconds_per_token"]
    seen = settings.entries if arm.kind == "position" else settings.entries + settings.chunk / 2
    return Row(
        name=f"to {block['stop']:,}",
        unit="seconds per token",
        median=median,
        p10=p10,
        p90=p90,
        repeats=block["forwards"],
        ratio=median / base,
        floor=least.prompt_seconds(settings.chunk, seen, settings.chunk) / settings.chunk,
        more={key: block[key] for key in ("ppl", "nll", "resident_bytes", "nbytes", "tokens_per_s")},
    )
