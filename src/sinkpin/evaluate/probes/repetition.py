"""`repetition`: does the model fall into a loop when it writes on for long, and does a bounded cache make it?

A stretch of novel is fed and entries are evicted; then the model writes `tokens` tokens, drawn at `temperature` with the
same random numbers for every arm (0: the likeliest token each time, where small models loop with any cache). The score is
the share of its 4-grams of tokens that were not written before: 1 says nothing twice, a loop goes to 0. Beside it, the
zlib compression ratio of the text (bytes packed over bytes; loops are small). End-of-text tokens are never drawn, or a short
text would pass for a varied one. Not here: whether what is written is any good.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sinkpin.errors import InputError
from sinkpin.evaluate.probes.base import Outcome, Probe, Trial, whole
from sinkpin.evaluate.probes.intervals import Interval
from sinkpin.evaluate.probes.pen import Pen
from sinkpin.statistics import mean_interval

if TYPE_CHECKING:
    from sinkpin.evaluate.probes.reader import Reader

GRAM = 4


@dataclass(frozen=True)
class Repetition(Probe):
    """`prompt` tokens are fed, `tokens` written."""

    trials: int = 8
    prompt: int = 512
    tokens: int = 512
    temperature: float = 0.7

    name: ClassVar[str] = "repetition"
    summary: ClassVar[str] = "loops in long generation: repeated 4-grams and how far the text compresses"
    axes: ClassVar[tuple[str, ...]] = ()
    better: ClassVar[str] = "4-grams that were not written before"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("trials", self.trials, 2)  # of one there is no interval
        whole("prompt", self.prompt, 1)
        whole("tokens", self.tokens, 2 * GRAM)
        if not 0 <= self.temperature <= 10:
            raise InputError(f"--temperature {self.temperature:g}: give 0 (the likeliest token) to 10")

    @property
    def chance(self) -> float:
        return 0.5

    @property
    def chance_says(self) -> str:
        return "a text that says everything twice; there is nothing to guess here"

    @property
    def writes(self) -> int:
        return self.tokens

    def interval(self, values: Sequence[float], groups: Sequence[int]) -> Interval:
        return mean_interval(values)

    def difference(self, arm: Sequence[float], full: Sequence[float], groups: Sequence[int]) -> Interval:
        return mean_interval([a - b for a, b in zip(arm, full, strict=True)])

    def write(self, pen: Pen) -> tuple[Trial, ...]:
        rng = random.Random(f"{self.name} {self.seed}")
        opening = pen.opening
        found = []
        for group in range(self.trials):
            sentences = pen.sentences(rng, self.prompt - len(opening))
            ids = (*opening, *(token for sentence in sentences for token in sentence))
            found.append(Trial(ids=ids, questions=(), group=group))
        return tuple(found)

    def outcomes(self, reader: "Reader", trials: tuple[Trial, ...]) -> list[Outcome]:
        texts = reader.write_on(trials, self.tokens, self.temperature, self.seed)
        return [
            Outcome(
                key=(trial.group,),
                group=trial.group,
                cell=(),
                value=unrepeated(ids),
                measures={"compression": compression(text)},
            )
            for trial, (ids, text) in zip(trials, texts, strict=True)
        ]


def unrepeated(ids: list[int]) -> float:
    """Share of the 4-grams of `ids` that are the first of their kind."""
    grams = [tuple(ids[i : i + GRAM]) for i in range(len(ids) - GRAM + 1)]
    return len(set(grams)) / len(grams)


def compression(text: str) -> float:
    """Bytes of the text when zlib has packed it, over those before."""
    data = text.encode("utf-8", "replace")
    return len(zlib.compress(data, 9)) / max(len(data), 1)
