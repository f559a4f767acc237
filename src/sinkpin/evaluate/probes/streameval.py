"""`streameval`: a record of numbered lines through one cache, and every ten lines a question about a line `d` lines back.

The format is that of StreamingLLM's StreamEval, whose authors released neither code nor data: an opening line, lines
that each hold a number, from line 20 on a question every ten lines, exact match. The wording of the question is ours. A
negative control: what a cache has evicted it cannot tell, whatever the policy, so an arm falls to chance where `d` lines
are more than it holds.

A question is asked on a copy of the cache: neither it nor the answer enters the stream, so that all arms read the same
and a line's distance is the number of lines. With `score` choice the alternatives are the numbers of neighbouring
lines, held or evicted together with the right one: none is likelier for being there.
"""

import random
from dataclasses import dataclass
from typing import ClassVar

from sinkpin.errors import InputError
from sinkpin.evaluate.probes.base import EXACT, Asking, Question, Score, Trial, each_whole, whole
from sinkpin.evaluate.probes.numbers import drawn, says, shuffled
from sinkpin.evaluate.probes.pen import Pen
from sinkpin.spans import Span

OPENING = "Below is a record of lines I want you to remember."
LINE = "\nThe REGISTER_CONTENT in line {} is <"
ASKS = "\nTell me the REGISTER_CONTENT in line {}."
FIRST = 20  # lines before the first question


@dataclass(frozen=True)
class StreamEval(Asking):
    """`tokens`: of each stream; `trials` streams. `distances` in lines; `every`: lines from question to question."""

    trials: int = 8
    score: Score = EXACT
    tokens: int = 1600
    distances: tuple[int, ...] = (2, 10, 30)
    every: int = 10

    name: ClassVar[str] = "streameval"
    summary: ClassVar[str] = (
        "lines of a record, asked for a number of lines later, streamed through one cache"
    )
    axes: ClassVar[tuple[str, ...]] = ("distance",)
    streams: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("tokens", self.tokens, 1)
        whole("every", self.every, 1)
        each_whole("distances", self.distances, 1)

    def write(self, pen: Pen) -> tuple[Trial, ...]:
        rng = random.Random(f"{self.name} {self.seed}")
        return tuple(self._stream(pen, rng, number) for number in range(self.trials))

    def _stream(self, pen: Pen, rng: random.Random, group: int) -> Trial:
        ids = [*pen.opening, *pen.piece(OPENING)]
        written: list[int] = []  # the number in each line
        holds: list[Span] = []
        points: list[tuple[int, int]] = []  # lines so far, tokens so far
        numbers = iter(drawn(rng, min(self.tokens, 90_000)))  # a line has several tokens
        while True:
            number = next(numbers)
            front, back = pen.piece(LINE.format(len(written))), pen.piece(f"{number}>")
            if len(ids) + len(front) + len(back) > self.tokens:
                break
            written.append(number)
            holds.append((len(ids) + len(front), len(ids) + len(front) + len(back)))
            ids += [*front, *back]
            if len(written) >= FIRST and len(written) % self.every == 0:
                points.append((len(written), len(ids)))
        near = self.choices  # neighbours among which alternatives are
        questions = [
            self._question(pen, rng, lines - distance, at, written, holds, distance)
            for lines, at in points
            for distance in self.distances
            if lines - distance >= 0 and lines >= near
        ]
        asked = {dict(question.cell)["distance"] for question in questions}
        if missing := [distance for distance in self.distances if distance not in asked]:
            raise InputError(
                f"--distances {missing[0]}: a stream of {self.tokens:,} tokens has {len(written)} lines, in which nothing "
                f"stands {missing[0]} lines before a question; give more --tokens (about "
                f"{(max(missing[0], FIRST) + self.every) * len(ids) // max(len(written), 1) + len(ids):,}) or nearer distances"
            )
        return Trial(ids=tuple(ids), questions=tuple(questions), group=group)

    def _question(
        self,
        pen: Pen,
        rng: random.Random,
        line: int,
        at: int,
        written: list[int],
        holds: list[Span],
        distance: int,
    ) -> Question:
        feed = [*pen.piece(ASKS.format(line)), *pen.piece(LINE.format(line))]
        others: list[int] = []
        if not self.exact:
            said = line + distance  # lines that the stream has by now
            nearest = sorted(
                (other for other in range(said) if other != line), key=lambda other: abs(other - line)
            )
            others = [written[other] for other in nearest[: self.choices - 1]]
        answers, right = shuffled(rng, pen, written[line], others, "", ">")
        return Question(
            at=at,
            feed=tuple(feed),
            answers=answers,
            right=right,
            blank=(*pen.opening, *feed),
            holds=holds[line],
            check=says(written[line]),
            length=len(answers[right]) + 1,
            cell=(("distance", distance),),
        )
