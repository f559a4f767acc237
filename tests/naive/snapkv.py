"""SnapKV: when the prompt ends, the entries around which its last queries looked; from then on the newest slide."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naive.evidence import Choice, Choose, Held, best, unpinned


def snapkv_choice(
    budget: int,
    pins: frozenset[int],
    *,
    prompt: int | None = None,
    window_size: int | None = None,
    kernel: int = 7,
    pool: str = "max",
    layer_budget: Callable[[int, int], int] | None = None,
) -> Choose:
    """`prompt` None: the first forward is the prompt. `layer_budget(layer, layers)` in place of one budget for all."""

    def choose(heads: Sequence[Held]) -> list[Choice]:
        return [of_head(held) for held in heads]

    def of_head(held: Held) -> Choice:
        size = layer_budget(held.layer, held.layers) if layer_budget else budget
        pinned, free, room = unpinned(held, size, pins)
        if held.frozen is not None:
            return Choice(sorted(pinned + slide(free, held.frozen, room, held.window)), {})
        if held.seen < (prompt or 1):
            return Choice(held.origins, {})
        held.window = window_size or max(1, min(32, room // 2))
        older = free[: max(0, len(free) - held.window)]
        scores = pooled(held, older, held.window, kernel, pool)
        held.frozen = set(older if len(free) <= room else best(scores, room - held.window))
        return Choice(sorted(pinned + list(held.frozen) + free[len(older) :]), scores)

    return choose


def pooled(held: Held, older: list[int], window: int, kernel: int, pool: str) -> dict[int, float]:
    """What each of `older` and its neighbours among them received from the last `window` queries."""
    received = [sum(row[j] for row in held.rows[-window:]) for j in older]
    scores = {}
    for place, origin in enumerate(older):
        near = received[max(0, place - kernel // 2) : place + kernel // 2 + 1]
        scores[origin] = max(near) if pool == "max" else sum(near) / len(near)
    return scores


def slide(free: list[int], frozen: set[int], room: int, window: int) -> list[int]:
    """The frozen, and as many of the newest others as there is room for; of these at least the window's number: where
    pins were met since, the oldest of the frozen make way for them."""
    stays = [j for j in free if j in frozen]
    stays = stays[len(stays) - min(len(stays), max(0, room - window)) :]
    others = [j for j in free if j not in frozen]
    return stays + others[len(others) - min(len(others), room - len(stays)) :]
