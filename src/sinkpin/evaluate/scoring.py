"""One arm over one text: the negative log-likelihood of every scored token, teacher-forced.

The text is fed in chunks whose ends lie on fixed multiples of the absolute index. For position policies the chunk
does not matter (what a query sees is exact), so theirs is large; under a scored policy a forward sees everything kept
plus itself, so its chunk is part of the result. Not covered: statistics over the losses.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sinkpin.cache.bounded import BoundedCache
from sinkpin.cache.compat import CACHE_KEYWORD, causal_lm, entry_device
from sinkpin.errors import InputError
from sinkpin.evaluate.arms import Arm

EXACT_CHUNK = 512
"""Tokens a forward where the chunk changes nothing: bounds the memory that logits take."""


@dataclass(frozen=True)
class Scores:
    """Of the scored tokens, in order: `losses` float32 `[scored]` in nats and `top` int64 `[scored]`, the token that
    the arm held most likely."""

    losses: np.ndarray
    top: np.ndarray
    seconds: float


def cache_for(model: Any, arm: Arm, prompt_length: int, pins: Any = None) -> BoundedCache:
    """The cache of one arm over a text whose prompt, or whose whole, has `prompt_length` tokens: shares are of it. `pins`
    in place of the arm's own spans: whatever `BoundedCache` takes."""
    return BoundedCache(
        model,
        budget=arm.budget,
        policy=arm.policy,
        sinks=arm.sinks,
        pins=list(arm.pins) if pins is None else pins,
        frame=arm.frame,
        prompt_length=prompt_length,
        **arm.options,
    )


def one_text(input_ids: Any, vocabulary: int) -> Tensor:
    """The ids of one text, int64 `[tokens]` on the CPU, from `[tokens]` or `[1, tokens]`, a list or an array.

    Raises `InputError` for anything else, and for ids that the model's vocabulary does not have.
    """
    kind = type(input_ids).__name__
    if isinstance(input_ids, str):
        raise InputError(f"input_ids is a {kind}: a text has to be encoded first, tokenizer(text).input_ids")
    if isinstance(input_ids, Mapping):  # what a tokenizer returns
        raise InputError(f"input_ids is a {kind}: give the ids in it alone, tokenizer(text).input_ids")
    try:
        input_ids = torch.as_tensor(input_ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"input_ids cannot be read ({error}): give the ids of one text, [tokens]") from None
    ids = input_ids[0] if input_ids.ndim == 2 and input_ids.shape[0] == 1 else input_ids
    if ids.ndim != 1 or ids.is_floating_point():
        raise InputError(
            f"input_ids {list(input_ids.shape)} {input_ids.dtype}: give the ids of one text, [tokens]"
        )
    if len(ids) < 2:
        raise InputError(
            f"nothing can be predicted in a text of {len(ids)} token{'s' * (len(ids) != 1)}: give 2 or more"
        )
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise InputError(
            f"input_ids reach from {int(ids.min())} to {int(ids.max())}, the model has {vocabulary} tokens: "
            "they come from another tokenizer"
        )
    return ids.long().cpu()


def chunk_ends(tokens: int, chunk: int, prompt: int | None = None) -> Iterator[tuple[int, int]]:
    """`(start, stop)` of each forward: the prompt at once, then up to each multiple of `chunk`."""
    start = 0
    while start < tokens:
        stop = prompt if prompt is not None and start < prompt else (start // chunk + 1) * chunk
        stop = min(stop, tokens)
        yield start, stop
        start = stop


def first_touched(tokens: int, budget: int, chunk: int | None, prompt: int | None = None) -> int | None:
    """Index of the first token predicted after something was evicted, of a text of `tokens`; None where nothing is.

    `chunk` None: each query has its own visible set, so the one at index `budget` is the first to miss an entry.
    Otherwise entries go when the forward that outgrows the budget ends, and the next query is the first.
    """
    if chunk is None:
        touched = budget + 1
    else:
        ends = (stop for _, stop in chunk_ends(tokens - 1, chunk, prompt) if stop > budget)
        touched = next(ends, tokens) + 1
    return touched if touched < tokens else None


@torch.inference_mode()
def score(
    model: Any,
    ids: Tensor,
    cache: BoundedCache,
    *,
    first: int,
    chunk: int,
    prompt: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """Feed `ids [tokens]` through `cache` and score every token from index `first >= 1` on.

    The last token is never fed: nothing is predicted from it. `progress(tokens fed so far, tokens to feed)` is called after each
    forward.
    """
    inner = causal_lm(model)
    keeps = "logits_to_keep" in inspect.signature(type(inner).forward).parameters
    device = entry_device(inner)
    losses, top = [], []
    started = time.perf_counter()
    for start, stop in chunk_ends(len(ids) - 1, chunk, prompt):
        scored = max(stop - max(start, first - 1), 0)
        options = {"logits_to_keep": max(scored, 1)} if keeps else {}
        logits = model(ids[None, start:stop].to(device), **{CACHE_KEYWORD: cache}, **options).logits[0]
        if scored:
            logits = logits[-scored:].float()
            targets = ids[stop - scored + 1 : stop + 1].to(logits.device)
            losses.append(F.cross_entropy(logits, targets, reduction="none").cpu())
            top.append(logits.argmax(-1).cpu())
        if progress is not None:
            progress(stop, len(ids) - 1)
    seconds = time.perf_counter() - started
    return Scores(torch.cat(losses).numpy(), torch.cat(top).numpy(), seconds)
