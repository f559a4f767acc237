"""What a model's layers are, found by one tiny forward rather than by name.

Two rows of the same tokens go through the decoder, one at position 0 throughout, one at growing positions, while our
attention function stands in and returns each token's own value. So hidden states do not depend on positions, and each
layer's queries at position p against those at 0 *are* its rotation. What we compute is held against it, layer by
layer, before any cache is trusted: a layer without rotary, a wrong layout or a wrong base is found here.

ALiBi layers turn nothing: they hand their slopes to attention. Not covered, and refused: models that compute attention
past transformers' attention interface and have no adapter (`adapters`), layers that are neither full nor sliding
attention, layers whose keys are not what the cache holds (shared, or made from a latent).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from sinkpin.attention.rope import Rotary
from sinkpin.cache import compat
from sinkpin.errors import ModelError

_NEAR = 6  # tokens at small positions, whose rotation is checked; one far token is checked for length alone
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: 2e-2}
_COARSE = 6e-2  # bf16 and anything smaller: the model rotates in its own precision, we in fp32


@dataclass(frozen=True)
class LayerAnatomy:
    """One attention layer. `sliding`: its own window in tokens, if it has one. `rotary(length)`: its rotation for a
    text of `length` tokens, or None where it has none. `alibi`: whether distances bias its scores instead."""

    index: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    sliding: int | None
    rotary: Callable[[int], Rotary] | None
    alibi: bool = False

    @property
    def entry_bytes(self) -> int:
        """Bytes of one token's keys and values, all KV heads."""
        return self.kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(frozen=True)
class Anatomy:
    """A decoder. `learned`: positions are learned embeddings added to the tokens, which end at `trained` positions.
    `stretches_past`: the text length past which rotary frequencies change (dynamic, longrope), if they do. `notes`:
    where a cache differs from the model itself, whatever the policy."""

    layers: tuple[LayerAnatomy, ...]
    learned: bool
    trained: int | None
    stretches_past: int | None
    notes: tuple[str, ...] = ()


class Witness(Cache):
    """An empty cache that notes what each layer puts into it."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.taken: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.taken[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    @property
    def is_compileable(self) -> bool:
        return False


@dataclass
class Probe:
    """Stands in for attention during the probing forward, and notes what reaches it."""

    cache: Witness = field(default_factory=Witness)
    queries: dict[int, Tensor] = field(default_factory=dict)
    shapes: dict[int, dict[str, Any]] = field(default_factory=dict)
    modules: dict[int, nn.Module] = field(default_factory=dict)

    masks: list[Callable[..., Any]] = field(default_factory=list)

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
        stored = self.cache.taken.get(index, (None, None))
        if stored[0] is not k or stored[1] is not v:
            how = "takes them from elsewhere" if stored[0] is None else "changes them on the way"
            raise ModelError(
                f"layer {index} does not attend to the keys and values that it puts into the cache ({how}): evicting "
                "those would not do what it says; sinkpin refuses this model, use its own cache"
            )
        self.queries[index], self.modules[index] = q.detach(), module
        self.shapes[index] = {
            "heads": q.shape[1],
            "kv_heads": k.shape[1],
            "key_dim": k.shape[3],
            "value_dim": v.shape[3],
            "dtype": k.dtype,
            "device": k.device,
            "sliding": given.get("sliding_window"),
            "alibi": given.get("slopes") is not None,
        }
        own_value = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        return own_value.transpose(1, 2).contiguous(), None


def examine(decoder: nn.Module, config: Any, probe: Probe, forward: Callable[..., Any]) -> Anatomy:
    """Run the probing `forward(input_ids, position_ids)` and read it. Raises `ModelError` naming what does not fit."""
    _refuse_dropout(decoder)
    _refuse_layers(type(decoder).__name__, config)
    trained = compat.trained_length(config)
    device = compat.entry_device(decoder)
    top = min(trained or 64, 64) - 1
    growing = [0, 1, 2, 3, top // 2, top]
    stretched = any(compat.depends_on_length(kind) for _, _, kind in compat.rotary_modules(decoder))
    far = (
        top if stretched or trained is None else trained - 1
    )  # a far position would stretch the model's frequencies
    positions = torch.tensor([[0] * (_NEAR + 1), [*growing, far]], device=device)
    ids = torch.arange(_NEAR + 1, device=device).remainder(config.vocab_size).expand(2, -1).contiguous()
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
    _refuse_masks(name, config, probe)
    candidates = _candidates(decoder)
    learned = not candidates and not any(shape["alibi"] for shape in probe.shapes.values())
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
    near, far = at_zero[:, -1].norm(dim=-1), moved[:, -1].norm(dim=-1)
    if float((near - far).abs().max() / near.max()) > tolerance:
        raise ModelError(
            f"{name}: the queries of layer {index} grow or shrink with their position (by {float((far / near).max()):.3g} "
            "towards the trained length), which is lost where positions are ranks; sinkpin refuses this model"
        )
    at_zero, moved = at_zero[:, :_NEAR], moved[:, :_NEAR]
    where = torch.tensor(positions, device=at_zero.device)
    scale = at_zero.abs().max()
    if not torch.isfinite(scale) or scale == 0:
        raise ModelError(
            f"{name}: the queries of layer {index} are {'zero' if scale == 0 else 'not finite'}, so its rotation cannot be "
            "checked: load the weights first"
        )

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


def _refuse_layers(name: str, config: Any) -> None:
    """Raise `ModelError` for layers that the configuration itself says are of another kind."""
    others = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if others:
        raise ModelError(
            f"{name}: it has layers of {', '.join(sorted(others))}, whose state or visible set sinkpin does not keep; "
            "use the model's own cache"
        )
    if rank := getattr(config, "kv_lora_rank", None):
        raise ModelError(
            f"{name}: multi-head latent attention (kv_lora_rank={rank}) makes its keys from a latent and turns only their "
            "last dimensions, which sinkpin does not compute; use the model's own cache"
        )


def _refuse_masks(name: str, config: Any, probe: Probe) -> None:
    """Raise `ModelError` for a mask that is neither plainly causal nor the window that a layer tells attention of."""
    told = {shape["sliding"] for shape in probe.shapes.values()}
    kinds = getattr(config, "layer_types", None)
    if kinds and "sliding_attention" not in kinds:
        told.add(
            getattr(config, "sliding_window", None)
        )  # its mask is made all the same, for layers that are not there
    for mask in probe.masks:

        def sees(query: int, key: int, mask: Callable[..., Any] = mask) -> bool:
            zero = torch.tensor(0)
            return bool(mask(zero, zero, torch.tensor(query), torch.tensor(key)))

        far = 2**20
        if sees(0, 1):
            raise ModelError(f"{name}: tokens see later ones; sinkpin bounds causal attention only")
        if sees(far, 0) or any(w and sees(far, far - w + 1) and not sees(far, far - w) for w in told):
            continue
        raise ModelError(
            f"{name}: a mask narrows what some layers see without those layers saying so (no sliding_window reaches "
            "attention): the bounded cache would show them too much; use the model's own cache"
        )


def _refuse_dropout(decoder: nn.Module) -> None:
    if decoder.training and any(isinstance(m, nn.Dropout) and m.p > 0 for m in decoder.modules()):
        raise ModelError(
            "the model is in training mode with dropout: its outputs are random; call model.eval() first"
        )
