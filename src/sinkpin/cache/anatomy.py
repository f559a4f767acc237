"""What a model's layers are, found by one tiny forward rather than by name.

Two rows of the same tokens go through the decoder, one at position 0 throughout, one at growing positions, while our
attention function stands in and returns each token's own value. So hidden states do not depend on positions, and each
layer's queries at position p against those at 0 *are* its rotation. What we compute is held against it, layer by
layer, before any cache is trusted: a layer without rotary, a wrong layout or a wrong base is found here.

Not covered: ALiBi, and models that compute attention without transformers' attention interface; both are refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sinkpin.attention.rope import Rotary
from sinkpin.cache import compat
from sinkpin.errors import ModelError

_TOKENS = 6
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: 2e-2}
_COARSE = 6e-2  # bf16 and anything smaller: the model rotates in its own precision, we in fp32


@dataclass(frozen=True)
class LayerAnatomy:
    """One attention layer. `sliding`: its own window in tokens, if it has one. `rotary(length)`: its rotation for a
    text of `length` tokens, or None where it has none."""

    index: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    sliding: int | None
    rotary: Callable[[int], Rotary] | None

    @property
    def entry_bytes(self) -> int:
        """Bytes of one token's keys and values, all KV heads."""
        return self.kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(frozen=True)
class Anatomy:
    """A decoder. `learned`: positions are learned embeddings added to the tokens, which end at `trained` positions.
    `stretches_past`: the text length past which rotary frequencies change (dynamic, longrope), if they do."""

    layers: tuple[LayerAnatomy, ...]
    learned: bool
    trained: int | None
    stretches_past: int | None


@dataclass
class Probe:
    """Stands in for attention during the probing forward, and notes what reaches it."""

    queries: dict[int, Tensor] = field(default_factory=dict)
    shapes: dict[int, dict[str, Any]] = field(default_factory=dict)
    modules: dict[int, nn.Module] = field(default_factory=dict)

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, None]:
        index = getattr(module, "layer_idx", None)
        if not isinstance(index, int):
            raise ModelError(
                f"{type(module).__name__} has no layer_idx: sinkpin cannot tell its layers apart"
            )
        if index in self.queries:
            raise ModelError(
                f"layer {index} computes attention twice in a forward: sinkpin does not support that"
            )
        for name, consequence in (("s_aux", "learned sinks"), ("softcap", "capped scores")):
            if given.get(name) is not None:
                raise ModelError(
                    f"layer {index} has {consequence} ({name}), which this version does not compute: its output "
                    "would be wrong; use the model's own cache"
                )
        self.queries[index], self.modules[index] = q.detach(), module
        self.shapes[index] = {
            "heads": q.shape[1],
            "kv_heads": k.shape[1],
            "key_dim": k.shape[3],
            "value_dim": v.shape[3],
            "dtype": k.dtype,
            "sliding": given.get("sliding_window"),
        }
        own_value = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        return own_value.transpose(1, 2).contiguous(), None


def examine(decoder: nn.Module, config: Any, probe: Probe, forward: Callable[..., Any]) -> Anatomy:
    """Run the probing `forward(input_ids, position_ids)` and read it. Raises `ModelError` naming what does not fit."""
    _refuse_dropout(decoder)
    trained = compat.trained_length(config)
    device = compat.entry_device(decoder)
    top = min(trained or 64, 64) - 1
    growing = [0, 1, 2, 3, top // 2, top]
    positions = torch.tensor([[0] * _TOKENS, growing], device=device)
    ids = torch.arange(_TOKENS, device=device).remainder(config.vocab_size).expand(2, -1).contiguous()
    name = type(decoder).__name__
    try:
        with torch.no_grad():
            forward(ids, positions)
    except ModelError:
        raise
    except (
        Exception
    ) as error:  # whatever a model does with a forward it was not written for: say so, and which
        raise ModelError(
            f"{name}: a probing forward failed ({type(error).__name__}: {error}), so its layers cannot be checked; "
            "it probably computes attention without transformers' attention interface, which sinkpin needs"
        ) from error
    expected = config.num_hidden_layers
    if len(probe.queries) != expected:
        raise ModelError(
            f"{name}: {len(probe.queries)} of {expected} layers compute attention through transformers' attention "
            "interface; the others would ignore the budget; this model needs an adapter that sinkpin does not have"
        )
    candidates = _candidates(decoder)
    learned = not candidates
    layers = []
    for index in sorted(probe.queries):
        at_zero, moved = probe.queries[index].float()
        rotary = None if learned else _rotation(name, index, at_zero, moved, growing, candidates, probe)
        layers.append(LayerAnatomy(index=index, rotary=rotary, **probe.shapes[index]))
    if learned:
        at_zero, moved = probe.queries[min(probe.queries)].float()
        if torch.allclose(at_zero, moved, rtol=1e-3, atol=1e-5) or trained is None:
            raise ModelError(
                f"{name}: positions are neither rotary nor learned embeddings; sinkpin cannot move its keys"
            )
    lengths = [compat.stretching_length(module, kind) for module, _, kind in compat.rotary_modules(decoder)]
    stretches_past = min((length for length in lengths if length is not None), default=None)
    return Anatomy(tuple(layers), learned, trained, stretches_past)


def _rotation(
    name: str,
    index: int,
    at_zero: Tensor,
    moved: Tensor,
    positions: list[int],
    candidates: list[Callable[[int], Rotary]],
    probe: Probe,
) -> Callable[[int], Rotary] | None:
    """The candidate that turns the queries at position 0 into those seen at `positions`; None if nothing turns."""
    tolerance = _TOLERANCE.get(probe.shapes[index]["dtype"], _COARSE)
    where = torch.tensor(positions, device=at_zero.device)
    scale = at_zero.abs().max()

    def error(rotary: Rotary) -> float:
        return float((rotary.rotate(at_zero, rotary.tables(where)) - moved).abs().max() / scale)

    if float((at_zero - moved).abs().max() / scale) < tolerance:
        return None
    fitting = [c for c in candidates if c(1).rotary_dim <= at_zero.shape[-1]]
    errors = [error(candidate(1)) for candidate in fitting]
    if not errors or min(errors) > tolerance:
        found = f"{min(errors):.2g}" if errors else "no rotary of a fitting size"
        raise ModelError(
            f"{name}: the rotation of layer {index} cannot be reproduced (relative error {found}, tolerance "
            f"{tolerance}): evicting would misplace its keys; sinkpin refuses this model"
        )
    return fitting[errors.index(min(errors))]


def _candidates(decoder: nn.Module) -> list[Callable[[int], Rotary]]:
    """Every rotation the decoder could be using: each set of frequencies in it, in both layouts."""
    found: list[Callable[[int], Rotary]] = []
    for module, name, kind in compat.rotary_modules(decoder):
        found += [_rotary_of(module, name, kind, interleaved) for interleaved in (False, True)]
    return found


def _rotary_of(module: nn.Module, name: str, kind: str, interleaved: bool) -> Callable[[int], Rotary]:
    made: dict[int, Rotary] = {}

    def rotary(length: int) -> Rotary:
        key = length if compat.depends_on_length(kind) else 0
        if key not in made:
            made.clear()  # lengths only grow: the last one is the only one asked for again
            made[key] = Rotary(compat.inverse_frequencies(module, name, kind, length or None), interleaved)
        return made[key]

    return rotary


def _refuse_dropout(decoder: nn.Module) -> None:
    if decoder.training and any(isinstance(m, nn.Dropout) and m.p > 0 for m in decoder.modules()):
        raise ModelError(
            "the model is in training mode with dropout: its outputs are random; call model.eval() first"
        )
