"""What is measured: a model, a twin of it for the reference, and a text that never ends.

The twin shares every weight and is made before a bounded cache is opened, so DynamicCache runs on a model that sinkpin
never touched, and both read the same bytes. Not covered: models spread over several devices.
"""

import copy
import inspect
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from sinkpin.cache.compat import CACHE_KEYWORD, causal_lm, entry_device
from sinkpin.evaluate.scoring import one_text


class Subject:
    """`text`: ids of one text, `[period]`, read again and again."""

    def __init__(self, model: Any, text: Any, name: str) -> None:
        self.model, self.name = model, name
        inner = causal_lm(model)
        self.reference = _twin(model)
        self.text = one_text(text, inner.config.get_text_config().vocab_size)
        self.device = entry_device(inner)
        self.dtype: torch.dtype = inner.dtype
        self._keeps = "logits_to_keep" in inspect.signature(type(inner).forward).parameters

    def tokens(self, start: int, stop: int, rows: int = 1) -> Tensor:
        """ids `[rows, stop - start]` of the endless text; each row begins elsewhere in it."""
        period = len(self.text)
        shift = torch.arange(rows)[:, None] * (period // rows)
        return self.text[(torch.arange(start, stop)[None] + shift) % period].to(self.device)

    @torch.no_grad()
    def feed(self, model: Any, ids: Tensor, cache: Any, *, chunk: int = 0) -> Tensor:
        """Logits `[rows, vocab]` at the last token of `ids`, fed `chunk` tokens at a time (0: all at once)."""
        total = ids.shape[1]
        for start in range(0, total, chunk or total):
            piece = ids[:, start : start + (chunk or total)]
            few = {"logits_to_keep": 1} if self._keeps and piece.shape[1] > 1 else {}
            logits = model(piece, **{CACHE_KEYWORD: cache}, **few).logits
        last: Tensor = logits[:, -1]
        return last

    @torch.no_grad()
    def recompute(self, ids: Tensor) -> Tensor:
        """The same without a cache: all of `ids` anew."""
        few = {"logits_to_keep": 1} if self._keeps else {}
        last: Tensor = self.reference(ids, use_cache=False, **few).logits[:, -1]
        return last

    def sync(self) -> None:
        """Wait until the device is done: its work is asynchronous, and a clock is not."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _twin(model: Any) -> Any:
    """A second model object with the same weights, in no further memory."""
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, shared)
