"""Several caches over one continuation, in step: the loss of every token, and how far each is from the first.

The Kullback-Leibler divergence is over the full vocabulary, from the first cache's prediction to the other's, at the same
token of the same text, so only one chunk of logits is ever held. Not covered: statistics over what comes out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from sinkpin.cache import compat
from sinkpin.cache.bounded import BoundedCache

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Step:
    """Of one cache over `[tokens]` predictions: `losses` and `kl` in nats, `same`: whether the likeliest token is the
    first cache's."""

    losses: Floats
    kl: Floats
    same: Floats

    def after(self, predictions: int) -> "Step":
        """Without the first so many."""
        return Step(self.losses[predictions:], self.kl[predictions:], self.same[predictions:])

    def blocks(self, size: int) -> "list[Step]":
        """Whole blocks of `size` predictions; what is left over at the end is left out."""
        count = len(self.losses) // size
        parts = [
            np.split(x[: count * size], count) if count else [] for x in (self.losses, self.kl, self.same)
        ]
        return [Step(*part) for part in zip(*parts, strict=True)]


@torch.inference_mode()
def lockstep(
    model: Any, caches: Sequence[BoundedCache], ids: Tensor, start: int, *, chunk: int = 512
) -> list[Step]:
    """Feed `ids[start:-1]` to each of the caches, which hold `ids[:start]`, and score `ids[start + 1:]`."""
    device = compat.entry_device(compat.causal_lm(model))
    told: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in caches]
    for begin in range(start, len(ids) - 1, chunk):
        stop = min(begin + chunk, len(ids) - 1)
        targets = ids[begin + 1 : stop + 1].to(device)
        first: Tensor | None = None
        for number, cache in enumerate(caches):
            fed = ids[None, begin:stop].to(device)
            logits = model(fed, **{compat.CACHE_KEYWORD: cache}).logits[0].float()
            log = F.log_softmax(logits.to(targets.device), dim=-1)
            del logits
            first = log if first is None else first
            losses = F.nll_loss(log, targets, reduction="none")
            kl = (
                F.kl_div(log, first, reduction="none", log_target=True).sum(-1)
                if number
                else torch.zeros_like(losses)
            )
            same = log.argmax(-1) == first.argmax(-1)
            told[number].append((losses.cpu(), kl.cpu(), same.cpu()))
    return [Step(*(torch.cat(x).double().numpy() for x in zip(*parts, strict=True))) for parts in told]
