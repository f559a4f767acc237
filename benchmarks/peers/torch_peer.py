"""What the peers on PyTorch share: losses from logits, bytes of tensors, and which of the first tokens are still held.

A cache of plain tensors does not say which tokens it holds. A key does: that of one of the first four tokens depends on
nothing but those four, so it is looked for among the keys held, layer by layer and head by head.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

logging.disable_progress_bar()  # hundreds of lines where stderr is a file


def nll_of(logits: Tensor, token: int) -> float:
    """`logits [vocabulary]`, in whatever precision; the loss is taken in float32."""
    return float(-torch.log_softmax(logits.float(), dim=-1)[token])


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind the tensors: a view of a large one counts as the large one."""
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def share_held(keys: list[Tensor], firsts: list[Tensor]) -> float:
    """Of `firsts` (each `[1, kv_heads, n, size]`, one a layer), the share found in `keys` (`[1, kv_heads, held, size]`)."""
    found = []
    for held, first in zip(keys, firsts, strict=True):
        apart = (held.float()[:, :, None] - first.float()[:, :, :, None]).norm(dim=-1).min(dim=-1).values
        tolerance = (1e-3 if held.dtype == torch.float32 else 3e-2) * first.float().norm(dim=-1)
        found.append((apart <= tolerance).float().mean())
    return float(torch.stack(found).mean())


def twin(model: Any) -> Any:
    """A second model on the same weights, for hooks and patches that the first must not have."""
    shared = {id(x): x for x in [*model.parameters(), *model.buffers()]}
    return copy.deepcopy(model, memo=dict(shared))
