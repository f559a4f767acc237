"""Oracles made of ordinary forwards without a cache.

Positions with gaps and no mask are read as *packed sequences* by transformers' mask builder (each jump begins
a new sequence), so every oracle here brings its own 4-D mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """allowed [T, T] bool -> [1, 1, T, T], 0 where allowed."""
    blocked = torch.finfo(dtype).min
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, blocked)[None, None]


@torch.no_grad()
def plain(model: Any, ids: Tensor) -> Tensor:
    """Logits [T, vocab] of ids [T]."""
    return model(ids[None], use_cache=False).logits[0]


@torch.no_grad()
def masked(model: Any, ids: Tensor, allowed: Tensor, positions: list[int] | None = None) -> Tensor:
    """Logits [T, vocab] when query i sees the keys of `allowed[i]` ([T, T] bool), at the given positions.

    With positions left as they are this is *every* layer of a position policy in the `original` frame: the
    visible set of a query is the same in all layers.
    """
    places = torch.arange(len(ids)) if positions is None else torch.tensor(positions)
    mask = _additive(allowed, next(model.parameters()).dtype)
    return model(ids[None], attention_mask=mask, position_ids=places[None], use_cache=False).logits[0]


@torch.no_grad()
def masked_layers(model: Any, ids: Tensor, allowed: list[Tensor]) -> Tensor:
    """Logits [T, vocab] when, in layer l, query i of head h sees the keys of `allowed[l][h, i]` (bool [H or 1, T, T]).

    For eager attention of any family, at the indices of the text: the mask that each attention module is given is
    replaced on its way in. Whatever else the family adds to scores (ALiBi, a cap, learned sinks) is its own doing.
    """
    assert model.config._attn_implementation == "eager"
    attention = [
        m for m in model.modules() if type(m).__name__.endswith("Attention") and hasattr(m, "layer_idx")
    ]
    assert len(attention) == len(allowed) == model.config.num_hidden_layers
    replaced: list[int] = []

    def replace(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mask, given = allowed[module.layer_idx], kwargs["attention_mask"]
        replaced.append(module.layer_idx)
        if given is not None and given.dtype == torch.bool:  # MPT: what is hidden, not what is seen
            return args, {**kwargs, "attention_mask": ~mask[None]}
        dtype = next(model.parameters()).dtype
        blocked = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        return args, {**kwargs, "attention_mask": blocked[None]}

    hooks = [m.register_forward_pre_hook(replace, with_kwargs=True) for m in attention]
    try:
        logits = model(ids[None], use_cache=False).logits[0]
    finally:
        for hook in hooks:
            hook.remove()
    assert sorted(replaced) == list(range(len(allowed)))
    return logits


def window(length: int, size: int | None) -> Tensor:
    """Bool [1, T, T]: causal, and no further back than a layer's own window of `size` tokens, itself included."""
    behind = torch.arange(length)[:, None] - torch.arange(length)
    return ((behind >= 0) & (behind < (size or length)))[None]


def one_layer(model: Any, ids: Tensor, kept: list[int], new: list[int], *, frame: str) -> Tensor:
    """Logits [len(new), vocab] after the entries `kept`, for a model of one layer.

    There, keys and values depend on the token and its rotation alone, so a plain forward on [kept + new] is
    the whole truth: positions 0... for `slots`, the indices themselves for `original`. One KV head, or a
    policy whose heads agree. New tokens see each other causally and everything kept.
    """
    assert model.config.num_hidden_layers == 1
    index = [*kept, *new]
    causal = torch.ones(len(index), len(index), dtype=torch.bool).tril()
    positions = list(range(len(index))) if frame == "slots" else index
    return masked(model, ids[torch.tensor(index)], causal, positions)[len(kept) :]
