"""`sinkpin bench perplexity`: exact streaming perplexity by chunks, against the loops that give the same number.

Three ways to the perplexity of a text behind sinks and a window: by chunks (attention gives each query its own visible
set); the same cache fed token by token; and the loop of the StreamingLLM authors' script in plain transformers, a
forward for each token and DynamicCache cut to sinks and window after it. The last keeps keys where they were in the
text, so the chunks are run in that frame, too, and must agree with it. All take turns, segment by segment. Not covered:
policies that choose, whose result depends on the chunk.
"""

from typing import Any

import numpy as np
import torch

from sinkpin.bench import floor, gate, machine
from sinkpin.bench.arms import Arm
from sinkpin.bench.floor import Floor, mean_visible
from sinkpin.bench.gate import GateError
from sinkpin.bench.report import Report, Row, timed
from sinkpin.bench.settings import Perplexity
from sinkpin.bench.subject import Subject
from sinkpin.bench.timing import Progress, Seconds, Step, interleave, paired, silent
from sinkpin.bench.ways import BAND, BAND_ORIGINAL, LOOP, PLAIN, Way, possible
from sinkpin.evaluate.scoring import score

_GATE_BUDGET, _GATE_TOKENS = 40, 80
_LIMIT = {torch.float32: 1e-3, torch.float64: 1e-3}
_COARSE = 0.2
"""Nats, of half precision: two ways to compute one dense forward differ by about 0.1."""


def run(subject: Subject, settings: Perplexity, progress: Progress = silent) -> Report:
    """Check, then measure. Raises `GateError` before anything is timed if the ways disagree."""
    torch.manual_seed(settings.seed)
    notes = machine.remarks()
    gate.check(subject, Arm("streaming" if settings.sinks else "window", None), settings.sinks)
    ways = possible(subject)
    _gate(subject, settings.sinks, ways)
    least = floor.measure(subject)
    looped = min(settings.loop_tokens, settings.tokens)
    losses, times = _turns(subject, settings, ways, looped, progress)
    rows = _rows(settings, looped, losses, times, least)
    rows.append(_whole(subject, settings, least))
    if PLAIN not in ways:
        notes.append(
            "this model has layers or positions that a plain loop over DynamicCache cannot cut: it is left out"
        )
    if looped < settings.tokens:
        notes.append(f"the loops read the first {looped:,} tokens, and the chunks beside them the same")
    differences = _differences(losses)
    return Report(
        bench="perplexity",
        model=subject.name,
        machine=machine.describe(subject),
        settings=settings,
        floor=least.to_json(),
        rows=rows,
        notes=notes + least.remarks(subject.device),
        more={"largest_difference_nats": differences},
    )


def _gate(subject: Subject, sinks: int, names: list[str]) -> None:
    """Every way on a short text and a small budget: loss by loss, they must agree."""
    losses = {}
    for name in names:
        way = Way(subject, name, max(_GATE_BUDGET, sinks + 32), sinks, chunk=23)
        try:
            way.go(_GATE_TOKENS)
        finally:
            way.close()
        losses[name] = np.concatenate(way.losses)
    limit = _LIMIT.get(subject.dtype, _COARSE)
    for mine, theirs in _pairs(losses):
        found = float(np.sqrt(np.square(losses[mine] - losses[theirs]).mean()))
        if not found <= limit:
            raise GateError(
                f"perplexity {mine} against {theirs}: losses differ by {found:.2g} nats (root of the mean square), more "
                f"than {limit:g}: nothing was timed"
            )


def _pairs(losses: dict[str, Any]) -> list[tuple[str, str]]:
    """The ways that were gone and must agree."""
    return [pair for pair in ((BAND, LOOP), (BAND_ORIGINAL, PLAIN)) if pair[1] in losses]


def _differences(losses: dict[str, np.ndarray]) -> dict[str, float]:
    """Largest difference of one token's loss between two ways that must agree."""
    return {
        f"{mine} against {theirs}": float(np.abs(losses[mine] - losses[theirs]).max())
        for mine, theirs in _pairs(losses)
    }


def _turns(
    subject: Subject, settings: Perplexity, names: list[str], looped: int, progress: Progress
) -> tuple[dict[str, np.ndarray], dict[str, Seconds]]:
    segment = min(settings.chunk, looped - 1)
    ways = [Way(subject, name, settings.entries, settings.sinks, settings.chunk) for name in names]
    try:
        steps = [Step(way.name, lambda way=way: way.go(segment)) for way in ways]  # type: ignore[misc]
        times = interleave(
            steps, (looped - 1) // segment, sync=subject.sync, progress=progress, what="perplexity"
        )
    finally:
        for way in ways:
            way.close()
    return {way.name: np.concatenate(way.losses) for way in ways}, times


def _rows(
    settings: Perplexity,
    looped: int,
    losses: dict[str, np.ndarray],
    times: dict[str, Seconds],
    least: Floor,
) -> list[Row]:
    segment = min(settings.chunk, looped - 1)
    rows = []
    for name, seconds in times.items():
        single = segment * least.step_seconds(settings.entries)
        floor_seconds = single if name in (LOOP, PLAIN) else _floor(settings, segment, segment, least)
        more: dict[str, Any] = {
            "tokens": len(losses[name]),
            "ppl": float(np.exp(losses[name].astype(np.float64).mean())),
            "faster_than_loop": paired(times[LOOP], seconds),
        }
        if PLAIN in times:
            more["faster_than_plain_loop"] = paired(times[PLAIN], seconds)
        rows.append(
            timed(
                name,
                seconds,
                times.get(PLAIN, times[LOOP]),
                floor=floor_seconds,
                tokens=segment,
                per_token=True,
                more=more,
            )
        )
    return rows


def _floor(settings: Perplexity, tokens: int, chunk: int, least: Floor) -> float:
    """Of `tokens` in chunks, all scored."""
    visible = mean_visible(tokens, settings.entries)
    return tokens / chunk * least.prompt_seconds(chunk, visible, scored=chunk)


def _whole(subject: Subject, settings: Perplexity, least: Floor) -> Row:
    """The whole text by chunks, once."""
    ids = subject.tokens(0, settings.tokens)[0].cpu()
    arm = Arm("streaming" if settings.sinks else "window", None)
    with arm.cache(subject, settings.entries, settings.sinks) as cache:
        scores = score(subject.model, ids, cache, first=1, chunk=settings.chunk)
    fed = settings.tokens - 1
    return timed(
        f"{BAND}, all {settings.tokens:,} tokens",
        np.array([scores.seconds]),
        None,
        floor=_floor(settings, fed, min(settings.chunk, fed), least),
        tokens=fed,
        per_token=True,
        more={
            "tokens": fed,
            "ppl": float(np.exp(scores.losses.astype(np.float64).mean())),
            "total_seconds": scores.seconds,
        },
    )
