"""Settings measured with a model: their differences from the full cache in blocks, and their bytes.

Each passage is a comparison (`evaluate.compare`) of its own; of its losses those from the passage's first scored token on are
taken, so that every setting is scored on the same tokens. Bytes are asked of a cache that was fed nothing: what it will hold when full
is known beforehand.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sinkpin.cache.bounded import BoundedCache
from sinkpin.errors import InputError, ModelError, PolicyError
from sinkpin.evaluate.advisor.advice import Memory
from sinkpin.evaluate.advisor.bound import BLOCK
from sinkpin.evaluate.advisor.passages import Passage
from sinkpin.evaluate.advisor.settings import Setting
from sinkpin.evaluate.advisor.workloads import Line
from sinkpin.evaluate.compare import compare
from sinkpin.evaluate.scoring import cache_for
from sinkpin.statistics import Floats


class Measurer:
    """A `search.Measure` on one model, which also knows what settings cost.

    `chunk`: tokens a forward for policies that choose after each. `said(what, passages done, passages in all)` is called before
    each passage and at the end.
    """

    def __init__(self, model: Any, chunk: int, said: Callable[[str, int, int], None] | None = None) -> None:
        self.model, self.chunk, self.said = model, chunk, said
        self._peaks: dict[str, int] = {}

    def __call__(self, settings: Sequence[Setting], passages: Sequence[Passage]) -> Mapping[str, Floats]:
        """The mean difference of each setting's loss, in nats, in each whole block of each passage, in order."""
        found: dict[str, list[Floats]] = {setting.name: [] for setting in settings}
        what = settings[0].name if len(settings) == 1 else f"{len(settings)} settings"
        for number, passage in enumerate(passages):
            if self.said is not None:
                self.said(what, number, len(passages))
            arms = {setting.name: setting.on(passage.spans) for setting in settings}
            distinct = list(dict.fromkeys(arm.name for arm in arms.values()))
            by_name = {arm.name: arm for arm in arms.values()}
            result = compare(
                self.model,
                torch.tensor(passage.ids),
                [by_name[name] for name in distinct],
                chunk=self.chunk,
                prompt=passage.prompt,
            )
            if result.positions[0] > passage.first:
                raise InputError(
                    f"{', '.join(distinct)} begin to evict at token {result.positions[0]} only, after scoring begins at "
                    f"{passage.first}: give smaller budgets, a smaller chunk, or longer passages"
                )
            scored = result.positions >= passage.first
            whole = passage.blocks * BLOCK
            full = result.losses["full"][scored][:whole].astype(np.float64)
            for name, arm in arms.items():
                difference = result.losses[arm.name][scored][:whole].astype(np.float64) - full
                found[name].append(difference.reshape(-1, BLOCK).mean(axis=1))
            peaks = {arm.name: arm.kv_bytes_peak for arm in result.arms}
            for name, arm in arms.items():
                self._peaks[name] = max(self._peaks.get(name, 0), peaks[arm.name])
        if self.said is not None:
            self.said(what, len(passages), len(passages))
        return {name: np.concatenate(each) for name, each in found.items()}

    def bytes_of(self, setting: Setting, passages: Sequence[Passage]) -> int:
        """What `nbytes()` of one row says once the budget is full: the most over these passages, whose pins may differ."""
        kinds = {passage.spans.get(setting.pins or "", ()): passage for passage in passages}
        most = 0
        for passage in kinds.values():
            with _cache(self.model, setting, passage) as cache:
                most = max(most, cache.footprint.bytes_of(setting.budget))
        return most

    def memory_of(self, setting: Setting, passages: Sequence[Passage]) -> Memory:
        """Of a setting that was measured."""
        with BoundedCache(self.model, policy="full", sinks=0) as full:
            held = full.footprint.bytes_of(max(len(passage.ids) for passage in passages))
        return Memory(
            session_bytes=self.bytes_of(setting, passages),
            peak_bytes=self._peaks[setting.name],
            full_bytes=held,
        )

    def possible(
        self, lines: Sequence[Line], passages: Sequence[Passage], *, asked: bool
    ) -> tuple[list[Line], list[str]]:
        """The lines that this model can run, and a note for each that it cannot. Raises the model's own refusal where the line
        was `asked` for, and where none is left."""
        left: list[Line] = []
        notes: list[str] = []
        for line in lines:
            try:
                self.bytes_of(line[-1], passages)
            except (ModelError, PolicyError) as error:
                if asked or len(notes) + 1 == len(lines):
                    raise
                notes.append(f"{line[-1].written_policy} is not tried: {error}")
            else:
                left.append(line)
        return left, notes


def trained_length(model: Any) -> int | None:
    """Positions that the model was trained on: past them the full cache is no reference."""
    with BoundedCache(model, policy="full", sinks=0) as cache:
        return cache.door.anatomy.trained


def _cache(model: Any, setting: Setting, passage: Passage) -> BoundedCache:
    return cache_for(model, setting.on(passage.spans), passage.prompt or len(passage.ids))
