"""H2O: the newest half of the room, and of the others those that received most attention."""

from __future__ import annotations

from naive.evidence import Choice, Choose, Held, best, each_head


def h2o_choice(budget: int, pins: frozenset[int], *, normalize: bool = False) -> Choose:
    """Half the room heavy, rounded down, half recent. `normalize` makes the sum a mean over queries."""

    def choose(held: Held, free: list[int], room: int) -> Choice:
        heavy = room // 2
        older, recent = free[: len(free) - (room - heavy)], free[len(free) - (room - heavy) :]
        scores = {j: held.mass[j] / (held.seen - j) if normalize else held.mass[j] for j in older}
        return Choice(best(scores, heavy) + recent, scores)

    return each_head(budget, pins, choose)
