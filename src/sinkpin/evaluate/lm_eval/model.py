"""lm-eval's `hf` with a bounded cache: the context is fed and evicted from before anything is scored or generated.

A request is a context and what follows it. The context without its last token is the prompt: one forward, at whose end a
policy evicts. What follows is then predicted by that last token and the ones behind it, none of which sees more than the
cache holds: not even a continuation of one token, which the prompt's own forward would predict from all of it.
Position policies give each query its own visible set, so for them this is no different from one forward.

Loading, tokenizing, truncating, decoding and stopping are `hf`'s own. Not here: batches, which arguments there are
(`arguments`), and rolling log-likelihoods of policies that need a context.
"""

import copy
import inspect
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

import sinkpin
from sinkpin import demo
from sinkpin.cache.bounded import BoundedCache
from sinkpin.cache.compat import CACHE_KEYWORD, causal_lm
from sinkpin.errors import InputError, ModelError
from sinkpin.evaluate.lm_eval.arguments import read
from sinkpin.evaluate.scoring import EXACT_CHUNK, cache_for, chunk_ends

log = logging.getLogger("lm_eval.models.sinkpin")  # below lm-eval's own, which shows what --verbosity says

_OF_HF = [name for name in inspect.signature(HFLM).parameters if name not in ("pretrained", "kwargs")]


@register_model("sinkpin")
class SinkpinLM(HFLM):
    """`--model sinkpin`. Without `pretrained`, the demo model; further arguments are in `arguments`.

    Raises `SinkpinError` before the model is loaded for what no model could do, after it for what this one cannot.
    """

    def __init__(self, pretrained: Any = None, **given: Any) -> None:
        self.settings, of_hf = read(given, _OF_HF)
        self.counts: Counter[str] = Counter()
        self.budgets: set[int] = set()
        self.notes: list[str] = []
        super().__init__(str(demo.model_folder()) if pretrained is None else pretrained, **of_hf)
        if self.world_size > 1:
            raise ModelError(
                f"{self.world_size} processes: what was evicted is counted in one; run without accelerate launch"
            )
        inner = causal_lm(self.model)
        self._keeps = "logits_to_keep" in inspect.signature(type(inner).forward).parameters
        with self._cache(1) as cache:  # what this model cannot do is told before the tasks are loaded
            self.frame = cache.frame if cache.policy.bounded else None

    def _cache(self, context: int) -> BoundedCache:
        """For a context of so many tokens: a share is of all of them, a choice at the prompt's end comes before the last."""
        arm, card = self.settings.arm, self.settings.card
        chooses_once = self.settings.kind == "prompt"
        return cache_for(self.model, arm, max(context - chooses_once, 1), pins=card)

    def _feed(self, cache: BoundedCache, ids: Tensor, keep: int) -> Tensor:
        """Logits `[keep, vocabulary]` of the last `keep` of `ids [tokens]`."""
        options = {"logits_to_keep": keep} if self._keeps else {}
        logits: Tensor = self.model(ids[None], **{CACHE_KEYWORD: cache}, **options).logits[0]
        return logits[-keep:]

    @contextmanager
    def _after_prompt(self, context: Tensor) -> Iterator[BoundedCache]:
        """A cache that was fed `context [tokens]` without its last token."""
        with self._cache(len(context)) as cache:
            if len(context) > 1:
                self._feed(cache, context[:-1], keep=1)
            yield cache

    # log-likelihoods

    @torch.inference_mode()
    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: Any = None,
    ) -> list[tuple[float, bool]]:
        """Sum of log-probabilities of each continuation, and whether greedy decoding would have said it."""
        together: dict[tuple[int, ...], list[int]] = {}
        for number, (_, context, continuation) in enumerate(requests):
            together.setdefault(tuple(self._cut(context, continuation)), []).append(number)
        answers: dict[int, tuple[float, bool]] = {}
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests")
        with bar:
            for shared, numbers in together.items():
                ids = torch.tensor(shared, device=self.device)
                with self._after_prompt(ids) as cache:
                    for number in numbers:
                        asked, _, continuation = requests[number]
                        with cache if number == numbers[-1] else copy.deepcopy(cache) as own:
                            answers[number] = self._score(own, ids, continuation)
                        if asked is not None:  # a window of a rolling request is no request of its own
                            self.cache_hook.add_partial("loglikelihood", asked, answers[number])
                        bar.update()
        return [answers[number] for number in range(len(requests))]

    def _cut(self, context: list[int], continuation: list[int]) -> list[int]:
        """What is left of a context where both are more than the model's positions; `hf` cuts at the same place."""
        if not context or not continuation or len(continuation) > self.max_length:
            raise InputError(
                f"a context of {len(context)} tokens and a continuation of {len(continuation)}: both need one at least, and the "
                f"continuation at most max_length={self.max_length}"
            )
        cut = max(len(context) + len(continuation) - (self.max_length + 1), 0)
        self.counts["truncated"] += cut > 0
        return context[cut:]

    def _score(self, cache: BoundedCache, context: Tensor, continuation: list[int]) -> tuple[float, bool]:
        wanted = torch.tensor(continuation, device=self.device)
        ids = torch.cat([context, wanted[:-1]])
        start = len(context) - 1
        exact = self.settings.kind == "position"
        chunk = EXACT_CHUNK if exact else self.settings.chunk
        total, greedy, lost = 0.0, True, False
        for begin, end in chunk_ends(len(ids), chunk, start or None):
            if begin < start:  # the prompt, which is in
                continue
            lost = _lost(cache)
            logits = self._feed(cache, ids[begin:end], keep=end - begin)
            scores = F.log_softmax(logits, dim=-1, dtype=self.softmax_dtype)
            targets = wanted[begin - start : end - start]
            total += float(scores.gather(-1, targets[:, None]).sum())
            greedy &= bool((scores.argmax(-1) == targets).all())
        self._count(cache, _lost(cache) if exact else lost)
        return total, greedy

    # generation

    @torch.inference_mode()
    def _model_generate(self, context: Tensor, max_length: int, stop: list[str], **options: Any) -> Tensor:
        with self._after_prompt(context[0]) as cache:
            if (beams := options.get("num_beams", 1)) > 1:
                cache.batch_repeat_interleave(beams)
            fed = {CACHE_KEYWORD: cache}
            output: Tensor = super()._model_generate(context, max_length, stop, **fed, **options)
            self._count(cache, _lost(cache))
        return output

    # what lm-eval asks for

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
        with self._watched("log-likelihoods"):
            return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
        """Of whole texts, in windows of `max_length` that each begin with an empty cache; a window has no context."""
        arm = self.settings.arm
        if self.settings.kind == "prompt" or str(arm.budget).endswith("%"):
            what = (
                "chooses when a prompt ends"
                if self.settings.kind == "prompt"
                else "has a share of the context as its budget"
            )
            raise InputError(
                f"{arm.name} {what}, and a rolling log-likelihood has no context: give another policy, or tokens or bytes"
            )
        with self._watched("windows of rolling log-likelihoods"):
            return super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        with self._watched("generations"):
            return super().generate_until(requests, disable_tqdm=disable_tqdm)

    def _count(self, cache: BoundedCache, lost: bool) -> None:
        self.counts["requests"] += 1
        self.counts["evicted"] += lost
        if cache.budget_tokens is not None:
            self.budgets.add(cache.budget_tokens)
        self.notes += [note for note in cache.notes if note not in self.notes]

    @contextmanager
    def _watched(self, what: str) -> Iterator[None]:
        """Say afterwards in how many requests anything was evicted."""
        before = self.counts.copy()
        yield
        asked, lost = (self.counts[key] - before[key] for key in ("requests", "evicted"))
        arm = self.settings.arm
        if arm.policy == "full" or not asked:
            return
        if lost:
            log.info("%s evicted in %d of %d %s", arm.name, lost, asked, what)
        else:
            log.warning(
                "%s: budget never reached, nothing was evicted in any of %d %s: the results are the full cache's; give a smaller "
                "budget, or longer contexts",
                arm.name, asked, what,
            )  # fmt: skip

    def get_model_info(self) -> dict[str, Any]:
        """What `hf` says of the model, and under `sinkpin` what the answers depend on beside it."""
        settings, arm = self.settings, self.settings.arm
        bounded = {
            "version": sinkpin.__version__,
            "arm": arm.name,
            "policy": arm.policy,
            "options": dict(arm.options),
            "budget": None if arm.budget is None else str(arm.budget),
            "budget_tokens": [min(self.budgets), max(self.budgets)] if self.budgets else None,
            "sinks": arm.sinks,
            "pins": settings.pins,
            "frame": self.frame,
            "chunk": None if self.settings.kind == "position" else settings.chunk,
            "requests": self.counts["requests"],
            "requests_evicted": self.counts["evicted"],
            "loglikelihoods_truncated": self.counts["truncated"],
            "notes": self.notes,
        }
        return {**super().get_model_info(), "sinkpin": bounded}


def _lost(cache: BoundedCache) -> bool:
    """Whether a token that was fed is missing somewhere."""
    return any(
        int((cache.origins(layer) >= 0).sum(-1).min()) < cache.seen
        for layer in cache.bounded_layers
        if cache.seen
    )
