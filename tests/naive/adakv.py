"""Ada-KV: the best scores of a whole layer, after every head has got its floor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from naive.evidence import Choice, Choose, Held, unpinned
from naive.expected import expectation
from naive.snapkv import pooled, slide

Scores = dict[int, float]
Score = Callable[[Held, list[int], int], Scores]
"""Scores of one head's candidates, when the heads have room for so many on average; infinite ones stay in any case."""


def of_h2o(held: Held, free: list[int], room: int) -> Scores:
    """H2O's: the newest half of the room stays, the others by the attention they received."""
    recent = free[max(0, len(free) - (room - room // 2)) :]
    return {j: math.inf if j in recent else held.mass[j] for j in free}


def of_expected(held: Held, free: list[int], room: int) -> Scores:
    """Expected Attention's, with its defaults."""
    return expectation(held, free, 512, 0.0)


def of_snapkv(held: Held, free: list[int], room: int) -> Scores:
    """SnapKV's, with its defaults; `newest` of them stay."""
    older = free[: len(free) - newest(room)]
    return dict.fromkeys(free, math.inf) | pooled(held, older, newest(room), 7, "max")


def newest(room: int) -> int:
    """SnapKV's window."""
    return max(1, min(32, room // 2))


def adakv_choice(
    budget: int, pins: frozenset[int], *, score: Score = of_h2o, alpha: float = 0.2, once: bool = False
) -> Choose:
    """`budget` is the mean over the heads of a layer; the pins are in every head. `once`: only when the first forward,
    the prompt, ends; each head then goes on with what it was given, and its newest slide."""

    def choose(heads: Sequence[Held]) -> list[Choice]:
        if once and heads[0].frozen is not None:
            return [slid(held, *unpinned(held, held.allotted, pins)) for held in heads]
        parts = [unpinned(held, budget, pins) for held in heads]
        room = parts[0][2]
        choices = [Choice(held.origins, {}) for held in heads]
        if sum(len(free) for _, free, _ in parts) > room * len(heads):
            scores = [score(held, free, room) for held, (_, free, _) in zip(heads, parts, strict=True)]
            kept = joint(scores, room * len(heads), math.ceil(round(alpha * room, 9)))
            choices = [
                Choice(sorted(part[0] + mine), of_head)
                for part, mine, of_head in zip(parts, kept, scores, strict=True)
            ]
        if once:
            for held, choice in zip(heads, choices, strict=True):
                free = [j for j in choice.kept if j not in pins]
                held.window = newest(room)
                held.frozen = set(free[: max(0, len(free) - held.window)])
                held.allotted = len(choice.kept) if choice.scores else budget
        return choices

    return choose


def slid(held: Held, pinned: list[int], free: list[int], room: int) -> Choice:
    assert held.frozen is not None
    return Choice(sorted(pinned + slide(free, held.frozen, room, held.window)), {})


def joint(scores: list[Scores], places: int, floor: int) -> list[list[int]]:
    """Each head's `floor` best, and the best of the rest until `places` are taken; of equal scores the newer stays."""
    ranked = sorted(
        ((score, origin, -head) for head, of_head in enumerate(scores) for origin, score in of_head.items()),
        reverse=True,
    )
    kept = [[origin for _, origin, minus in ranked if minus == -head][:floor] for head in range(len(scores))]
    for _, origin, minus in ranked:
        if sum(map(len, kept)) < places and origin not in kept[-minus]:
            kept[-minus].append(origin)
    return kept
