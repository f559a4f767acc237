"""Every difference between transformers versions, and every private name of it that sinkpin leans on.

Supported: transformers 5.17 and later. Checked on 5.17.0 and 5.24.0. Nothing here decides anything; it only says how
this version spells what the rest of the cache asks for.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers
from packaging.version import Version
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from sinkpin.errors import ModelError

VERSION = Version(transformers.__version__)
CACHE_KEYWORD = "cache" if Version("5.24.dev0") <= VERSION else "past_key_values"
"""What `model(...)` and `generate(...)` call the cache: renamed in 5.24, which still accepts the old name."""
_CACHE_KEYWORDS = ("cache", "past_key_values")

IMPLEMENTATION = "sinkpin"
"""The name under which our attention and mask functions are registered with transformers, on first use."""


def causal_lm(model: Any) -> PreTrainedModel:
    """The transformers model inside whatever wraps it (torch.compile, PEFT). Raises `ModelError` if there is none."""
    inner = getattr(model, "_orig_mod", model)
    if callable(unwrap := getattr(inner, "get_base_model", None)):  # PEFT
        inner = unwrap()
    if not isinstance(inner, PreTrainedModel):
        raise ModelError(
            f"{type(model).__name__} is not a transformers model: pass the PreTrainedModel that generates, "
            "or a PEFT or torch.compile wrapper of one"
        )
    if inner.config.is_encoder_decoder:
        raise ModelError(f"{type(inner).__name__} is an encoder-decoder: sinkpin bounds decoder-only models")
    return inner


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """The module whose forward takes ids, positions and the cache: where the door is hung."""
    decoder = model.get_decoder()
    # Some models answer with their head, or with themselves.
    return decoder if isinstance(decoder, PreTrainedModel) and decoder is not model else model.base_model


def entry_device(model: Any) -> torch.device:
    """Where ids have to be: the embedding's device, or the one that accelerate brings offloaded weights to."""
    embedding = model.get_input_embeddings()
    device: torch.device = embedding.weight.device
    if device.type == "meta":
        return torch.device(getattr(getattr(embedding, "_hf_hook", None), "execution_device", None) or "cpu")
    return device


def cache_argument(decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The cache given to a forward of the decoder, under either name or by position; None if there is none."""
    for keyword in _CACHE_KEYWORDS:
        if kwargs.get(keyword) is not None:
            return kwargs[keyword]
    if args:
        names = _parameters(decoder)[: len(args)]
        return next((args[i] for i, name in enumerate(names) if name in _CACHE_KEYWORDS), None)
    return None


def by_keyword(decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Positional arguments of a decoder's forward under their names."""
    return {**dict(zip(_parameters(decoder), args, strict=False)), **kwargs}


def _parameters(decoder: nn.Module) -> list[str]:
    return list(inspect.signature(decoder.forward).parameters)


def register(attention: Callable[..., Any], mask: Callable[..., Any]) -> None:
    """Make our two functions known to transformers under `IMPLEMENTATION`. No model uses them until it is told to."""
    AttentionInterface.register(IMPLEMENTATION, attention)
    AttentionMaskInterface.register(IMPLEMENTATION, mask)


def get_implementation(config: Any) -> str | None:
    implementation: str | None = config._attn_implementation_internal
    return implementation


def set_implementation(config: Any, name: str | None) -> None:
    # The internal attribute: the public setter also rewrites sub-configurations, which would not be undone exactly.
    config._attn_implementation_internal = name


def attention_function(module: nn.Module, implementation: str | None) -> Callable[..., Any]:
    """What `module` would have called under `implementation`; eager attention is each modelling file's own."""
    eager: Any = sys.modules[type(module).__module__].__dict__.get("eager_attention_forward")
    found: Callable[..., Any] = AttentionInterface().get_interface(implementation or "eager", eager)
    return found


def mask_function(implementation: str | None) -> Callable[..., Any] | None:
    """What makes masks for `implementation`; None where transformers makes none."""
    return AttentionMaskInterface().get(implementation or "eager")


def rotary_modules(decoder: nn.Module) -> list[tuple[nn.Module, str, str]]:
    """Every (module, name of its inverse frequencies, rope type) in the decoder: hybrid models have several."""
    found = []
    for module in decoder.modules():
        for name, value in module.named_buffers(recurse=False):
            if (
                name.endswith("inv_freq")
                and "original" not in name
                and "long" not in name
                and value is not None
            ):
                kind = getattr(module, "rope_type", "default")
                layer_type = name.removesuffix("inv_freq").removesuffix("_")
                found.append(
                    (module, name, kind.get(layer_type, "default") if isinstance(kind, dict) else kind)
                )
        table = getattr(module, "embed_positions", None)  # GPT-J: a table of sines and cosines
        if isinstance(table, Tensor) and table.ndim == 2 and table.shape[1] % 2 == 0:
            found.append((module, "embed_positions", "table"))
    return found


def depends_on_length(rope_type: str) -> bool:
    """Whether a rope type has other frequencies for longer texts, so that the length must be said."""
    return rope_type == "longrope" or "dynamic" in rope_type


def inverse_frequencies(module: nn.Module, name: str, rope_type: str, length: int | None) -> Tensor:
    """fp32 `[rotary_dim / 2]`. For types that depend on it, those for a text of `length` tokens (None: a short one)."""
    if rope_type == "table":  # by its formula: the table itself may be in half precision
        width = getattr(module, name).shape[1]
        steps = torch.arange(0, width, 2, dtype=torch.float32, device=getattr(module, name).device)
        return 10_000.0 ** (-steps / width)
    if not depends_on_length(rope_type):
        buffer: Tensor = getattr(module, name)
        return buffer.detach().float()
    config: Any = module.config
    layer_type = name.removesuffix("inv_freq").removesuffix("_") or None
    keyword = {} if layer_type is None else {"layer_type": layer_type}
    device: torch.device = getattr(module, name).device
    frequencies: Tensor = ROPE_INIT_FUNCTIONS[rope_type](config, device, seq_len=length, **keyword)[0]
    return frequencies.float()


def stretching_length(module: nn.Module, rope_type: str) -> int | None:
    """The text length past which a rotary module changes its frequencies; None where it never does."""
    if not depends_on_length(rope_type):
        return None
    config: Any = module.config
    original = (config.rope_parameters or {}).get("original_max_position_embeddings")
    return original or trained_length(config)


def trained_length(config: Any) -> int | None:
    """Positions the model was trained on, where its configuration says so."""
    for name in ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"):
        if isinstance(length := getattr(config, name, None), int) and length > 0:
            return length
    return None


def output_weight(attention: nn.Module, width: int) -> Tensor | None:
    """The weight `[hidden, width]` of the projection that mixes an attention module's heads; None where it is not found
    under the names that families give it, or is no plain matrix."""
    for name in ("o_proj", "dense", "out_proj", "c_proj", "resid_proj"):
        weight = getattr(getattr(attention, name, None), "weight", None)
        if (
            isinstance(weight, Tensor)
            and weight.ndim == 2
            and weight.is_floating_point()
            and width in weight.shape
        ):
            transposed = isinstance(getattr(attention, name), Conv1D)
            return weight.detach().T if transposed else weight.detach()
    return None


def blocks_around(decoder: nn.Module, attentions: list[nn.Module]) -> list[nn.Module]:
    """The module that holds each of the attention modules: the block whose input is the residual stream."""
    names = {module: name for name, module in decoder.named_modules()}
    modules = dict(decoder.named_modules())
    return [modules[_holder(names[attention], modules)] for attention in attentions]


def _holder(name: str, modules: dict[str, nn.Module]) -> str:
    """The nearest module around `name` that stands in a list (GPT-2's attention may lie a level deeper)."""
    parent = name.rpartition(".")[0]
    while parent and not isinstance(modules.get(parent.rpartition(".")[0]), nn.ModuleList):
        parent = parent.rpartition(".")[0]
    return parent
