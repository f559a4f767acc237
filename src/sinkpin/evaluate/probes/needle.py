"""`needle`: a number of an office in some city, said once in the midst of a novel, and asked for afterwards.

The statement has nothing to do with the text around it, as in the tests known as needle in a haystack; the wording is our
own. Not here: several needles at once, and questions that take more than finding.
"""

import random
from dataclasses import dataclass
from typing import ClassVar

from sinkpin.evaluate.probes.buried import Asked, Buried
from sinkpin.evaluate.probes.lexicon import PLACES
from sinkpin.evaluate.probes.pen import Pen


@dataclass(frozen=True)
class Needle(Buried):
    name: ClassVar[str] = "needle"
    summary: ClassVar[str] = "a number hidden in a novel, by length and depth, the question visible or not"

    def asked(self, rng: random.Random) -> Asked:
        place = rng.choice(PLACES)
        number, others = self.numbers(rng)
        return Asked(
            preamble="Read the text below. A question about it comes at the end.\n\n",
            statement=f"The registry number of the office in {place} is {number}.",
            question=f"\n\nQuestion: What is the registry number of the office in {place}?",
            answer=f"\nAnswer: The registry number of the office in {place} is",
            number=number,
            others=others,
        )

    def hay(self, pen: Pen, rng: random.Random, tokens: int) -> list[list[int]]:
        return pen.sentences(rng, tokens)
