"""One statement in a haystack, asked for when the haystack has been read: the grid that needle and pass key share.

Depth says where the statement stands (0: in front of all filler, 1: behind it), length how many tokens stand before the
question, the statement included. Whether the question is *visible* when the cache chooses: `hidden`, the haystack is
fed, entries are evicted, and then the question comes; `visible`, the question belongs to what is fed before entries are
evicted, and only the beginning of the answer comes after. Not here: the statement and the hay.
"""

import random
from dataclasses import dataclass
from typing import ClassVar, Literal

from sinkpin.errors import InputError
from sinkpin.evaluate.probes.base import (
    Asking,
    Cell,
    Question,
    Trial,
    each_of,
    each_share,
    each_whole,
    one_of,
)
from sinkpin.evaluate.probes.numbers import drawn, says, shuffled
from sinkpin.evaluate.probes.pen import Pen, Style

HIDDEN, VISIBLE = "hidden", "visible"


@dataclass(frozen=True)
class Asked:
    """What one trial says and asks, in pieces of text; `answer` begins an answer to be completed with a number."""

    preamble: str
    statement: str
    question: str
    answer: str
    number: int
    others: tuple[int, ...]


@dataclass(frozen=True)
class Buried(Asking):
    """`lengths` in tokens; `depths` as shares; `question`: `hidden`, `visible` or both. `trials` for each cell of the grid."""

    lengths: tuple[int, ...] = (512, 1024)
    depths: tuple[float, ...] = (0.1, 0.5, 0.9)
    question: tuple[Literal["hidden", "visible"], ...] = ("hidden", "visible")
    style: Style = "plain"

    axes: ClassVar[tuple[str, ...]] = ("length", "depth", "question")

    def __post_init__(self) -> None:
        super().__post_init__()
        each_whole("lengths", self.lengths, 1)
        each_share("depths", self.depths)
        each_of("question", self.question, (HIDDEN, VISIBLE))
        one_of("style", self.style, ("plain", "chat"))

    def asked(self, rng: random.Random) -> Asked:
        raise NotImplementedError(f"{type(self).__name__} has no asked(rng)")

    def hay(self, pen: Pen, rng: random.Random, tokens: int) -> list[list[int]]:
        """Filler of exactly so many tokens, in pieces between which a statement may stand."""
        raise NotImplementedError(f"{type(self).__name__} has no hay(pen, rng, tokens)")

    def write(self, pen: Pen) -> tuple[Trial, ...]:
        rng = random.Random(f"{self.name} {self.seed}")
        found: list[Trial] = []
        group = 0
        for length in self.lengths:
            for depth in self.depths:
                for _ in range(self.trials):
                    found += self._trial(pen, rng, length, depth, group)
                    group += 1
        return tuple(found)

    def _trial(self, pen: Pen, rng: random.Random, length: int, depth: float, group: int) -> list[Trial]:
        asked = self.asked(rng)
        before, after = pen.around(self.style)
        statement = pen.piece(f" {asked.statement}")
        opening = [*before, *pen.piece(asked.preamble)]
        room = length - len(opening) - len(statement)
        if room < len(statement):
            raise InputError(
                f"--lengths {length}: {len(opening)} tokens of introduction and {len(statement)} of what is to be found leave "
                f"{max(room, 0)} for the text around it; give {length - room + len(statement)} or more"
            )
        front, back = _parted(self.hay(pen, rng, room), depth * room)
        ids = (*opening, *front, *statement, *back)
        start = len(opening) + len(front)
        question, answer = pen.piece(asked.question), pen.piece(asked.answer)
        answers, right = shuffled(rng, pen, asked.number, asked.others, " ", "")

        def cell(seen: str) -> Cell:
            return (("length", length), ("depth", depth), ("question", seen))

        def put(seen: str, twins: tuple[Cell, ...]) -> Question:
            asks = (*question, *after, *answer)
            inside = len(question) if seen == VISIBLE else 0
            return Question(
                at=len(ids) + inside,
                feed=asks[inside:],
                answers=answers,
                right=right,
                blank=(*before, *asks),
                holds=(start, start + len(statement)),
                check=says(asked.number),
                length=len(answers[right]) + 2,
                cell=cell(seen),
                twins=twins,
            )

        first, *more = self.question
        twins = tuple(cell(seen) for seen in more)
        return [
            Trial(
                ids=(*ids, *question) if seen == VISIBLE else ids,
                questions=(put(seen, twins if seen == first else ()),),
                group=group,
                by_index=seen == first,
            )
            for seen in self.question
        ]

    def numbers(self, rng: random.Random) -> tuple[int, tuple[int, ...]]:
        """The one to be found and its alternatives."""
        right, *others = drawn(rng, 1 if self.exact else self.choices)
        return right, tuple(others)


def _parted(pieces: list[list[int]], place: float) -> tuple[list[int], list[int]]:
    """The pieces in two, at the border nearest to `place` tokens."""
    borders = [0]
    for piece in pieces:
        borders.append(borders[-1] + len(piece))
    nearest = min(range(len(borders)), key=lambda i: abs(borders[i] - place))
    front, back = pieces[:nearest], pieces[nearest:]
    return [t for piece in front for t in piece], [t for piece in back for t in piece]
