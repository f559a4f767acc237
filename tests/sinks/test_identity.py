"""Hashes that tell models, tokenizers and templates apart, and nothing else."""

from __future__ import annotations

import copy

import pytest
import torch

import families
from cli.toys import toy_tokenizer
from sinkpin import BoundedCache
from sinkpin.errors import ModelError
from sinkpin.sinks.identity import SAMPLE, _sample, model_hash, template_hash, tokenizer_hash

# One model of no random number, hashed once: every version of torch and transformers has to say the same.
GOLDEN = "b9f652aff21032d12baaf57ff9fb3d2a88dc3457379e4a30ae6878d4496901a1"


def counted():
    model = families.build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.arange(parameter.numel()) % 251 / 256 - 0.5).view_as(parameter))
    return model


def test_the_same_in_every_version() -> None:
    """Kills: fields that a release adds to a configuration, or that loading leaves there."""
    assert model_hash(counted()) == GOLDEN


@pytest.mark.parametrize("family", sorted(families.FAMILIES))
def test_one_model_one_hash(family: str) -> None:
    """A copy, a wrapper, a cache that is open on it: the same model. Another seed: another."""
    model = families.build(family)
    found = model_hash(model)
    assert len(found) == 64 and int(found, 16) >= 0
    assert model_hash(copy.deepcopy(model)) == found
    assert model_hash(torch.compile(model)) == found
    with BoundedCache(model, 12):
        assert model_hash(model) == found
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    assert model_hash(model) != found


def test_from_a_folder_it_is_the_same(tmp_path) -> None:
    from transformers import AutoModelForCausalLM

    model = families.build("qwen3")
    model.save_pretrained(tmp_path)
    assert model_hash(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)) == model_hash(
        model
    )


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"])
def test_a_tuned_weight_is_another_model(name: str) -> None:
    """Kills: a hash of the configuration, or of the embedding only."""
    model = families.build()
    found = model_hash(model)
    with torch.no_grad():
        model.get_parameter(name).add_(1e-4)
    assert model_hash(model) != found


def test_what_a_model_does_with_its_weights_is_told_apart() -> None:
    """Kills: weights alone. A base frequency or a window moves sinks, and no weight says so."""
    found = set()
    for more in ({}, {"rope_kind": "linear"}, {"rms_norm_eps": 1e-3}):
        found.add(model_hash(families.build("llama", **more)))
    assert len(found) == 3


def test_widening_is_exact_and_rounding_is_not() -> None:
    """The values are hashed, not their bytes: bf16 weights in fp32 are the same model, fp32 weights in bf16 another."""
    model = families.build()
    found = model_hash(model)
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert model_hash(half) != found
    assert model_hash(copy.deepcopy(half).float()) == model_hash(half)


def test_a_sample_reaches_every_column_of_a_large_weight() -> None:
    """Kills: a stride that is a multiple of the row, so that only the first column is ever read."""
    weight = torch.arange(512 * 64 * 16).view(512 * 16, 64)
    sample = _sample(weight)
    assert sample.shape == (SAMPLE,)
    assert len(set(sample.tolist())) == SAMPLE
    assert set((sample.long() % 64).tolist()) == set(range(64))
    rows = sample.long() // 64
    assert rows.min() < 100 and rows.max() > 512 * 16 - 100
    assert torch.equal(_sample(weight.T.contiguous().T), sample)
    assert _sample(torch.arange(5)).tolist() == [0, 1, 2, 3, 4]


def test_weights_that_are_not_here_are_refused() -> None:
    with pytest.raises(ModelError, match="offloaded") as caught:
        model_hash(copy.deepcopy(families.build()).to("meta"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8, torch.bool, torch.float64])
def test_weights_of_any_kind_are_read(dtype: torch.dtype) -> None:
    weight = (torch.arange(80 * 80).view(80, 80) % 3).to(dtype)
    assert set(_sample(weight).tolist()) == set(weight.float().unique().tolist())


def test_tokenizers() -> None:
    found = tokenizer_hash(toy_tokenizer())
    assert tokenizer_hash(toy_tokenizer()) == found
    assert tokenizer_hash(toy_tokenizer(opening="<s>")) != found, "what is put before a text"
    more = toy_tokenizer()
    more.add_tokens(["hello"])
    assert tokenizer_hash(more) != found, "an added token"
    special = toy_tokenizer()
    special.add_special_tokens({"additional_special_tokens": ["a"]})
    assert tokenizer_hash(special) != found, "a token made special"
    used = toy_tokenizer(model_max_length=7, padding_side="left")
    used("text", truncation=True, max_length=2)
    used.pad_token = used.eos_token
    assert tokenizer_hash(used) == found, "how it is used is not what it is"


def test_templates() -> None:
    plain, one, other = toy_tokenizer(), toy_tokenizer(), toy_tokenizer()
    one.chat_template, other.chat_template = "{{ messages[0] }}", "{{ messages[-1] }}"
    assert template_hash(plain) is None
    assert template_hash(one) != template_hash(other)
    assert template_hash(one) == template_hash(copy.deepcopy(one))
    several = toy_tokenizer()
    several.chat_template = {"default": "{{ messages[0] }}", "tool": "x"}
    assert template_hash(several) not in (None, template_hash(one))
