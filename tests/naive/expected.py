"""Expected Attention: what queries drawn like those so far would pay at the positions to come, times the value's norm."""

from __future__ import annotations

import torch
from torch import Tensor

from naive.evidence import Choice, Choose, Held, best, each_head


def expected_choice(budget: int, pins: frozenset[int], *, future: int = 512, epsilon: float = 0.0) -> Choose:
    """Every head by itself; the newest has no privilege."""

    def choose(held: Held, free: list[int], room: int) -> Choice:
        scores = expectation(held, free, future, epsilon)
        return Choice(best(scores, room), scores)

    return each_head(budget, pins, choose)


def expectation(held: Held, free: list[int], future: int, epsilon: float) -> dict[int, float]:
    """Softmax over `free` for each query head of the group, averaged, times the norms of the values."""
    R, keys, s = mean_rotation(held, future), keys_before(held, future), held.scaling
    group = len(held.queries[0])
    paid = dict.fromkeys(free, 0.0)
    for member in range(group):
        queries = torch.stack([q[member].double() for q in held.queries])
        mean = queries.mean(0)
        covariance = (queries - mean).T @ (queries - mean) / len(queries)
        to_come, spread = R @ mean, R @ covariance @ R.T
        logits = torch.stack([s * to_come @ keys[j] + s * s * keys[j] @ spread @ keys[j] / 2 for j in free])
        for j, share in zip(free, torch.softmax(logits, 0).tolist(), strict=True):
            paid[j] += share / group
    return {j: (paid[j] + epsilon) * held.values[j].double().norm().item() for j in free}


# Only differences of places count. Everything is moved back by `future`, so that no place is past the newest one: dynamic
# and longrope would choose other frequencies there than the model has at this length.


def mean_rotation(held: Held, future: int) -> Tensor:
    """The matrix that turns a query to each of the next `future` places, averaged: its columns are the turned axes."""
    assert held.rotate is not None
    axes = torch.eye(len(held.queries[0][0]))
    places = list(range(held.now + 1 - future, held.now + 1))
    return torch.stack(
        [held.rotate(axis.expand(1, future, -1), places)[0].double().mean(0) for axis in axes], dim=1
    )


def keys_before(held: Held, future: int) -> dict[int, Tensor]:
    """The keys, each `future` places before its own, which is its origin or its rank."""
    assert held.rotate is not None
    order = held.origins
    places = order if held.now == order[-1] else list(range(len(order)))
    turned = held.rotate(torch.stack([held.keys[j] for j in order])[None], [p - future for p in places])
    return dict(zip(order, turned[0].double(), strict=True))
