"""The four classic ways to meet a long text, side by side: Figure 1 of StreamingLLM (arXiv 2309.17453).

*Dense* keeps everything; *window* keeps the most recent entries; *recompute* forgets them too, but computes the window
afresh for every token, from its first token on; *streaming* keeps the first tokens and the most recent. Recompute
costs a whole window for each token, so all four are scored at the same sampled positions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sinkpin.cache.bounded import BoundedCache
from sinkpin.cache.compat import causal_lm, entry_device
from sinkpin.errors import BudgetError, InputError
from sinkpin.evaluate.scoring import EXACT_CHUNK, one_text, score


@dataclass(frozen=True)
class Classic:
    """`positions` int64 `[samples]`: the sampled tokens; `losses`: for each of the four, float32 `[samples]`, nats."""

    window: int
    sinks: int
    positions: np.ndarray
    losses: dict[str, np.ndarray]

    @property
    def ppl(self) -> dict[str, float]:
        """Perplexity of each arm over the sampled positions."""
        return {name: float(np.exp(x.astype(np.float64).mean())) for name, x in self.losses.items()}


def classic(
    model: Any, input_ids: Tensor, window: int, *, sinks: int = 4, samples: int = 64, seed: int = 0
) -> Classic:
    """Score dense, window, recompute and streaming on `input_ids [tokens]` at `samples` positions drawn with `seed`.

    Each sees at most `window` tokens (dense all of them), the one it predicts from included. Raises `BudgetError`
    where the text does not outgrow the window or the sinks fill it, `InputError` for fewer than one sample.
    """
    ids = one_text(input_ids, causal_lm(model).config.get_text_config().vocab_size)
    for name, value, least in (
        ("window", window, 1),
        ("samples", samples, 1),
        ("seed", seed, 0),
        ("sinks", sinks, 1),
    ):
        if type(value) is not int or value < least:
            raise InputError(f"{name}={value!r}: it is a whole number, at least {least}")
    if len(ids) < window + 2:
        raise BudgetError(
            f"a text of {len(ids)} tokens never outgrows a window of {window}: give at least {window + 2}"
        )
    first = window + 1
    positions = np.arange(first, len(ids))
    drawn = np.sort(
        np.random.default_rng(seed).choice(positions, size=min(samples, len(positions)), replace=False)
    )
    arms: dict[str, dict[str, Any]] = {
        "dense": {"policy": "full"},
        "window": {"policy": "window", "budget": window, "sinks": 0},
        "streaming": {"policy": "streaming", "budget": window, "sinks": sinks},
    }
    losses = {}
    for name, settings in arms.items():
        with BoundedCache(model, **settings) as cache:
            every = score(model, ids, cache, first=first, chunk=EXACT_CHUNK).losses
        losses[name] = every[drawn - first]
    losses["recompute"] = _recomputed(model, ids, window, drawn)
    order = ("dense", "window", "recompute", "streaming")
    return Classic(window, sinks, drawn, {name: losses[name] for name in order})


@torch.inference_mode()
def _recomputed(model: Any, ids: Tensor, window: int, positions: np.ndarray) -> np.ndarray:
    device = entry_device(causal_lm(model))
    losses = []
    for position in positions.tolist():
        logits = (
            model(ids[None, position - window : position].to(device), use_cache=False).logits[0, -1].float()
        )
        losses.append(F.cross_entropy(logits, ids[position].to(logits.device)))
    return torch.stack(losses).cpu().numpy()
