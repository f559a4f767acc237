"""KeyDiff: the keys that point least along the mean direction."""

from __future__ import annotations

from naive.evidence import Choice, Choose, Held, best, each_head


def keydiff_choice(budget: int, pins: frozenset[int], *, rotated: bool = True) -> Choose:
    """The mean is over the candidates' unit keys; two candidates make equal angles with it, so the newer stays."""

    def choose(held: Held, free: list[int], room: int) -> Choice:
        keys = {j: (held.rotated if rotated else held.keys)[j].double() for j in free}
        anchor = sum(key / key.norm() for key in keys.values()) / len(free)
        cosines = {j: (key @ anchor / key.norm() / anchor.norm()).item() for j, key in keys.items()}
        scores = {j: 0.0 if len(free) == 2 else -cosines[j] for j in free}
        return Choice(best(scores, room), scores)

    return each_head(budget, pins, choose)
