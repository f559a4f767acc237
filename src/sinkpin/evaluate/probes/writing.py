"""Long free generation of several rows at once, with the same random numbers for every arm.

Each row has its own generator, and a token is found in the cumulated distribution by one random number a step: two arms
with equal logits write equal texts, and a row does not hang on its neighbours. Not here: beams, top-k, top-p.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinkpin.cache.bounded import BoundedCache
from sinkpin.evaluate.probes.feeding import feed


class Dice:
    """Random numbers `[rows, steps]`, one generator a row, which `seed` and its number fix."""

    def __init__(self, seed: int, rows: range, steps: int) -> None:
        self.drawn = torch.from_numpy(
            np.stack([np.random.default_rng([seed, row]).random(steps) for row in rows])
        )

    def tokens(self, logits: Tensor, temperature: float, step: int) -> Tensor:
        """One token a row of `logits` `[rows, vocabulary]`; the likeliest at temperature 0."""
        if temperature == 0:
            return logits.argmax(-1)
        whole = (logits.double() / temperature).softmax(-1).cumsum(-1)
        place = self.drawn[:, step, None] * whole[:, -1:]  # rounding leaves the sum a little off 1
        return torch.searchsorted(whole, place, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)


def write(
    model: Any,
    cache: BoundedCache,
    logits: Tensor,
    dice: Dice,
    *,
    temperature: float,
    never: frozenset[int],
) -> list[list[int]]:
    """So many tokens a row as there are random numbers, behind what the cache holds; `logits` `[rows, vocabulary]` are of the
    token before. Tokens of `never` are not written."""
    banned = torch.tensor(sorted(never), dtype=torch.int64)
    rows: list[list[int]] = [[] for _ in range(logits.shape[0])]
    for step in range(dice.drawn.shape[1]):
        tokens = dice.tokens(logits.index_fill(-1, banned, -torch.inf), temperature, step).tolist()
        for row, token in zip(rows, tokens, strict=True):
            row.append(token)
        if step + 1 < dice.drawn.shape[1]:
            logits = feed(model, [[token] for token in tokens], cache)[:, -1]
    return rows
