"""Falcon: rotary, or ALiBi (the RW models), around one fused projection; grouped, single or full KV heads.

The newer architecture copies each KV head to its group before the cache; here it is stored once.

Falcon's ALiBi differs from the paper (arXiv 2108.12409) in two ways, both kept: slopes are rounded to bf16, and biases
are divided by sqrt(head_dim) with the scores. A third is not: transformers also rounds each *product* of slope and
position to bf16, which is no longer a function of the distance; from position 257 on (or with more than 8 heads, whose
slopes are no powers of two) its own biases are off by up to 0.4 %. Under `eager`, transformers adds the biases twice;
so do we there, since below its budget a cache must not change what a model says.
"""

import math
from typing import Any

import torch
from torch import Tensor
from transformers.models.falcon.modeling_falcon import apply_rotary_pos_emb, build_alibi_tensor

from sinkpin.cache import switch


def slopes(module: Any) -> Tensor | None:
    if not module.config.alibi:
        return None
    two = torch.ones(1, 2, dtype=torch.long)
    steps = build_alibi_tensor(two, module.num_heads, torch.float32)[:, 0, 1]
    times = 2 if switch.before(module.config) == "eager" else 1
    return times * steps / math.sqrt(module.head_dim)


def note(module: Any) -> str | None:
    """What `cache.notes` says of the rounding that is not kept."""
    if not module.config.alibi:
        return None
    return (
        "transformers rounds this model's ALiBi biases to bf16 and a bounded cache does not: beyond 256 tokens (with more "
        "than 8 heads, from the start) logits differ from those of its own cache even where nothing is evicted"
    )


def attend(
    module: Any,
    attention: Any,
    hidden_states: Tensor,
    alibi: Tensor | None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    layer_past: Any = None,
    use_cache: bool = False,
    output_attentions: bool = False,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    q, k, v = (x.transpose(1, 2) for x in _projected(module, module.query_key_value(hidden_states)))
    if position_embeddings is not None and not module.config.alibi:
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
    if layer_past is not None:
        k, v = layer_past.update(k, v, module.layer_idx)
    # With rotary, Falcon's own code drops nothing from the weights.
    drops = module.training and module.config.alibi
    out, _weights = attention(
        q, k, v, scaling=module.inv_norm_factor, dropout=module.attention_dropout.p if drops else 0.0
    )
    return module.dense(out.flatten(2)), None


def _projected(module: Any, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries `[batch, new, heads, dim]`, keys and values `[batch, new, kv_heads, dim]`."""
    if not module.new_decoder_architecture:
        q, k, v = module._split_heads(fused)
        return q, k, v
    # `_split_heads` would copy each KV head to the queries of its group.
    groups, dim = module.num_kv_heads, module.head_dim
    x = fused.view(*fused.shape[:2], groups, module.num_heads // groups + 2, dim)
    return x[:, :, :, :-2].flatten(2, 3), x[:, :, :, -2], x[:, :, :, -1]
