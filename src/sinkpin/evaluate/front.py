"""The arms that no other arm beats in bytes and in loss at once: the Pareto front.

By the values that were measured: where intervals overlap, which of two arms stands on the front may be chance. Not
here: a choice among them, which is a question of what a loss is worth.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def front(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    """Their names, by bytes held at the end, fewest first. Of arms alike in both, the first."""
    best = float("inf")
    names = []
    for arm in sorted(arms, key=lambda arm: (arm["kv_bytes_steady"], arm["delta_nll"])):
        if arm["delta_nll"] < best:
            best = arm["delta_nll"]
            names.append(arm["name"])
    return names
