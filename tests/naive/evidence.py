"""Any scored policy over a whole prefill and decode, with all the evidence there is, gathered one number at a time.

As `chunked`, one forward at a time: a query sees everything kept and its chunk up to itself; then each layer chooses.
For each layer and KV head a `Held` keeps what it holds and what is known of it; `choose(heads)` gets those of one layer
and says for each head what to keep, with the scores it went by. One row, no padding.

Near-ties: two ways of computing one score differ by rounding, so a choice between two almost equal scores can fall
either way, and everything after it differs. `walk(…, follow=…)` is given what the cache under test held after each
forward. It demands the same sets, except that entries may be swapped whose scores are within `GAP` of each other: then
it goes on from what the cache chose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from naive.anatomy import dissect, rotate_each, weigh

GAP = 1e-4
"""How far apart two scores may be, relative to the larger, to count as a near-tie."""
FLOOR = 1e-12
"""Scores (of attention) that are both below this are a tie: fp32 holds them only roughly."""


@dataclass
class Held:
    """One KV head of one layer. Everything is keyed by origin, the index of a token in the text.

    `mass`: attention that all queries so far, the entry's own included, paid to it. `rows`: for each query so far what
    it paid to what it saw. Both are averaged over the group's query heads. `rotated`: the keys at their places in the
    frame, as of the last forward. `queries`: of every token so far, before rotation, `[group, D]`; `rotate(x, places)`
    turns any `x [heads, N, D]` as this layer would, and `scaling` multiplies dot products. `now`: the newest one's
    place. `layers`: how many the model has. `frozen`: what was chosen for good when a prompt ended, None before,
    `window`: how many of the newest slide from then on, `allotted`: how many entries this head goes on with, where heads
    share a budget.
    """

    layer: int
    head: int
    seen: int = 0
    keys: dict[int, Tensor] = field(default_factory=dict)
    rotated: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    mass: dict[int, float] = field(default_factory=dict)
    rows: list[dict[int, float]] = field(default_factory=list)
    queries: list[Tensor] = field(default_factory=list)
    scaling: float = 1.0
    rotate: Callable[[Tensor, list[int]], Tensor] | None = None
    now: int = 0
    layers: int = 1
    frozen: set[int] | None = None
    window: int = 0
    allotted: int = 0

    @property
    def origins(self) -> list[int]:
        return sorted(self.keys)

    def drop(self, gone: Iterable[int]) -> None:
        for origin in gone:
            for known in (self.keys, self.rotated, self.values, self.mass):
                del known[origin]


@dataclass(frozen=True)
class Choice:
    """`kept`: origins, pins included. `scores`: of the entries that were in question, for telling near-ties."""

    kept: list[int]
    scores: dict[int, float]


Choose = Callable[[Sequence[Held]], list[Choice]]


def best(scores: dict[int, float], count: int) -> list[int]:
    """The `count` origins of the highest scores; of equal ones the newer."""
    return sorted(scores, key=lambda origin: (scores[origin], origin), reverse=True)[:count]


def unpinned(held: Held, budget: int, pins: frozenset[int]) -> tuple[list[int], list[int], int]:
    """Pins held, candidates, and for how many candidates there is room; both ascending."""
    kept = [origin for origin in held.origins if origin in pins]
    return kept, [origin for origin in held.origins if origin not in pins], budget - len(kept)


def each_head(budget: int, pins: frozenset[int], choose: Callable[[Held, list[int], int], Choice]) -> Choose:
    """Every head by itself: `choose(held, candidates, room)` is asked where there are more candidates than room."""

    def all_heads(heads: Sequence[Held]) -> list[Choice]:
        out = []
        for held in heads:
            pinned, free, room = unpinned(held, budget, pins)
            if len(free) <= room:
                out.append(Choice(held.origins, {}))
            else:
                chosen = choose(held, free, room)
                out.append(Choice(sorted(pinned + chosen.kept), chosen.scores))
        return out

    return all_heads


@dataclass
class Walked:
    """Logits [T, vocab], what each layer and KV head holds at the end, and after each forward:
    origins[layer][head], history[forward][layer][head]."""

    logits: Tensor
    origins: list[list[list[int]]]
    history: list[list[list[list[int]]]]
    near_ties: int = 0


@torch.no_grad()
def walk(
    model: Any,
    ids: Tensor,
    chunks: Iterable[int],
    choose: Choose,
    *,
    frame: str = "original",
    follow: list[list[list[list[int]]]] | None = None,
) -> Walked:
    """Feed ids [T] in chunks of the given sizes (they must add up to T)."""
    body = dissect(model)
    layers: list[list[Held]] = [[] for _ in body.layers]
    done = Walked(torch.empty(0), [], [])
    out: list[Tensor] = []
    start = 0
    for step, size in enumerate(chunks):
        hidden = body.embed(ids[start : start + size])
        for number, layer in enumerate(body.layers):
            q, k, v = layer.project(hidden)
            if not layers[number]:
                layers[number] = [
                    Held(number, head, scaling=layer.scaling, layers=len(layers)) for head in range(len(k))
                ]
            group = len(q) // len(k)
            attended = torch.empty(size, len(q), v.shape[-1])
            for held in layers[number]:
                mine = slice(held.head * group, (held.head + 1) * group)
                attended[:, mine] = _attend(model, held, q[mine], k[held.head], v[held.head], frame)
            hidden = layer.finish(hidden, attended.reshape(size, -1))
        out.append(body.logits(hidden))
        start += size
        for number, heads in enumerate(layers):
            for held, choice in zip(heads, choose(heads), strict=True):
                kept = choice.kept
                if follow is not None and follow[step][number][held.head] != kept:
                    where = f"forward {step} (to token {start}), layer {number}, head {held.head}"
                    _near_tie(choice, follow[step][number][held.head], where)
                    kept = follow[step][number][held.head]
                    done.near_ties += 1
                held.drop(set(held.keys) - set(kept))
        done.history.append([[held.origins for held in heads] for heads in layers])
    assert start == len(ids), f"chunks cover {start} of {len(ids)} tokens"
    done.logits, done.origins = torch.cat(out), done.history[-1]
    return done


def _attend(model: Any, held: Held, q: Tensor, k: Tensor, v: Tensor, frame: str) -> Tensor:
    """One head's forward: q [group, new, D], k and v [new, D], raw -> [new, group, D]; `held` learns of it."""
    before, new = len(held.keys), len(k)
    for i in range(new):
        held.keys[held.seen + i], held.values[held.seen + i] = k[i], v[i]
        held.mass[held.seen + i] = 0.0
        held.queries.append(q[:, i])
    held.seen += new
    order = held.origins
    places = list(range(len(order))) if frame == "slots" else order
    keys = rotate_each(model, torch.stack([held.keys[j] for j in order])[None], places, places)
    values = torch.stack([held.values[j] for j in order])[None]
    queries = rotate_each(model, q, places[before:], places)
    held.rotated = dict(zip(order, keys[0], strict=True))
    held.rotate, held.now = (lambda x, where: rotate_each(model, x, where, places)), places[-1]
    attended = torch.empty(new, len(q), v.shape[-1])
    for i in range(new):
        sees = order[: before + i + 1]
        weights = weigh(queries[:, i], keys[:, : len(sees)], held.scaling)
        attended[i] = (weights[..., None] * values[:, : len(sees)]).sum(1)
        row = dict(zip(sees, weights.double().mean(0).tolist(), strict=True))
        for origin, paid in row.items():
            held.mass[origin] += paid
        held.rows.append(row)
    return attended


def _near_tie(choice: Choice, got: list[int], where: str) -> None:
    """Fail unless `got` differs from the choice by entries with almost the same scores."""
    dropped, taken = set(choice.kept) - set(got), set(got) - set(choice.kept)
    swapped = [choice.scores[origin] for origin in dropped | taken if origin in choice.scores]
    in_question = len(dropped) == len(taken) and len(swapped) == 2 * len(taken)
    size = max((abs(score) for score in swapped), default=0.0)
    assert in_question and (max(swapped) - min(swapped) <= GAP * size or size < FLOOR), (
        f"{where}: the cache keeps {got}, the plain loop {choice.kept}; "
        f"scores of those dropped {[(o, choice.scores.get(o)) for o in sorted(dropped)]}, "
        f"of those taken instead {[(o, choice.scores.get(o)) for o in sorted(taken)]}"
    )
