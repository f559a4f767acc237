"""Hashes that say whether a sink card is of this model, tokenizer and template: sha256, as 64 hexadecimal digits.

A model is hashed by its values and by what it does with them, so that copies, wrappers, devices and versions of
transformers agree. Values are read as float32, which is exact from half precision: a bfloat16 checkpoint loaded in
float32 is the same model, while one that was rounded by loading (float32 in bfloat16, a quantiser) is another, since its
attention is. Of each weight up to 4,096 values are read, which takes a second or two for 7 billion parameters; a change
of a few values in a large weight can be missed, fine-tuning cannot. Not here: the fingerprint of a saved cache
(`cache.snapshot`), which asks for more (the precision, every field of the configuration) and reads less.
"""

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from sinkpin.cache.compat import causal_lm
from sinkpin.errors import ModelError

SAMPLE = 4096
"""Values read of a weight."""
_STRIDE = 2_654_435_761  # a prime: it visits every place of a smaller weight, and follows no row or column

_FIELDS = (
    "model_type",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "use_sliding_window",
    "max_position_embeddings",
    "rope_parameters",
    "partial_rotary_factor",
    "no_rope_layers",
    "alibi",
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "hidden_act",
    "attention_multiplier",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "num_experts_per_tok",
)
"""What of a configuration changes attention and is in no weight. A list of names, because each release of transformers
adds fields of its own, which must not make a model another."""

_PROBE = "Hello, wörld!  It's 12:30;\n\tthe naïve 你好 def f(x): return x**2"
"""A text that merges, normalisation and what is put before a text show in."""
_WHOLE = {"truncation": False, "padding": False, "verbose": False}


def model_hash(model: Any) -> str:
    """Of a transformers model, or of what wraps one. Raises `ModelError` where weights are not in memory."""
    inner = causal_lm(model)
    config = inner.config.get_text_config()
    told = {name: getattr(config, name, None) for name in _FIELDS}
    hashed = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode())
    for name, weight in sorted(inner.named_parameters()):
        if weight.device.type == "meta":
            raise ModelError(
                f"the weight {name} is offloaded, so its values cannot be hashed: load the model whole, without disk or CPU "
                "offloading"
            )
        hashed.update(f"{name} {list(weight.shape)}".encode())
        hashed.update(_sample(weight.detach()).cpu().numpy().tobytes())
    return hashed.hexdigest()


def tokenizer_hash(tokenizer: Any) -> str:
    """Of the vocabulary with added tokens, which of them are special, and the ids of a probing text. How a tokenizer is
    used (padding, truncation, the template) is left out."""
    told = {
        "vocabulary": sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0])),
        "special": sorted(set(tokenizer.all_special_ids)),
        "bos": tokenizer.bos_token_id,
        "eos": tokenizer.eos_token_id,
        "probe": [
            list(tokenizer(_PROBE, add_special_tokens=special, **_WHOLE)["input_ids"])
            for special in (False, True)
        ],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def template_hash(tokenizer: Any) -> str | None:
    """Of the chat template, or of all of them where there are several; None where there is none."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return None
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()


def _sample(weight: Tensor) -> Tensor:
    """float32 `[min(values, SAMPLE)]`: all of a small weight, or values from all over a large one, the same ones always."""
    values = weight.numel()
    places = torch.arange(min(values, SAMPLE), device=weight.device)
    if values > SAMPLE:
        places = places * _STRIDE % values
    if weight.is_floating_point() and weight.itemsize == 1:  # torch takes no float8, but its bytes
        return weight.view(torch.uint8).take(places).view(weight.dtype).float()
    return weight.take(places).float()
