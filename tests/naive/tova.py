"""TOVA: what the last query attends to, on average over all heads; the same for all heads of a layer."""

from __future__ import annotations

from collections.abc import Sequence

from naive.evidence import Choice, Choose, Held, best, unpinned


def tova_choice(budget: int, pins: frozenset[int]) -> Choose:
    """Groups are of one size, so the mean over KV heads of their means is the mean over query heads."""

    def choose(heads: Sequence[Held]) -> list[Choice]:
        pinned, free, room = unpinned(heads[0], budget, pins)
        scores = {j: sum(held.rows[-1][j] for held in heads) / len(heads) for j in free}
        kept = sorted(pinned + best(scores, room))
        return [Choice(kept, scores) for _ in heads]

    return choose
