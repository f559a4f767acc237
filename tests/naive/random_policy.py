"""The random policy's choice as one sentence: the pins, the newest unpinned token, and the highest hashes.

The hash is a parameter; `contract.cells` hands in the documented one.
"""

from __future__ import annotations

from collections.abc import Callable

from naive.chunked import Choose

Hash = Callable[[int, int, int], int]


def random_choice(budget: int, pins: frozenset[int], hash_of: Hash) -> Choose:
    """`hash_of(layer, head, index)` ranks; each layer and head keeps its own set."""

    def choose(layer: int, head: int, origins: list[int]) -> list[int]:
        if len(origins) <= budget:
            return origins
        kept = [i for i in origins if i in pins]
        free = [i for i in origins if i not in pins]
        newest, rest = free[-1:], free[:-1]
        rest.sort(key=lambda index: hash_of(layer, head, index), reverse=True)
        return sorted(kept + newest + rest[: budget - len(kept) - len(newest)])

    return choose
