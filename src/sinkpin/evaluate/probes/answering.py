"""How an answer is got of a cache: which alternative is the likeliest, or what the model writes.

The likelihood of an alternative is calibrated: its log probability behind the question less that behind the same question
when nothing was read before (domain-conditional PMI; Holtzman et al. 2021), or a habit of the model would outweigh what it
remembers. All arms share that subtrahend. Not here: which questions are asked, and when.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sinkpin.cache.bounded import BoundedCache
from sinkpin.cache.compat import causal_lm
from sinkpin.errors import ModelError
from sinkpin.evaluate.probes.base import Ids, Question
from sinkpin.evaluate.probes.feeding import feed


class Blank:
    """What each alternative's log probability is where nothing was read, computed once for all arms."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._known: dict[tuple[Ids, tuple[Ids, ...]], Tensor] = {}

    def of(self, question: Question) -> Tensor:
        key = question.blank, question.answers
        if key not in self._known:
            with BoundedCache(self.model, policy="full", sinks=0) as cache:
                self._known[key] = likelihoods(self.model, question.blank, question.answers, cache)
        return self._known[key]


def chosen(model: Any, question: Question, cache: BoundedCache, blank: Blank) -> int:
    """Which of the answers is the likeliest, given all that the cache holds; the question enters it."""
    scores = likelihoods(model, question.feed, question.answers, cache) - blank.of(question)
    return int(scores.argmax())


def likelihoods(model: Any, asked: Ids, answers: Sequence[Ids], cache: BoundedCache) -> Tensor:
    """Log probability of each of `answers` behind `asked`, which enters the cache; the answers do not. fp64 `[answers]`."""
    first = _log_probabilities(feed(model, [asked], cache)[0])
    cache.activate_past_recording()
    found = []
    for answer in answers:
        behind = len(answer) - 1
        scores = first
        if behind:
            scores = torch.cat([first, _log_probabilities(feed(model, [answer[:-1]], cache, last=behind)[0])])
            cache.crop(-behind)
        found.append(scores.gather(-1, torch.tensor(answer)[:, None]).sum())
    return torch.stack(found)


def _log_probabilities(logits: Tensor) -> Tensor:
    if not torch.isfinite(logits).all():
        raise ModelError(
            f"{int((~torch.isfinite(logits)).sum())} of {logits.numel()} logits are not finite, so no answer can be told: load "
            "the model in float32 (--dtype float32)"
        )
    return logits.double().log_softmax(-1)


def written(model: Any, question: Question, cache: BoundedCache, ends: frozenset[int]) -> list[int]:
    """What the model writes greedily, up to the question's `length` tokens or the end of the text."""
    logits = feed(model, [question.feed], cache)[0, -1]
    ids: list[int] = []
    while len(ids) < question.length:
        token = int(_log_probabilities(logits).argmax())
        if token in ends:
            break
        ids.append(token)
        if len(ids) < question.length:
            logits = feed(model, [[token]], cache)[0, -1]
    return ids


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a text: the model's own, and the tokenizer's."""
    config = getattr(causal_lm(model), "generation_config", None)
    named = getattr(config, "eos_token_id", None)
    several = named if isinstance(named, list | tuple) else [named]
    return frozenset(
        token for token in (*several, getattr(tokenizer, "eos_token_id", None)) if token is not None
    )
