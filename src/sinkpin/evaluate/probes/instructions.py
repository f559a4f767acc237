"""`instructions`: several rules in a system prompt, kept over many turns of a chat in the model's own template.

Behind the system prompt stand turns in which the assistant reads a novel out, `distances` tokens of it; then the user asks
when a train leaves, once for each rule. With `score` choice the right variant of the rule (`rules`) has to be the likeliest
of four; with exact the answer that the model writes is checked. All rules of a trial stand in one system prompt, so its
answers count as one group. Not here: rules that contradict each other, and messages that try to lift them.
"""

import random
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from sinkpin.errors import InputError
from sinkpin.evaluate.probes.base import Asking, Question, Trial, each_whole, whole
from sinkpin.evaluate.probes.pen import MARK, Pen
from sinkpin.evaluate.probes.rules import RULES, VARIANTS, Rule, Variant

_ASKS = "When does the train to town leave? It is said to leave at nine."
_TURN = 150  # tokens of novel in a turn
_WRITTEN = 40  # tokens of an answer that the model writes


@dataclass(frozen=True)
class Instructions(Asking):
    """`distances` in tokens of novel; `rules` at once; `trials` for each distance."""

    trials: int = 6
    choices: int = VARIANTS
    distances: tuple[int, ...] = (300, 900)
    rules: int = len(RULES)

    name: ClassVar[str] = "instructions"
    summary: ClassVar[str] = "several rules of a system prompt kept at once over a chat, by rule and distance"
    axes: ClassVar[tuple[str, ...]] = ("distance", "rule")

    def __post_init__(self) -> None:
        super().__post_init__()
        each_whole("distances", self.distances, 1)
        whole("rules", self.rules, 1)
        if self.rules > len(RULES):
            raise InputError(f"--rules {self.rules}: there are {len(RULES)}, so {len(RULES)} or fewer")
        if self.choices != VARIANTS:
            raise InputError(
                f"--choices {self.choices}: each rule has {VARIANTS} variants, and all are compared"
            )

    @property
    def chance(self) -> float:
        return 1 / VARIANTS

    @property
    def chance_says(self) -> str:
        if not self.exact:
            return super().chance_says
        return f"one of {VARIANTS} variants of each rule, for a model that keeps to one of them out of habit"

    def write(self, pen: Pen) -> tuple[Trial, ...]:
        rng = random.Random(f"{self.name} {self.seed}")
        return tuple(
            self._trial(pen, rng, distance, number * len(self.distances) + place)
            for number in range(self.trials)
            for place, distance in enumerate(self.distances)
        )

    def _trial(self, pen: Pen, rng: random.Random, distance: int, group: int) -> Trial:
        rules = [(rule, rng.randrange(VARIANTS)) for rule in rng.sample(RULES, self.rules)]
        turns = ceil(distance / _TURN)
        chat = [{"role": "system", "content": MARK}]
        for _ in range(turns):
            chat.append({"role": "user", "content": "Read on."})
            chat.append({"role": "assistant", "content": MARK})
        chat.append({"role": "user", "content": MARK})
        before, *between, after = pen.chat_around(chat)
        ids = [*pen.encoded(before), *pen.piece("You keep to these rules.")]
        holds = []
        for rule, variant in rules:
            sentence = pen.piece(f" {rule.variants[variant].says}")
            holds.append((len(ids), len(ids) + len(sentence)))
            ids += sentence
        for turn, part in enumerate(between):
            ids += pen.piece(part)
            if turn < turns:
                tokens = distance // turns + (turn < distance % turns)
                ids += [token for sentence in pen.sentences(rng, tokens) for token in sentence]
        asks = (*pen.piece(_ASKS), *pen.piece(after))
        plain = [{"role": "system", "content": "You answer questions."}, {"role": "user", "content": MARK}]
        bare = pen.encoded(pen.chat_around(plain)[0])
        return Trial(
            ids=tuple(ids),
            questions=tuple(
                self._question(pen, rule, variant, place, len(ids), asks, bare, distance)
                for (rule, variant), place in zip(rules, holds, strict=True)
            ),
            group=group,
        )

    def _question(
        self,
        pen: Pen,
        rule: Rule,
        variant: int,
        place: tuple[int, int],
        at: int,
        asks: tuple[int, ...],
        bare: list[int],
        distance: int,
    ) -> Question:
        cue = () if self.exact else pen.piece(rule.cue)
        right: Variant = rule.variants[variant]
        return Question(
            at=at,
            feed=(*asks, *cue),
            answers=tuple(tuple(pen.piece(each.keeps)) for each in rule.variants),
            right=variant,
            blank=(*bare, *asks, *cue),
            holds=place,
            check=right.check,
            length=_WRITTEN,
            cell=(("distance", distance), ("rule", rule.name)),
        )
