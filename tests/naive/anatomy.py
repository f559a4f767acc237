"""A decoder taken apart: its own sub-modules, called one at a time on one row.

Covers the Llama-shaped families (with or without q/k norms and biases) and GPT-NeoX. Anything else raises, so
that a new family cannot slip into the suite with a loop that does not describe it.

Shapes: T tokens, H query heads, G KV heads, D head size, N keys.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def rotate(model: Any, x: Tensor, positions: list[int]) -> Tensor:
    """x [heads, N, D], raw, rotated to `positions` by the model's own rotary (its scaling applied once)."""
    base = model.base_model
    apply = sys.modules[type(base).__module__].apply_rotary_pos_emb
    cos, sin = base.rotary_emb(x[None], position_ids=torch.tensor([positions]))
    return apply(x[None], x[None], cos, sin)[0][0]


def rotate_each(model: Any, x: Tensor, positions: list[int], every: list[int]) -> Tensor:
    """As `rotate`, but with the frequencies that a call on all of `every` would choose (dynamic, longrope)."""
    filler = x[:, :1].expand(-1, len(every), -1)
    return rotate(model, torch.cat([x, filler], dim=1), positions + every)[:, : x.shape[1]]


@dataclass(frozen=True)
class LlamaLayer:
    """Pre-norm attention with separate projections, then a pre-norm MLP."""

    layer: Any

    @property
    def scaling(self) -> float:
        return self.layer.self_attn.scaling

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """hidden [T, C] -> q [H, T, D], k [G, T, D], v [G, T, D], none of them rotated."""
        attention = self.layer.self_attn
        normed = self.layer.input_layernorm(hidden)
        q, k, v = (
            p(normed).view(len(hidden), -1, attention.head_dim)
            for p in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if hasattr(attention, "q_norm"):
            q, k = attention.q_norm(q), attention.k_norm(k)
        return q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Add what attention returned ([T, H * D]) and run the rest of the layer."""
        hidden = hidden + self.layer.self_attn.o_proj(attended)
        return hidden + self.layer.mlp(self.layer.post_attention_layernorm(hidden))


@dataclass(frozen=True)
class NeoXLayer:
    """One fused projection, laid out per head; the residual is parallel or sequential."""

    layer: Any

    @property
    def scaling(self) -> float:
        return self.layer.attention.scaling

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attention = self.layer.attention
        fused = attention.query_key_value(self.layer.input_layernorm(hidden))
        q, k, v = fused.view(len(hidden), -1, 3 * attention.head_size).transpose(0, 1).chunk(3, dim=-1)
        return q, k, v

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        attended = self.layer.attention.dense(attended)
        if self.layer.use_parallel_residual:
            return hidden + attended + self.layer.mlp(self.layer.post_attention_layernorm(hidden))
        hidden = hidden + attended
        return hidden + self.layer.mlp(self.layer.post_attention_layernorm(hidden))


@dataclass(frozen=True)
class Anatomy:
    """Everything a loop needs of one model."""

    model: Any
    layers: list[LlamaLayer | NeoXLayer]

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.get_input_embeddings()(ids)

    def logits(self, hidden: Tensor) -> Tensor:
        base = self.model.base_model
        norm = base.final_layer_norm if hasattr(base, "final_layer_norm") else base.norm
        return self.model.get_output_embeddings()(norm(hidden))


def dissect(model: Any) -> Anatomy:
    """The anatomy of a supported model; a family that these loops do not describe raises."""
    kind = model.config.model_type
    if kind in {"llama", "mistral", "qwen2", "qwen3"}:
        return Anatomy(model, [LlamaLayer(layer) for layer in model.base_model.layers])
    if kind == "gpt_neox":
        return Anatomy(model, [NeoXLayer(layer) for layer in model.base_model.layers])
    raise NotImplementedError(f"no naive loop describes {kind}")


def weigh(q: Tensor, k: Tensor, scaling: float) -> Tensor:
    """What one query per head, q [H, D], pays to k [G, N, D]: the softmax over everything given, [H, N]."""
    k = k.repeat_interleave(len(q) // len(k), dim=0)
    return torch.softmax((q[:, None] * k).sum(-1) * scaling, dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
    """`weigh`, and the sum of v [G, N, D] by those weights, [H, D]."""
    v = v.repeat_interleave(len(q) // len(v), dim=0)
    return (weigh(q, k, scaling)[..., None] * v).sum(1)
