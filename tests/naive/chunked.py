"""A scored policy, one forward at a time: see everything kept and the chunk itself, then choose.

`choose(layer, head, origins, newest)` returns the origins to keep of one layer and KV head; which they are is
the policy's business (`random_policy` holds one). One row, no padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from naive.anatomy import attend, dissect, rotate_each

Choose = Callable[[int, int, list[int]], list[int]]


@dataclass
class Chunked:
    """Logits [T, vocab], and what each layer and KV head holds at the end: origins[layer][head]."""

    logits: Tensor
    origins: list[list[list[int]]]


@torch.no_grad()
def walk(
    model: Any, ids: Tensor, chunks: Iterable[int], choose: Choose, *, frame: str = "original"
) -> Chunked:
    """Feed ids [T] in chunks of the given sizes (they must add up to T)."""
    body = dissect(model)
    held: list[list[dict[int, tuple[Tensor, Tensor]]]] = [[] for _ in body.layers]
    out: list[Tensor] = []
    start = 0
    for size in chunks:
        new = list(range(start, start + size))
        hidden = body.embed(ids[start : start + size])
        for number, layer in enumerate(body.layers):
            q, k, v = layer.project(hidden)
            if not held[number]:
                held[number] = [{} for _ in range(len(k))]
            group = len(q) // len(k)
            attended = torch.empty(size, len(q), q.shape[-1])
            for head, store in enumerate(held[number]):
                before = len(store)
                store.update({i: (k[head, i - start], v[head, i - start]) for i in new})
                order = sorted(store)
                places = list(range(len(order))) if frame == "slots" else order
                keys = rotate_each(model, torch.stack([store[i][0] for i in order])[None], places, places)
                values = torch.stack([store[i][1] for i in order])[None]
                mine = slice(head * group, (head + 1) * group)
                queries = rotate_each(model, q[mine], places[before:], places)
                for i in range(size):
                    upto = before + i + 1
                    attended[i, mine] = attend(queries[:, i], keys[:, :upto], values[:, :upto], layer.scaling)
            hidden = layer.finish(hidden, attended.reshape(size, -1))
        for number, heads in enumerate(held):
            for head, store in enumerate(heads):
                keep = set(choose(number, head, sorted(store)))
                for origin in set(store) - keep:
                    del store[origin]
        out.append(body.logits(hidden))
        start += size
    assert start == len(ids), f"chunks cover {start} of {len(ids)} tokens"
    return Chunked(torch.cat(out), [[sorted(store) for store in heads] for heads in held])
