"""Tiny random models, one builder a family, and the table that the contract suite reads.

A new family joins with one line in `FAMILIES`. All models are seeded, fp32, in eval mode and on the CPU, with
`initializer_range=0.3`: at transformers' default of 0.02 attention is nearly uniform and a wrong cache can
still emit the right tokens. Biases and norm weights are made random too, since their defaults (0 and 1) hide
a term that was left out. Token 0 is padding and `tokens()` never draws it.

Not here: real checkpoints, and anything of sinkpin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Cohere2Config,
    DeepseekV2Config,
    DeepseekV3Config,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    MptConfig,
    Olmo2Config,
    OPTConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
    SmolLM3Config,
)
from transformers.models.gptj import modeling_gptj

VOCAB = 97
PAD = 0
HIDDEN = 32
HEADS = 4


def rope(kind: str, *, head_dim: int, positions: int) -> dict[str, Any]:
    """Rotary parameters of one kind; lengths are chosen so that `positions` is where stretching begins."""
    half = head_dim // 2
    extra: Mapping[str, Any] = {
        "default": {},
        "linear": {"factor": 2.0},
        "dynamic": {"factor": 2.0},
        "llama3": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": positions,
        },
        "yarn": {"factor": 4.0, "original_max_position_embeddings": positions},
        "longrope": {
            "factor": 4.0,
            "original_max_position_embeddings": positions,
            "short_factor": [1.0 + 0.1 * i for i in range(half)],
            "long_factor": [2.0 + 0.5 * i for i in range(half)],
        },
    }[kind]
    return {"rope_type": kind, "rope_theta": 10_000.0, **extra}


def _longest(kind: str, positions: int) -> int:
    """`max_position_embeddings`: kinds that name an original length stretch it by their factor."""
    return positions * {"llama3": 8, "yarn": 4, "longrope": 4}.get(kind, 1)


def _grouped(config: type[PreTrainedConfig], **fixed: Any) -> Callable[..., PreTrainedConfig]:
    """Configs of the Llama-shaped families: grouped KV heads, gated MLP, RMS norms."""

    def build(*, layers: int, kv_heads: int, head_dim: int, positions: int, rope_kind: str, **more: Any):
        common = {
            "vocab_size": VOCAB,
            "hidden_size": HIDDEN,
            "intermediate_size": 48,
            "num_hidden_layers": layers,
            "num_attention_heads": HEADS,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "max_position_embeddings": _longest(rope_kind, positions),
            "rope_parameters": rope(rope_kind, head_dim=head_dim, positions=positions),
        }
        return config(**{**common, **fixed, **more})

    return build


def _gpt_neox(*, layers: int, kv_heads: int, head_dim: int, positions: int, rope_kind: str, **more: Any):
    """Fused projection, parallel residual, rotary on half of each head; it has no grouped heads."""
    partial = {"partial_rotary_factor": more.pop("partial", 0.5)}
    rotary = int(head_dim * partial["partial_rotary_factor"])
    return GPTNeoXConfig(
        vocab_size=VOCAB,
        hidden_size=HEADS * head_dim,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        max_position_embeddings=positions,
        rope_parameters={**rope(rope_kind, head_dim=rotary, positions=positions), **partial},
        **more,
    )


SLIDING = 8
"""The window of sliding layers: smaller than the budgets of the suite."""


def layer_types(layers: int) -> list[str]:
    """Full and sliding attention in turns; the first layer is full, so that a model of one layer has a budget."""
    return ["sliding_attention" if i % 2 else "full_attention" for i in range(layers)]


def _hybrid(config: type[PreTrainedConfig], **fixed: Any) -> Callable[..., PreTrainedConfig]:
    """Grouped families in which every other layer has a sliding window."""
    plain = _grouped(config, **{"sliding_window": SLIDING, **fixed})

    def build(*, layers: int, **more: Any):
        return plain(layers=layers, **{"layer_types": layer_types(layers), **more})

    return build


def _gemma3(*, layers: int, kv_heads: int, head_dim: int, positions: int, rope_kind: str, **more: Any):
    """Two rotary bases: one for full, one for sliding layers."""
    kinds = {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}}
    kinds["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    return _hybrid(Gemma3TextConfig, query_pre_attn_scalar=head_dim)(
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        positions=positions,
        rope_kind="default",
        **{"rope_parameters": kinds, **more},
    )


def _phi3(*, head_dim: int, rope_kind: str, **more: Any):
    """Rotary on half of each head."""
    config = _grouped(Phi3Config, sliding_window=None)(head_dim=head_dim, rope_kind="default", **more)
    config.rope_parameters["partial_rotary_factor"] = 0.5
    return config


def _falcon(**fixed: Any) -> Callable[..., PreTrainedConfig]:
    def build(*, layers: int, kv_heads: int, head_dim: int, positions: int, rope_kind: str, **more: Any):
        common = {
            "vocab_size": VOCAB,
            "hidden_size": HEADS * head_dim,
            "num_hidden_layers": layers,
            "num_attention_heads": HEADS,
            "num_kv_heads": kv_heads,
            "max_position_embeddings": positions,
        }
        return FalconConfig(**{**common, **fixed, **more})

    return build


def _mpt(*, layers: int, kv_heads: int, head_dim: int, positions: int, rope_kind: str, **more: Any):
    """ALiBi; its configuration has the cache off by default."""
    size = {"d_model": HEADS * head_dim, "n_heads": HEADS, "n_layers": layers, "max_seq_len": positions}
    return MptConfig(**{"vocab_size": VOCAB, "use_cache": True, **size, **more})


def _bloom(*, layers: int, kv_heads: int, head_dim: int, positions: int, rope_kind: str, **more: Any):
    """ALiBi, without a trained length."""
    size = {"hidden_size": HEADS * head_dim, "n_head": HEADS, "n_layer": layers}
    return BloomConfig(**{"vocab_size": VOCAB, **size, **more})


def _opt(*, layers: int, kv_heads: int, head_dim: int, positions: int, rope_kind: str, **more: Any):
    """Learned absolute positions."""
    return OPTConfig(
        vocab_size=VOCAB,
        hidden_size=HEADS * head_dim,
        word_embed_proj_dim=HEADS * head_dim,
        ffn_dim=48,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        max_position_embeddings=positions,
        init_std=more.pop("initializer_range", 0.3),
        **more,
    )


def _gpt2(config: type[PreTrainedConfig], **fixed: Any) -> Callable[..., PreTrainedConfig]:
    """GPT-2 (learned absolute positions) and GPT-J (interleaved rotary from a table)."""

    def build(*, layers: int, kv_heads: int, head_dim: int, positions: int, rope_kind: str, **more: Any):
        size = {"n_embd": HEADS * head_dim, "n_head": HEADS, "n_layer": layers, "n_positions": positions}
        return config(**{"vocab_size": VOCAB, **size, **fixed, **more})

    return build


@dataclass(frozen=True)
class Family:
    """How to configure one family, the rotary kinds its attention can carry, and what sets it apart.

    `loops`: `naive.anatomy` describes it, so that the naive loops can walk it; the others are held to oracles made of
    ordinary forwards. `slots`: its keys can move to their ranks. `sliding`: every other layer has a window of its own.
    """

    config: Callable[..., PreTrainedConfig]
    rope_kinds: tuple[str, ...] = ("default",)
    loops: bool = False
    slots: bool = True
    sliding: bool = False


_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

FAMILIES: dict[str, Family] = {
    "llama": Family(
        _grouped(LlamaConfig), ("default", "linear", "dynamic", "llama3", "yarn", "longrope"), loops=True
    ),
    "mistral": Family(_grouped(MistralConfig, sliding_window=None), loops=True),
    "qwen2": Family(_grouped(Qwen2Config, use_sliding_window=False), ("default", "yarn"), loops=True),
    "qwen3": Family(_grouped(Qwen3Config, use_sliding_window=False), ("default", "dynamic"), loops=True),
    "gpt_neox": Family(_gpt_neox, ("default", "linear", "dynamic"), loops=True),
    "gemma2": Family(
        _hybrid(
            Gemma2Config,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=30.0,
            query_pre_attn_scalar=8,
        ),
        sliding=True,
    ),
    "gemma3": Family(_gemma3, sliding=True),
    "phi3": Family(_phi3),
    "falcon": Family(_falcon(new_decoder_architecture=True)),
    "falcon-alibi": Family(
        _falcon(alibi=True, multi_query=False, num_kv_heads=HEADS, parallel_attn=False, bias=True)
    ),
    "mpt": Family(_mpt),
    "bloom": Family(_bloom),
    "opt": Family(_opt, slots=False),
    "gpt2": Family(_gpt2(GPT2Config), slots=False),
    "gpt_oss": Family(_hybrid(GptOssConfig, **_EXPERTS), sliding=True),
    "cohere2": Family(_hybrid(Cohere2Config), sliding=True),
    "olmo2": Family(_grouped(Olmo2Config)),
    "granite": Family(_grouped(GraniteConfig, attention_multiplier=0.3, logits_scaling=2.0)),
    "smollm3": Family(_grouped(SmolLM3Config, no_rope_layers=[1, 0, 1, 0], use_sliding_window=False)),
    "mixtral": Family(_grouped(MixtralConfig, sliding_window=None, **_EXPERTS)),
}

# transformers 5.17's GPT-J computes attention inline, and sinkpin has no adapter for that.
GPTJ_INLINE = not hasattr(modeling_gptj, "eager_attention_forward")
if not GPTJ_INLINE:
    FAMILIES["gptj"] = Family(_gpt2(GPTJConfig, rotary_dim=4))


def _mla(config: type[PreTrainedConfig]) -> Callable[..., PreTrainedConfig]:
    latent = {
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
    }
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 2}
    return _grouped(config, **latent, **experts, topk_group=1, first_k_dense_replace=1)


# What is refused at construction, and a word of the reason.
REFUSED: dict[str, tuple[Callable[..., PreTrainedConfig], str]] = {
    "mistral, all layers sliding": (_grouped(MistralConfig, sliding_window=SLIDING), "sliding"),
    "deepseek_v2": (_mla(DeepseekV2Config), "latent"),
    "deepseek_v3": (_mla(DeepseekV3Config), "latent"),
    "llama4": (
        _grouped(Llama4TextConfig, num_local_experts=2, num_experts_per_tok=1, intermediate_size_mlp=48),
        "chunked",
    ),
    "qwen3_next": (
        _grouped(
            Qwen3NextConfig,
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            layer_types=["linear_attention", "full_attention"],
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            num_experts=4,
            num_experts_per_tok=2,
        ),
        "linear",
    ),
}
if GPTJ_INLINE:
    REFUSED["gptj"] = (_gpt2(GPTJConfig, rotary_dim=4), "attention")


def fields_of(layers: int = 2, kv_heads: int = 2, head_dim: int = 8, positions: int = 512) -> dict[str, Any]:
    """What every config builder above is called with."""
    return {
        "layers": layers,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "positions": positions,
        "rope_kind": "default",
        "pad_token_id": PAD,
        "bos_token_id": 1,
        "eos_token_id": None,
        "initializer_range": 0.3,
    }


def build(
    family: str = "llama",
    *,
    layers: int = 2,
    kv_heads: int = 2,
    head_dim: int = 8,
    positions: int = 512,
    rope_kind: str = "default",
    attention: str = "sdpa",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> PreTrainedModel:
    """One tiny random model; equal arguments give equal weights."""
    given = fields_of(layers, kv_heads, head_dim, positions)
    config = FAMILIES[family].config(**{**given, "rope_kind": rope_kind, **more})
    return from_config(config, attention=attention, seed=seed, dtype=dtype)


def supports_sdpa(config: PreTrainedConfig) -> bool:
    return AutoModelForCausalLM._model_mapping[type(config)]._supports_sdpa


def from_config(
    config: PreTrainedConfig,
    *,
    attention: str = "sdpa",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """A seeded model of any config, with every one-dimensional parameter moved off its default. Eager attention where
    the family has no other, or where sdpa leaves its cap out."""
    if not supports_sdpa(config) or getattr(config, "attn_logit_softcapping", None):
        attention = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() == 1:
                    weight += 0.2 * torch.randn_like(weight)
    return model.to(dtype).eval()


def windows(model: PreTrainedModel) -> list[int | None]:
    """Each layer's own window in tokens, or None, from the configuration."""
    config = model.config
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return [config.sliding_window if kind == "sliding_attention" else None for kind in kinds]


def tokens(count: int, *, rows: int = 1, seed: int = 0, low: int = 2, high: int = VOCAB) -> torch.Tensor:
    """Random ids [rows, count] that avoid padding and BOS, so that `generate` infers no mask from them."""
    generator = torch.Generator().manual_seed(1_000 + seed)
    return torch.randint(low, high, (rows, count), generator=generator)


def distinct(count: int, *, rows: int = 1, seed: int = 0) -> torch.Tensor:
    """As `tokens`, but no id twice in a row.

    For comparing a row beside others with itself alone: in a layer without rotary, equal tokens have equal keys but for
    rounding, so which of two a score keeps follows the batch's shape.
    """
    generator = torch.Generator().manual_seed(1_000 + seed)
    return torch.stack([torch.randperm(VOCAB - 2, generator=generator)[:count] + 2 for _ in range(rows)])


def pad_left(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of unequal length [n] as one left-padded batch: ids and mask, both [rows, longest]."""
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), PAD)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, longest - len(row) :] = row
        mask[i, longest - len(row) :] = 1
    return ids, mask


def xray(
    length: int = 128, *, layers: int = 2, kv_heads: int = 2, attention: str = "sdpa"
) -> PreTrainedModel:
    """A Llama whose attention output *is* its visible set.

    Embeddings are one-hot, keys are zero (so attention is uniform over what is visible), values copy the
    one-hot, and neither attention nor MLP writes to the residual, so every layer sees the tokens themselves.
    Feed distinct ids and `visible_sets` reads off which tokens each query of each head saw.
    """
    config = LlamaConfig(
        vocab_size=length,
        hidden_size=length,
        intermediate_size=8,
        num_hidden_layers=layers,
        num_attention_heads=2 * kv_heads,
        num_key_value_heads=kv_heads,
        head_dim=length,
        max_position_embeddings=4 * length,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    one_hot = torch.eye(length)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(one_hot)
        for layer in model.model.layers:
            layer.self_attn.k_proj.weight.zero_()
            layer.self_attn.v_proj.weight.copy_(one_hot.repeat(kv_heads, 1))
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


class Xray:
    """Context manager that records, for every forward of an `xray` model, what each query saw.

    `sets[layer]` is a list over forwards of bool [rows, heads, queries, vocab].
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.sets: list[list[torch.Tensor]] = []

    def __enter__(self) -> Xray:
        layers = self.model.base_model.layers
        self.sets = [[] for _ in layers]
        self._handles = [
            layer.self_attn.o_proj.register_forward_pre_hook(self._record(number))
            for number, layer in enumerate(layers)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _record(self, number: int) -> Callable[..., None]:
        heads = self.model.config.num_attention_heads

        def hook(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            attended = args[0]
            rows, queries, width = attended.shape
            mixed = attended.reshape(rows, queries, heads, width // heads).transpose(1, 2)
            # Uniform weights over n keys give n equal entries; anything else (a key counted twice, a weight
            # that leaked) shows as an entry far from the largest.
            top = mixed.amax(-1, keepdim=True)
            share = mixed / top
            assert ((share < 1e-3) | (share > 0.999)).all(), "attention is not uniform over a set of keys"
            self.sets[number].append(share > 0.5)

        return hook

    def seen_by(self, layer: int = 0, row: int = 0, head: int = 0) -> list[list[int]]:
        """Per query, over all forwards so far, the ids it saw, ascending."""
        return [
            query.nonzero()[:, 0].tolist() for forward in self.sets[layer] for query in forward[row, head]
        ]
