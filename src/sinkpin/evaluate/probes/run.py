"""A probe through all arms: the full cache first, the same trials for each, one record.

Not here: what a trial is (the probes), what is made sure of before one is run (`beforehand`), how an arm reads one
(`reader`).
"""

import platform
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy
import torch
import transformers

import sinkpin
from sinkpin import demo
from sinkpin.cache.anatomy import Anatomy
from sinkpin.cache.compat import causal_lm
from sinkpin.errors import InputError
from sinkpin.evaluate.arms import Arm
from sinkpin.evaluate.probes import beforehand, tally
from sinkpin.evaluate.probes.answering import Blank
from sinkpin.evaluate.probes.base import Outcome, Probe, Trial
from sinkpin.evaluate.probes.pen import Pen
from sinkpin.evaluate.probes.reader import Reader
from sinkpin.evaluate.probes.record import ProbeArm, ProbeResult
from sinkpin.evaluate.probes.verdict import can, sentence
from sinkpin.evaluate.scoring import cache_for
from sinkpin.policies import resolve

STREAM_CHUNK = 16
"""Tokens a forward for policies that choose after each one, where a probe streams and nothing else was said."""

Progress = Callable[[str, int, int], None]


def probe(
    model: Any,
    tokenizer: Any,
    asked: Probe,
    arms: Sequence[Arm],
    *,
    text: str | None = None,
    text_name: str | None = None,
    chunk: int | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> ProbeResult:
    """Run the probe `asked` through `arms`; the full reference is put first if it is not there.

    `text`: what haystacks are made of, the packaged novel where none is given. `chunk`: tokens a forward for policies that
    choose after each one; None feeds what stands before a question as one forward, and a stream 16 at a time.
    `progress(arm, tokens done, tokens in all)`. Raises `SinkpinError` for what cannot be run, before anything is.
    """
    if chunk is not None and (type(chunk) is not int or chunk < 1):
        raise InputError(f"chunk={chunk!r}: a forward takes a whole number of tokens, at least one")
    arms = [Arm("full", sinks=0), *(arm for arm in arms if arm.policy != "full")]
    if len(arms) == 1:
        raise InputError("nothing to compare with the full cache: give at least one other arm")
    if len({arm.name for arm in arms}) < len(arms):
        raise InputError("an arm is given twice: results are filed under its name; give it once")
    pen = Pen(tokenizer, text or demo.sample_text(), text_name or ("the text" if text else demo.TEXT_NAME))
    chunk = STREAM_CHUNK if chunk is None and asked.streams else chunk
    anatomy = _anatomy(model)
    trials, notes = beforehand.told(model, asked, arms, asked.write(pen))
    notes += beforehand.check_lengths(asked, trials, anatomy)
    blank = Blank(model)
    done: dict[str, list[Outcome]] = {}
    results: list[ProbeArm] = []
    remarks: dict[str, list[str]] = {}
    for arm in arms:
        reader = Reader(
            model,
            pen,
            arm,
            asked,
            chunk=chunk,
            trained=anatomy.trained,
            blank=blank,
            stepped=_Steps(arm.name, _to_feed(asked, trials, arm), progress),
        )
        reader.stepped(0)
        done[arm.name] = asked.outcomes(reader, trials)
        reader.stepped(-1)
        results.append(_result(asked, arm, reader, done[arm.name], done["full"]))
        for note in reader.notes:
            remarks.setdefault(note, []).append(arm.name)
    notes += [f"{', '.join(names)}: {note}" for note, names in remarks.items()]
    dtype = str(causal_lm(model).dtype).removeprefix("torch.")
    notes.append(f"computed in {dtype} on {causal_lm(model).device.type}")
    fed = "in turns of {chunk} tokens" if chunk else "as one forward"
    notes.append(
        f"policies that choose after each forward were fed what stands before a question {fed.format(chunk=chunk)}"
    )
    return ProbeResult(
        probe=asked.name,
        model=name or _name_of(model),
        versions=_versions(),
        settings={**asked.settings(), "chunk": chunk, "text": pen.text_name},
        axes=list(asked.axes),
        chance=asked.chance,
        chance_says=asked.chance_says,
        can=can(results[0], asked.chance),
        sentence=sentence(results, asked.chance, asked.chance_says, asked.better),
        notes=notes,
        arms=results,
    )


class _Steps:
    """Tokens fed so far, told to whoever shows progress; -1: through, however few they were."""

    def __init__(self, arm: str, of: int, progress: Progress | None) -> None:
        self.arm, self.of, self.progress, self.done = arm, of, progress, 0

    def __call__(self, tokens: int) -> None:
        through = tokens < 0
        self.done = self.of if through else min(self.done + tokens, self.of - 1)
        if self.progress is not None:
            self.progress(self.arm, self.done, self.of)


def _to_feed(asked: Probe, trials: Sequence[Trial], arm: Arm) -> int:
    by_index = resolve(arm.policy, dict(arm.options)).kind == "position"
    return sum(len(trial.ids) + asked.writes for trial in trials if trial.by_index or not by_index)


def _result(
    asked: Probe, arm: Arm, reader: Reader, outcomes: Sequence[Outcome], full: Sequence[Outcome]
) -> ProbeArm:
    delta, interval = (0.0, None) if arm.policy == "full" else tally.difference(asked, outcomes, full)
    return ProbeArm(
        name=arm.name,
        policy=arm.policy,
        options=dict(arm.options),
        sinks=arm.sinks,
        frame=reader.frame,
        budget=None if arm.budget is None else str(arm.budget),
        budget_tokens=next(iter(reader.budgets)) if len(reader.budgets) == 1 else None,
        kv_bytes_steady=reader.nbytes,
        evicted=float(np.mean(reader.evictions)),
        delta=delta,
        delta_ci95=interval,
        cells=tally.cells(asked, outcomes),
        measures=tally.measures(outcomes),
        **tally.score(asked, outcomes),
    )


def _anatomy(model: Any) -> Anatomy:
    with cache_for(model, Arm("full", sinks=0), 1) as cache:
        return cache.door.anatomy


def _name_of(model: Any) -> str:
    inner = causal_lm(model)
    place = str(getattr(inner.config, "_name_or_path", ""))
    if place and demo.is_model_folder(place):
        return demo.NAME
    return place or type(inner).__name__


def _versions() -> dict[str, str]:
    return {
        "sinkpin": sinkpin.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
    }
