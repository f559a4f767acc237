"""Softmax attention over a block of keys that says, beside its outputs, how much weight the block had.

Two blocks with different rotations can then share one softmax (`merged`): out = Σ_b out_b · exp(lse_b − lse). Uses the
fused kernel that torch has for CPUs, which returns the logarithm of the sum; where it cannot (`available`), callers
write scores out themselves. Source of the merge: online softmax, Milakov and Gimelshein, arXiv 1805.02867.
"""

import torch
from torch import Tensor

_HIDDEN = -1e30  # finite: a row that sees nothing must not become NaN
_PRECISIONS = (torch.float32, torch.bfloat16)


def available(q: Tensor, value_dim: int) -> bool:
    """Whether `attend` can take queries like `q [..., key_dim]` with values of `value_dim`."""
    return (
        q.device.type == "cpu"
        and q.dtype in _PRECISIONS
        and q.shape[-1] == value_dim
        and not (torch.is_grad_enabled() and q.requires_grad)
        and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
    )


def bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores so that only `visible [batch, n, k]` is seen: `[batch, 1, n, k]`."""
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, _HIDDEN)[:, None]


def attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Outputs `[batch, heads, n, dim]` in `q`'s precision and the log of each softmax's sum, fp32 `[batch, heads, n]`.

    `q [batch, heads, n, dim]`, `keys`, `values` `[batch, kv_heads, k, dim]`; a group's queries share their KV head.
    """
    group = q.shape[1] // keys.shape[1]
    if group > 1:
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, keys, values, 0.0, False, attn_mask=bias, scale=scale
    )
    return out, lse


def merged(out: Tensor, lse: Tensor, scores: Tensor, values: Tensor) -> Tensor:
    """One softmax over what gave `out [batch, heads, n, dim]` and `lse [batch, heads, n]`, and over a few more keys with
    `scores` fp32 `[batch, kv_heads, group, n, k]` and `values [batch, kv_heads, k, dim]`; fp32."""
    batch, heads, n, _ = out.shape
    more = scores.view(batch, heads, n, -1)
    total = torch.logaddexp(lse, more.logsumexp(-1))
    weights = (more - total[..., None]).exp().view(batch, values.shape[1], -1, more.shape[-1])
    added = (weights @ values.float()).view(batch, heads, n, -1)
    return added.addcmul_(out.float(), (lse - total).exp()[..., None])
