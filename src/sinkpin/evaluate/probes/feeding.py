"""An arm's cache, fed up to where a question is asked, and proof that something was evicted by then.

Position policies are fed `EXACT_CHUNK` tokens at a time, which changes nothing. Others get what stands before the first
question as one forward, as a server would prefill it, or `chunk` tokens at a time; a prompt policy always the former. A
forward ends where a question is asked. Not here: the questions.
"""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sinkpin.cache.bounded import BoundedCache
from sinkpin.cache.compat import CACHE_KEYWORD, causal_lm, entry_device
from sinkpin.evaluate.scoring import EXACT_CHUNK
from sinkpin.spans import Span


def forwards(points: Sequence[int], kind: str, chunk: int | None) -> Iterator[tuple[int, int]]:
    """`(start, stop)` of each forward up to the last of `points`, ascending, each of which ends one."""
    prompt = points[0] if chunk is None or kind == "prompt" else 0
    step = EXACT_CHUNK if chunk is None else chunk
    if kind == "position":
        prompt, step = 0, EXACT_CHUNK
    start = 0
    for point in points:
        while start < point:
            stop = prompt if start < prompt else min((start // step + 1) * step, point)
            yield start, stop
            start = stop


@torch.inference_mode()
def feed(model: Any, ids: Sequence[Sequence[int]], cache: BoundedCache, last: int = 1) -> Tensor:
    """One forward of `ids` `[rows, new]`; the logits of the `last` tokens of each row, fp32 on the CPU `[rows, last,
    vocabulary]`."""
    inner = causal_lm(model)
    keeps = "logits_to_keep" in inspect.signature(type(inner).forward).parameters
    options: dict[str, Any] = {"logits_to_keep": last} if keeps else {}
    tokens = torch.tensor(ids, device=entry_device(inner))
    logits: Tensor = model(tokens, **{CACHE_KEYWORD: cache}, **options).logits[:, -last:]
    return logits.float().cpu()


def evicted(cache: BoundedCache) -> float:
    """Entries evicted so far, mean over rows, bounded layers and KV heads."""
    held = [(cache.origins(layer) >= 0).sum(-1).float().mean() for layer in cache.bounded_layers]
    return cache.seen - float(torch.stack(held).mean())


def held(cache: BoundedCache, span: Span) -> float:
    """Share of these tokens' entries that one row still holds, over bounded layers and KV heads."""
    start, stop = span
    shares = []
    for layer in cache.bounded_layers:
        origins = cache.origins(layer)[0]
        shares.append(((origins >= start) & (origins < stop)).sum(-1).float().mean() / (stop - start))
    return float(torch.stack(shares).mean())
