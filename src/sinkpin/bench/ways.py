"""Four ways through a text behind sinks and a window, two of them loops: what `perplexity` times against each other.

Not here: the turns they take, and what is said of them.
"""

from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

from sinkpin.bench.arms import Arm, dynamic
from sinkpin.bench.subject import Subject
from sinkpin.cache.bounded import BoundedCache
from sinkpin.cache.compat import CACHE_KEYWORD
from sinkpin.evaluate.scoring import score

BAND, LOOP, PLAIN = "by chunks", "token by token", "DynamicCache, cut after each token"
BAND_ORIGINAL = "by chunks, original positions"


def possible(subject: Subject) -> list[str]:
    """Which of the ways this model can go."""
    with BoundedCache(subject.model, policy="full", sinks=0) as cache:
        anatomy = cache.door.anatomy
    plain = all(
        facts.sliding is None and facts.rotary is not None and not facts.alibi for facts in anatomy.layers
    )
    return [BAND, LOOP, *([BAND_ORIGINAL, PLAIN] if plain else [])]


class Way:
    """One way through the text, from its beginning on."""

    def __init__(self, subject: Subject, name: str, entries: int, sinks: int, chunk: int) -> None:
        self.subject, self.name, self.entries, self.sinks = subject, name, entries, sinks
        self.chunk = chunk if name in (BAND, BAND_ORIGINAL) else 1
        self.losses: list[np.ndarray] = []
        self.at = 0
        self.cache: Any
        if name == PLAIN:
            self.cache = dynamic(subject)
        else:
            policy = "streaming" if sinks else "window"
            arm = Arm(policy, "original" if name == BAND_ORIGINAL else None)
            self.cache = arm.cache(subject, entries, sinks)

    def go(self, tokens: int) -> None:
        """Feed the next `tokens`, and score what each of them predicts."""
        ids = self.subject.tokens(self.at, self.at + tokens + 1)[0].cpu()
        if self.name == PLAIN:
            self.losses.append(self._cut(ids))
        else:
            self.losses.append(score(self.subject.model, ids, self.cache, first=1, chunk=self.chunk).losses)
        self.at += tokens

    @torch.inference_mode()
    def _cut(self, ids: Tensor) -> np.ndarray:
        """The loop of the authors' script: one token, then sinks and the most recent stay."""
        losses = []
        cache: transformers.DynamicCache = self.cache
        for offset, (token, target) in enumerate(
            zip(ids[:-1].to(self.subject.device), ids[1:].to(self.subject.device), strict=True)
        ):
            position = torch.full((1, 1), self.at + offset, device=token.device)
            out = self.subject.reference(
                token[None, None], position_ids=position, **{CACHE_KEYWORD: cache}
            ).logits
            losses.append(F.cross_entropy(out[0].float(), target[None]))
            recent = self.entries - self.sinks - 1  # the next query is one of the entries it sees
            if cache.get_seq_length() >= self.entries:
                for layer in cache.layers:
                    for side in ("keys", "values"):
                        held = getattr(layer, side)
                        kept = torch.cat(
                            [held[:, :, : self.sinks], held[:, :, held.shape[2] - recent :]], dim=2
                        )
                        setattr(layer, side, kept)
        return torch.stack(losses).cpu().numpy()

    def close(self) -> None:
        if isinstance(self.cache, BoundedCache):
            self.cache.close()
