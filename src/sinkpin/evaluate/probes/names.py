"""`names`: facts and constraints said at the beginning, then a stretch of novel, then questions: the forgetting that users
notice.

Each trial says one fact of each kind, in an order of its own, and asks for all of them at each distance, the tokens of
novel between the last fact and the questions. The questions of a trial share its text, so they count as one group. Not
here: whether a constraint is obeyed in what the model writes (`instructions`).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from sinkpin.errors import InputError
from sinkpin.evaluate.probes.base import (
    Asking,
    Question,
    Trial,
    each_whole,
    one_of,
)
from sinkpin.evaluate.probes.lexicon import COLOURS, DAYS, FOODS, PEOPLE, PLACES, TRADES
from sinkpin.evaluate.probes.numbers import shuffled
from sinkpin.evaluate.probes.pen import Pen, Style


@dataclass(frozen=True)
class _Kind:
    """One thing to be remembered: `{}` in `says` is one of `words`, which `asks` begins an answer with."""

    name: str
    says: str
    asks: str
    words: tuple[str, ...]


KINDS = (
    _Kind("name", "My neighbour is called {}.", "The name of my neighbour is", PEOPLE),
    _Kind("place", "I was born in {}.", "The city that I was born in is", PLACES),
    _Kind("trade", "My sister works as a {}.", "My sister's profession is that of a", TRADES),
    _Kind("colour", "The door of my house is {}.", "The colour of the door of my house is", COLOURS),
    _Kind("constraint", "I must never eat {}.", "The one food that I must never eat is", FOODS),
    _Kind("appointment", "Never call me on a {}.", "The day on which you must never call me is", DAYS),
)


@dataclass(frozen=True)
class Names(Asking):
    """`distances` in tokens; a trial is run for each."""

    trials: int = 6
    choices: int = 6
    distances: tuple[int, ...] = (300, 900)
    style: Style = "plain"

    name: ClassVar[str] = "names"
    summary: ClassVar[str] = "facts and constraints said early and asked for later, by kind and distance"
    axes: ClassVar[tuple[str, ...]] = ("distance", "kind")

    def __post_init__(self) -> None:
        super().__post_init__()
        each_whole("distances", self.distances, 1)
        one_of("style", self.style, ("plain", "chat"))
        least = min(len(kind.words) for kind in KINDS)
        if self.choices > least:
            raise InputError(
                f"--choices {self.choices}: the shortest list of words has {least}, so {least} or fewer"
            )

    @property
    def chance(self) -> float:
        if not self.exact:
            return super().chance
        return sum(1 / len(kind.words) for kind in KINDS) / len(KINDS)

    @property
    def chance_says(self) -> str:
        if not self.exact:
            return super().chance_says
        least, most = min(len(kind.words) for kind in KINDS), max(len(kind.words) for kind in KINDS)
        return f"a word of the right list, which has {least} to {most}, written by the model itself"

    def write(self, pen: Pen) -> tuple[Trial, ...]:
        rng = random.Random(f"{self.name} {self.seed}")
        return tuple(
            self._trial(pen, rng, distance, number * len(self.distances) + place)
            for number in range(self.trials)
            for place, distance in enumerate(self.distances)
        )

    def _trial(self, pen: Pen, rng: random.Random, distance: int, group: int) -> Trial:
        before, after = pen.around(self.style)
        ids = [*before, *pen.piece("Keep these facts about me in mind.")]
        said: dict[str, tuple[str, tuple[int, int]]] = {}
        for kind in rng.sample(KINDS, len(KINDS)):
            word = rng.choice(kind.words)
            sentence = pen.piece(f" {kind.says.format(word)}")
            said[kind.name] = word, (len(ids), len(ids) + len(sentence))
            ids += sentence
        ids += pen.piece("\n\nNow a part of a novel.\n\n")
        ids += [token for sentence in pen.sentences(rng, distance) for token in sentence]
        asked = pen.piece("\n\nThat was the novel. What were the facts about me?")
        questions = []
        for kind in KINDS:
            word, holds = said[kind.name]
            others = rng.sample([other for other in kind.words if other != word], self.choices - 1)
            feed = (*asked, *after, *pen.piece(f"\n{kind.asks}"))
            answers, right = shuffled(rng, pen, word, others, " ", "")
            questions.append(
                Question(
                    at=len(ids),
                    feed=feed,
                    answers=answers,
                    right=right,
                    blank=(*before, *feed),
                    holds=holds,
                    check=_begins_with(word),
                    length=len(answers[right]) + 2,
                    cell=(("distance", distance), ("kind", kind.name)),
                )
            )
        return Trial(ids=tuple(ids), questions=tuple(questions), group=group)


def _begins_with(word: str) -> Callable[[str], bool]:
    def check(written: str) -> bool:
        return written.strip(" \n*\"'").lower().startswith(word.lower())

    return check
