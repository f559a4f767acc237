"""BLOOM: one fused projection and ALiBi (arXiv 2108.12409); the module adds the residual itself.

`slow_but_exact` with `pretraining_tp > 1` is refused: transformers' code for it leaves out the output bias.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor, dropout_add

from sinkpin.errors import ModelError


def slopes(module: Any) -> Tensor:
    if module.pretraining_tp > 1 and module.slow_but_exact:
        raise ModelError(
            f"slow_but_exact with pretraining_tp={module.pretraining_tp}: sinkpin does not compute BLOOM's output in "
            "slices; load the model with slow_but_exact=False"
        )
    biases: Tensor = build_alibi_tensor(torch.ones(1, 2), module.num_heads, torch.float32)
    return biases[:, 0, 1]


def attend(
    module: Any,
    attention: Any,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: Tensor | None = None,
    attention_mask: Tensor | None = None,
    layer_past: Any = None,
    **_: Any,
) -> tuple[Tensor, None]:
    q, k, v = module._reshape(module.query_key_value(hidden_states))
    if layer_past is not None:
        k, v = layer_past.update(k, v, module.layer_idx)
    dropout = module.attention_dropout.p if module.training else 0.0
    out, _weights = attention(q, k, v, scaling=module.inv_norm_factor, dropout=dropout)
    return dropout_add(module.dense(out.flatten(2)), residual, module.hidden_dropout, module.training), None
