"""Numbers to be remembered, and alternatives to them: what the needle, the pass key and the lines of a record ask for."""

import random
from collections.abc import Callable, Sequence

from sinkpin.evaluate.probes.base import Ids
from sinkpin.evaluate.probes.pen import Pen

LEAST, MOST = 10_000, 99_999


def drawn(rng: random.Random, count: int) -> list[int]:
    """Distinct numbers of five digits."""
    return rng.sample(range(LEAST, MOST + 1), count)


def shuffled(
    rng: random.Random, pen: Pen, right: object, wrong: Sequence[object], before: str, after: str
) -> tuple[tuple[Ids, ...], int]:
    """The ids of each alternative between two pieces of text, in an order drawn by `rng`, and which is right."""
    order = [right, *wrong]
    rng.shuffle(order)
    return tuple(tuple(pen.piece(f"{before}{each}{after}")) for each in order), order.index(right)


def says(number: int) -> Callable[[str], bool]:
    """Whether a written answer begins with this number and not with a longer one."""
    wanted = str(number)

    def check(written: str) -> bool:
        found = written.lstrip(" \n\t<:*\"'")
        return found.startswith(wanted) and not found[len(wanted) :][:1].isdigit()

    return check
