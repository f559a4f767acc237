"""MPT: one fused projection, optionally clipped, and ALiBi (arXiv 2108.12409) with MPT's own slopes.

transformers' MPT computes its biases for `max_seq_len` positions at most; ours have no end. It ignores
`attn_config.alibi` and `alibi_bias_max`; so do we.
"""

from typing import Any

from torch import Tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor


def slopes(module: Any) -> Tensor:
    biases: Tensor = build_mpt_alibi_tensor(module.n_heads, 2)
    return -biases[:, 0, 0]


def attend(
    module: Any,
    attention: Any,
    hidden_states: Tensor,
    position_bias: Tensor | None = None,
    cache: Any = None,
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,  # what `cache` is called before transformers 5.24
    **_: Any,
) -> tuple[Tensor, None]:
    fused = module.Wqkv(hidden_states)
    if module.clip_qkv:
        fused = fused.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    split = (*hidden_states.shape[:2], module.n_heads, module.head_dim)
    q, k, v = (x.reshape(split).transpose(1, 2) for x in fused.chunk(3, dim=2))
    if (past := cache if cache is not None else past_key_values) is not None:
        k, v = past.update(k, v, module.layer_idx)
    dropout = module.attn_dropout_p if module.training else 0.0
    out, _weights = attention(q, k, v, scaling=module.softmax_scale, dropout=dropout)
    return module.out_proj(out.flatten(2)), None
