"""One dense forward over a prompt, and what every token received in it.

    α_k = mean of A_ik over the queries i > k that can see token k

per full-attention layer and query head, in fp32: what a token pays itself is left out, and so are the last tokens, which
too few queries can see. Without the division by the number of queries early tokens win for nothing. The forward is an
ordinary prefill, fed in chunks; attention weights are written out for a block of queries at a time and summed at once.
Beside it: norms of hidden states, keys and values, what attention would write (‖W_O v‖), and the next-token entropy.

Not covered: sliding layers, whose window a sink leaves whatever a cache does; what is a sink (`attention.outliers`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sinkpin.attention.mass import HeadMass
from sinkpin.cache import compat
from sinkpin.cache.bounded import BoundedCache
from sinkpin.errors import InputError
from sinkpin.sinks.entropy import entropy_of

CHUNK = 512
LEFT_OUT = 32
_ROWS = 32  # of logits that are looked at together

Floats = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Measurement:
    """Of T tokens: `mass [L, H, T]`, NaN for the last `left_out`; `learned [L, H]`, the share that learned sinks took, None
    where there are none; `written [L, H, T]`, ‖W_O v‖ of each token under each head (‖v‖ where the projection is not found);
    `key_norms [L, T]`, `value_norms [L, T]`, means over KV heads; `hidden_norms [layers, T]` entering each layer;
    `entropy`, `margin`, `varentropy` of the prediction after each token, `losses` of the token predicted (NaN for the
    last), all `[T]`. `layers`: the indices of the L layers."""

    layers: tuple[int, ...]
    mass: Floats
    learned: Floats | None
    written: Floats
    key_norms: Floats
    value_norms: Floats
    hidden_norms: Floats
    entropy: Floats
    margin: Floats
    varentropy: Floats
    losses: Floats
    notes: tuple[str, ...]


@torch.inference_mode()
def measure(
    model: Any, ids: Tensor, *, left_out: int = LEFT_OUT, chunk: int = CHUNK, progress: Progress | None = None
) -> Measurement:
    """Feed `ids [T]` and look on. Raises `InputError` for a prompt of which nothing would be measured, `ModelError` for a
    model whose attention cannot be followed."""
    if len(ids) <= left_out + 1:
        raise InputError(
            f"a prompt of {len(ids)} tokens, of which the last {left_out} are left out because too few queries see them: "
            f"nothing would be measured; give at least {left_out + 2} tokens, or leave out fewer"
        )
    inner = compat.causal_lm(model)
    with BoundedCache(model, policy="full", sinks=0) as cache, _Hidden(cache, len(ids)) as hidden:
        witnesses = cache.witness()
        told = torch.empty(4, len(ids))
        for start in range(0, len(ids), chunk):
            stop = min(start + chunk, len(ids))
            fed = ids[None, start:stop].to(compat.entry_device(inner))
            logits = model(fed, **{compat.CACHE_KEYWORD: cache}).logits[0]
            for at in range(0, stop - start, _ROWS):  # over a large vocabulary each copy of all rows is felt
                rows = logits[at : at + _ROWS].float()
                end = min(start + at + _ROWS, stop)
                losses = _losses(rows, ids, start + at, end)
                for into, x in zip(told, (*entropy_of(rows), losses), strict=True):
                    into[start + at : end] = x
            del logits
            if progress is not None:
                progress(stop, len(ids))
        entropy, margin, varentropy, predicted = told.numpy()
        layers = tuple(witnesses)
        mass = np.stack([_mean(witnesses[index], left_out) for index in layers])
        stored = [cache.layer(index).storage.read() for index in layers]
        return Measurement(
            layers=layers,
            mass=mass,
            learned=_learned(cache, witnesses),
            written=np.stack([_written(cache, index) for index in layers]),
            key_norms=np.stack([_norms(keys) for keys, _ in stored]),
            value_norms=np.stack([_norms(values) for _, values in stored]),
            hidden_norms=hidden.read(),
            entropy=entropy,
            margin=margin,
            varentropy=varentropy,
            losses=predicted,
            notes=tuple(cache.notes),
        )


def _losses(logits: Tensor, ids: Tensor, start: int, stop: int) -> Tensor:
    """Of the token after each; NaN after the last."""
    targets = ids[start + 1 : stop + 1].to(logits.device)
    losses = F.cross_entropy(logits[: len(targets)], targets, reduction="none")
    return F.pad(losses, (0, len(logits) - len(targets)), value=float("nan"))


def _mean(witness: HeadMass, left_out: int) -> Floats:
    """`[H, T]`, NaN for the last `left_out` and, with them, whatever no query could see."""
    assert witness.received is not None
    received = witness.received[0].double()
    tokens = received.shape[-1]
    mean = received / torch.arange(tokens - 1, -1, -1, device=received.device).clamp(min=1)
    mean[:, tokens - max(left_out, 1) :] = torch.nan
    found: Floats = mean.float().cpu().numpy()
    return found


def _norms(x: Tensor) -> Floats:
    """`x [1, kv_heads, T, dim]` -> `[T]`, the mean over KV heads."""
    found: Floats = x[0].float().norm(dim=-1).mean(0).cpu().numpy()
    return found


def _learned(cache: BoundedCache, witnesses: dict[int, HeadMass]) -> Floats | None:
    """`[L, H]`; None where no layer has learned sinks."""
    if all((scoring := cache.layer(index).scoring) is None or scoring.sinks is None for index in witnesses):
        return None
    shares = [
        w.learned[0] / w.queries[0]
        for w in witnesses.values()
        if w.learned is not None and w.queries is not None
    ]
    found: Floats = torch.stack([x.cpu() for x in shares]).float().numpy()
    return found


def _written(cache: BoundedCache, index: int) -> Floats:
    """`[H, T]`: the norm of what each head would add to the residual stream for a weight of 1 on each token."""
    layer = cache.layer(index)
    values = layer.storage.read()[1][0]
    heads, (kv_heads, _, dim) = layer.facts.heads, values.shape
    weight = compat.output_weight(cache.door.attention(index), heads * dim)
    norms: list[Tensor] = []
    for head in range(heads):
        own = values[head // (heads // kv_heads)].float()
        if weight is None:
            norms.append(own.norm(dim=-1))
        else:
            mixes = weight[:, head * dim : (head + 1) * dim].float()
            norms.append(((own @ (mixes.T @ mixes)) * own).sum(-1).clamp(min=0).sqrt())
    found: Floats = torch.stack(norms).cpu().numpy()
    return found


class _Hidden:
    """Hooks on the blocks around the attention modules: the norm of what enters each.

    Norms go into one tensor made beforehand. A small tensor kept from the midst of each layer would lie between large
    ones that come and go, and a heap could not join what these leave: 0.6 GiB at 4,096 tokens of the demo model.
    """

    def __init__(self, cache: BoundedCache, tokens: int) -> None:
        self.blocks = compat.blocks_around(
            cache.door.decoder, [cache.door.attention(i) for i in range(len(cache.layers))]
        )
        self.norms = torch.empty(len(self.blocks), tokens)
        self.read_so_far = [0] * len(self.blocks)

    def __enter__(self) -> "_Hidden":
        self.hooks = [
            block.register_forward_pre_hook(self._hook(number), with_kwargs=True)
            for number, block in enumerate(self.blocks)
        ]
        return self

    def _hook(self, number: int) -> Callable[..., None]:
        def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            start = self.read_so_far[number]
            self.read_so_far[number] = stop = start + hidden.shape[1]
            self.norms[number, start:stop] = hidden[0].float().norm(dim=-1)

        return hook

    def __exit__(self, *exception: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def read(self) -> Floats:
        found: Floats = self.norms.numpy()
        return found
