"""Sinks + window, one token at a time: what every position policy must equal however it is fed.

Token t sees the pins met so far and the most recent unpinned tokens, itself included, up to the budget. Each
layer keeps its raw keys; nothing is ever rotated twice. One row, no padding: a padded row is compared with
itself alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from naive.anatomy import attend, dissect, rotate


def pinned(sinks: int, spans: Iterable[tuple[int, int]] = ()) -> frozenset[int]:
    """Indices of the first `sinks` tokens and of half-open spans."""
    return frozenset(range(sinks)) | {i for start, stop in spans for i in range(start, stop)}


def visible(t: int, budget: int | None, pins: frozenset[int]) -> list[int]:
    """What token t sees, ascending; a budget of None is the full cache."""
    if budget is None:
        return list(range(t + 1))
    met = [i for i in range(t + 1) if i in pins]
    free = [i for i in range(t + 1) if i not in pins]
    room = budget - len(met)
    return sorted(met + (free[-room:] if room > 0 else []))


@dataclass
class Streamed:
    """Logits [T, vocab] of every token, and the origins kept after the last."""

    logits: Tensor
    origins: list[int] = field(default_factory=list)


@torch.no_grad()
def stream(
    model: Any,
    ids: Tensor,
    *,
    budget: int | None,
    pins: frozenset[int] = frozenset(),
    frame: str = "slots",
) -> Streamed:
    """Walk ids [T] through the model under the rule above."""
    body = dissect(model)
    held: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in body.layers]
    out: list[Tensor] = []
    seen: list[int] = []
    for t, token in enumerate(ids.tolist()):
        seen = visible(t, budget, pins)
        positions = list(range(len(seen))) if frame == "slots" else seen
        hidden = body.embed(torch.tensor([token]))
        for layer, store in zip(body.layers, held, strict=True):
            q, k, v = layer.project(hidden)
            store[t] = (k[:, 0], v[:, 0])
            for origin in set(store) - set(seen):
                del store[origin]
            keys = torch.stack([store[i][0] for i in seen], dim=1)
            values = torch.stack([store[i][1] for i in seen], dim=1)
            # The query rides along as N copies so that both are rotated by one call: dynamic and longrope
            # choose their frequencies by the largest position of the call.
            query = rotate(model, q.expand(-1, len(seen), -1), positions)[:, -1]
            attended = attend(query, rotate(model, keys, positions), values, layer.scaling)
            hidden = layer.finish(hidden, attended.reshape(1, -1))
        out.append(body.logits(hidden)[0])
    return Streamed(torch.stack(out), seen)
