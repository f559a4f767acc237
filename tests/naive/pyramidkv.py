"""PyramidKV: SnapKV's choice, with an arithmetic sequence of budgets from the lowest layer to the top one."""

from __future__ import annotations

from fractions import Fraction

from naive.evidence import Choose
from naive.snapkv import snapkv_choice


def pyramidkv_choice(
    budget: int,
    pins: frozenset[int],
    *,
    beta: int = 20,
    prompt: int | None = None,
    window_size: int | None = None,
    most: int | None = None,
) -> Choose:
    """`budget` is the mean over the layers; `most`: pins of the row with most of them, if that is another one."""

    def layer_budget(layer: int, layers: int) -> int:
        return allotment(layers, budget, len(pins) if most is None else most, beta, window_size)[layer]

    return snapkv_choice(budget, pins, prompt=prompt, window_size=window_size, layer_budget=layer_budget)


def allotment(layers: int, budget: int, pins: int, beta: int, window_size: int | None) -> list[int]:
    """From max = 2 (C - w) - min down to min = (C - w) / β, beside pins and window; entries lost to rounding down go
    one by one to the layer that is furthest below its due."""
    room = budget - pins
    window = window_size or max(1, min(32, room // 2))
    mean = room - window
    if layers == 1 or mean == 0:
        return [budget] * layers
    least = max(1, Fraction(mean, beta))
    most = 2 * mean - least
    due = [most - Fraction(layer, layers - 1) * (most - least) for layer in range(layers)]
    given = [share.numerator // share.denominator for share in due]
    while sum(given) < layers * mean:
        behind = [due[layer] - given[layer] for layer in range(layers)]
        given[behind.index(max(behind))] += 1
    return [pins + window + chosen for chosen in given]
