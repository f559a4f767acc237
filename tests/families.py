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
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

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
        return config(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=HEADS,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=_longest(rope_kind, positions),
            rope_parameters=rope(rope_kind, head_dim=head_dim, positions=positions),
            **{**fixed, **more},
        )

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


@dataclass(frozen=True)
class Family:
    """How to configure one family, and the rotary kinds its attention can carry."""

    config: Callable[..., PreTrainedConfig]
    rope_kinds: tuple[str, ...] = ("default",)


FAMILIES: dict[str, Family] = {
    "llama": Family(_grouped(LlamaConfig), ("default", "linear", "dynamic", "llama3", "yarn", "longrope")),
    "mistral": Family(_grouped(MistralConfig, sliding_window=None)),
    "qwen2": Family(_grouped(Qwen2Config, use_sliding_window=False), ("default", "yarn")),
    "qwen3": Family(_grouped(Qwen3Config, use_sliding_window=False), ("default", "dynamic")),
    "gpt_neox": Family(_gpt_neox, ("default", "linear", "dynamic")),
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
    config = FAMILIES[family].config(
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        positions=positions,
        rope_kind=rope_kind,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=None,
        initializer_range=0.3,
        **more,
    )
    return from_config(config, attention=attention, seed=seed, dtype=dtype)


def from_config(
    config: PreTrainedConfig,
    *,
    attention: str = "sdpa",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """A seeded model of any config, with every one-dimensional parameter moved off its default."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() == 1:
                    weight += 0.2 * torch.randn_like(weight)
    return model.to(dtype).eval()


def tokens(count: int, *, rows: int = 1, seed: int = 0, low: int = 2, high: int = VOCAB) -> torch.Tensor:
    """Random ids [rows, count] that avoid padding and BOS, so that `generate` infers no mask from them."""
    generator = torch.Generator().manual_seed(1_000 + seed)
    return torch.randint(low, high, (rows, count), generator=generator)


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

    Embeddings are one-hot, queries are zero (so attention is uniform over what is visible), values copy the
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
            layer.self_attn.q_proj.weight.zero_()
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
