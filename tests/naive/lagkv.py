"""LagKV: how unevenly keys and values lie in the range of the next block, block by block."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import stdev

from torch import Tensor

from naive.evidence import Choice, Choose, Held, best, each_head


def lagkv_choice(
    budget: int, pins: frozenset[int], *, lag: int | None = None, across: bool = False, rotated: bool = True
) -> Choose:
    """`lag` None is 128, or a quarter of the room where that is less."""

    def choose(held: Held, free: list[int], room: int) -> Choice:
        size = lag or min(128, max(1, room // 4))
        whole = len(free) // size
        blocks = [free[i * size : (i + 1) * size] for i in range(whole)]
        tail = free[(whole - 1) * size :]
        keys = held.rotated if rotated else held.keys
        scores: dict[int, float] = {}
        ranks: dict[int, float] = {}
        for block, after in pairwise(blocks):
            of_keys, of_values = shares(keys, block, after), shares(held.values, block, after)
            scores.update({j: of_keys[j] + of_values[j] for j in block})
            worst_first = reversed(best({j: scores[j] for j in block}, size))
            ranks.update({j: place for place, j in enumerate(worst_first)})
        return Choice(best(scores if across else ranks, room - len(tail)) + tail, scores)

    return each_head(budget, pins, choose)


def shares(x: dict[int, Tensor], block: list[int], after: list[int]) -> dict[int, float]:
    """Softmax over the block of each entry's standard deviation over the channels, scaled by the next block."""
    channels = range(len(x[block[0]]))
    low = [min(x[j][c].item() for j in after) for c in channels]
    high = [max(x[j][c].item() for j in after) for c in channels]
    spread = {
        j: stdev(
            (x[j][c].item() - low[c]) / (high[c] - low[c]) if high[c] > low[c] else 0.0 for c in channels
        )
        for j in block
    }
    top = max(spread.values())
    total = sum(math.exp(s - top) for s in spread.values())
    return {j: math.exp(s - top) / total for j, s in spread.items()}
