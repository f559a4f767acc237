"""`passkey`: a number said once among lines that repeat, the easiest thing to find, if it is still there.

After the pass-key task of Mohtashami and Jaggi (2023); the wording is our own. The filler says the same over and over, so
the key stands out, and a score that follows attention may find it; the needle is the other case.
"""

import random
from dataclasses import dataclass
from itertools import cycle
from typing import ClassVar

from sinkpin.evaluate.probes.buried import Asked, Buried
from sinkpin.evaluate.probes.pen import Pen

_HAY = ("The road goes on.", "The hills are quiet.", "A wind comes up.", "Then it is still again.")


@dataclass(frozen=True)
class Passkey(Buried):
    name: ClassVar[str] = "passkey"
    summary: ClassVar[str] = (
        "a pass key among repeated lines, by length and depth, the question visible or not"
    )

    def asked(self, rng: random.Random) -> Asked:
        number, others = self.numbers(rng)
        return Asked(
            preamble="One line of this text states a pass key. Keep it in mind.\n\n",
            statement=f"The pass key is {number}. Keep in mind that {number} is the pass key.",
            question="\n\nWhat is the pass key that the text states?",
            answer="\nThe pass key is",
            number=number,
            others=others,
        )

    def hay(self, pen: Pen, rng: random.Random, tokens: int) -> list[list[int]]:
        lines = [pen.piece(f" {line}") for line in _HAY]
        taken: list[list[int]] = []
        room = tokens
        for line in cycle(lines):
            taken.append(line[:room])
            room -= len(taken[-1])
            if room <= 0:
                return taken
        raise AssertionError("a cycle does not end")
