"""Losses that are drawn instead of measured: settings of known loss, and passages that only have a length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sinkpin.evaluate.advisor.passages import Passage
from sinkpin.evaluate.advisor.settings import Setting, setting

SMALL = 999
"""Resamples: enough for a rate, quick enough for many."""


def line(policy: str, budgets: Sequence[int]) -> tuple[Setting, ...]:
    head = setting(policy, 4, None, None)
    return tuple(head.with_budget(budget) for budget in budgets)


def passages(count: int, document: str = "a", each: int = 1) -> list[Passage]:
    return [Passage(document, tuple(range(1024 + 512 * (each - 1))), 512) for _ in range(count)]


def bytes_of(setting: Setting) -> int:
    return 100 * setting.budget + len(setting.arm.policy)


class Drawn:
    """A `Measure`: normal differences about each setting's true mean (nats), drawn once for each passage, so that the same
    passage asked twice says the same. Remembers what it was asked."""

    def __init__(self, truth: Callable[[Setting], float], spread: float = 0.02, seed: int = 0) -> None:
        self.truth, self.spread, self.seed = truth, spread, seed
        self.asked: list[tuple[list[str], list[int]]] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Passage] = []

    def __call__(self, settings: Sequence[Setting], passages: Sequence[Passage]) -> dict[str, np.ndarray]:
        for passage in passages:
            if id(passage) not in self._numbers:
                self._numbers[id(passage)] = len(self._numbers)
                self._kept.append(passage)
        numbers = [self._numbers[id(passage)] for passage in passages]
        self.asked.append(([setting.name for setting in settings], numbers))
        return {
            setting.name: np.concatenate(
                [
                    np.random.default_rng([self.seed, number, *setting.name.encode()]).normal(
                        self.truth(setting), self.spread, passage.blocks
                    )
                    for number, passage in zip(numbers, passages, strict=True)
                ]
            )
            for setting in settings
        }
