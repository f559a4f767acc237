"""One arm that reads trials and is asked: its cache, what it answered, and what it held and had evicted by then.

Not here: which trials there are (the probes), and what is made of all arms' answers (`run`).
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from sinkpin.cache.bounded import BoundedCache
from sinkpin.evaluate.arms import Arm
from sinkpin.evaluate.probes.answering import Blank, chosen, end_tokens, written
from sinkpin.evaluate.probes.base import Outcome, Probe, Question, Trial
from sinkpin.evaluate.probes.feeding import evicted, feed, forwards, held
from sinkpin.evaluate.probes.pen import Pen
from sinkpin.evaluate.probes.writing import Dice, write
from sinkpin.evaluate.scoring import cache_for

_ROWS = 8  # texts that are written at once


class Reader:
    """`chunk`: None feeds a prompt whole. `trained`: the full cache is not asked past so many positions. `stepped` is told
    how many tokens of the trials were fed since it was last called."""

    def __init__(
        self,
        model: Any,
        pen: Pen,
        arm: Arm,
        probe: Probe,
        *,
        chunk: int | None,
        trained: int | None,
        blank: Blank,
        stepped: Callable[[int], None],
    ) -> None:
        self.model, self.pen, self.arm, self.chunk, self.blank = model, pen, arm, chunk, blank
        self.exact = probe.exact
        self.trained = trained if arm.policy == "full" else None
        self.stepped = stepped
        self.evictions: list[float] = []
        self.budgets: set[int | None] = set()
        self.nbytes = 0
        self.frame: str | None = None
        self.notes: dict[str, None] = {}
        self._ends = end_tokens(model, pen.tokenizer)

    def ask(self, trial: Trial) -> list[Outcome]:
        """The answers to the questions of one trial: none where the arm is not run on it."""
        found: list[Outcome] = []
        asked = [(n, q) for n, q in enumerate(trial.questions) if self._reaches(q)]
        with cache_for(self.model, self.arm, min(q.at for q in trial.questions)) as cache:
            if asked and (trial.by_index or cache.policy.kind != "position"):
                points = sorted({question.at for _, question in asked})
                for start, stop in forwards(points, cache.policy.kind, self.chunk):
                    feed(self.model, [trial.ids[start:stop]], cache)
                    self.stepped(stop - start)
                    here = [(n, question) for n, question in asked if question.at == stop]
                    if here:
                        self._meet(cache)
                    for number, question in here:
                        found += self._answers(cache, trial, number, question)
        return found

    def _reaches(self, question: Question) -> bool:
        return self.trained is None or question.end <= self.trained

    def _meet(self, cache: BoundedCache) -> None:
        """The cache as it is when it is asked. That something was evicted is what the probe is about."""
        gone = evicted(cache)
        assert gone > 0 or not cache.policy.bounded, (
            f"{self.arm.name} is asked after {cache.seen} tokens and evicted none"
        )
        self.evictions.append(gone)
        self.budgets.add(cache.budget_tokens)
        self.nbytes = max(self.nbytes, cache.nbytes())
        self.frame = cache.frame if cache.policy.bounded else None
        self.notes |= dict.fromkeys(cache.notes)

    def _answers(self, cache: BoundedCache, trial: Trial, number: int, question: Question) -> list[Outcome]:
        with copy.deepcopy(cache) as branch:
            if self.exact:
                text = self.pen.read(written(self.model, question, branch, self._ends))
                right = question.check(text)
            else:
                right = chosen(self.model, question, branch, self.blank) == question.right
        measures = {"held": held(cache, question.holds)}
        cells = [question.cell, *(question.twins if cache.policy.kind == "position" else ())]
        return [
            Outcome(
                key=(trial.group, number, cell),
                group=trial.group,
                cell=cell,
                value=float(right),
                measures=measures,
            )
            for cell in cells
        ]

    def write_on(
        self, trials: Sequence[Trial], tokens: int, temperature: float, seed: int
    ) -> list[tuple[list[int], str]]:
        """What the model writes behind each trial: its ids and its text."""
        found = []
        for first in range(0, len(trials), _ROWS):
            rows = trials[first : first + _ROWS]
            length = len(rows[0].ids)
            with cache_for(self.model, self.arm, length) as cache:
                for start, stop in forwards([length], cache.policy.kind, self.chunk):
                    logits = feed(self.model, [row.ids[start:stop] for row in rows], cache)[:, -1]
                self._meet(cache)
                dice = Dice(seed, range(first, first + len(rows)), tokens)
                found += write(self.model, cache, logits, dice, temperature=temperature, never=self._ends)
                self.nbytes = max(self.nbytes, cache.nbytes())
            self.stepped(len(rows) * (length + tokens))
        return [(ids, self.pen.read(ids)) for ids in found]
