"""What the detector measures, against the attention that eager prints, over every family."""

import copy

import numpy as np
import pytest
import torch

import families
from sinkpin import SinkpinError
from sinkpin.sinks.measure import measure

TOKENS = 60


def eager_mass(model, ids, left_out):
    """mass [L, H, T] and the learned share [L, H] by the definition, from the whole matrices."""
    model = copy.deepcopy(model)
    model.config._attn_implementation = (
        "eager"  # the setter of the model refuses for Falcon, whose code reads this
    )
    with torch.no_grad():
        attentions = model(ids[None], output_attentions=True).attentions
    mass, learned = [], []
    for index, window in enumerate(families.windows(model)):
        if window is not None:
            continue
        a = attentions[index][0].double()
        rows = torch.full(a.shape[:2], float("nan"), dtype=torch.float64)
        for k in range(len(ids) - max(left_out, 1)):
            rows[:, k] = a[:, k + 1 :, k].mean(-1)
        mass.append(rows)
        learned.append(1 - a.sum(-1).mean(-1))
    return torch.stack(mass).numpy(), torch.stack(learned).numpy()


def has_attentions(name):
    """Eager prints what it computed; MPT prints nothing of use and Falcon's ALiBi is added twice there."""
    return name not in ("falcon-alibi",)


@pytest.mark.parametrize("name", [name for name in families.FAMILIES if has_attentions(name)])
def test_it_is_what_eager_attention_says(name):
    model = families.build(name)
    ids = families.tokens(TOKENS)[0]
    found = measure(model, ids, left_out=5, chunk=17)
    mass, learned = eager_mass(model, ids, 5)
    assert found.mass.shape == mass.shape
    assert np.isnan(found.mass[..., -5:]).all() and not np.isnan(found.mass[..., :-5]).any()
    assert np.nanmax(np.abs(found.mass - mass)) < 1e-5
    if name == "gpt_oss":
        assert np.abs(found.learned - learned).max() < 1e-5 and found.learned.min() > 0.001
    else:
        assert found.learned is None


def test_the_chunk_changes_nothing():
    model, ids = families.build("llama"), families.tokens(TOKENS)[0]
    whole, pieces = measure(model, ids, chunk=TOKENS), measure(model, ids, chunk=7)
    for name in (
        "mass",
        "written",
        "key_norms",
        "value_norms",
        "hidden_norms",
        "entropy",
        "margin",
        "losses",
    ):
        a, b = getattr(whole, name), getattr(pieces, name)
        assert a.shape == b.shape and np.allclose(a, b, atol=1e-4, equal_nan=True), name


def test_norms_and_what_would_be_written():
    model, ids = families.build("llama"), families.tokens(TOKENS)[0]
    found = measure(model, ids)
    with torch.no_grad():
        hidden = model(ids[None], output_hidden_states=True).hidden_states
    assert np.allclose(found.hidden_norms[1], hidden[1][0].norm(dim=-1).numpy(), rtol=1e-4)
    layer = model.base_model.layers[1]
    with torch.no_grad():
        v = layer.self_attn.v_proj(layer.input_layernorm(hidden[1]))[0]
        heads, dim = model.config.num_attention_heads, layer.self_attn.head_dim
        group = heads // model.config.num_key_value_heads
        for head in range(heads):
            own = v[:, head // group * dim : (head // group + 1) * dim]
            there = own @ layer.self_attn.o_proj.weight[:, head * dim : (head + 1) * dim].T
            assert np.allclose(found.written[1, head], there.norm(dim=-1).numpy(), rtol=1e-3)


def test_losses_and_entropy_are_those_of_the_model():
    model, ids = families.build("llama"), families.tokens(TOKENS)[0]
    found = measure(model, ids, chunk=13)
    with torch.no_grad():
        log = model(ids[None]).logits[0].log_softmax(-1)
    assert np.allclose(found.losses[:-1], -log[:-1].gather(-1, ids[1:, None])[:, 0].numpy(), atol=1e-4)
    assert np.isnan(found.losses[-1])
    assert np.allclose(found.entropy, -(log.exp() * log).sum(-1).numpy(), atol=1e-4)


def test_a_prompt_of_which_nothing_is_left_is_refused():
    with pytest.raises(SinkpinError, match="33 tokens, of which the last 32"):
        measure(families.build("llama"), families.tokens(33)[0])


def test_the_model_is_as_before():
    model, ids = families.build("llama"), families.tokens(TOKENS)[0]
    before = {name: dict(module._forward_pre_hooks) for name, module in model.named_modules()}
    measure(model, ids)
    assert before == {name: dict(module._forward_pre_hooks) for name, module in model.named_modules()}
    assert model.config._attn_implementation != "sinkpin"
