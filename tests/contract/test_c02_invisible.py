"""C2: below the budget nobody can tell our cache from `DynamicCache`, by logits or by generated tokens."""

import copy

import pytest
import torch

import families
from contract.cells import (
    BOUNDED,
    CACHE,
    assert_close,
    dynamic,
    every_cell,
    every_policy,
    feed,
    feed_in,
    generate,
)
from sinkpin import BoundedCache
from sinkpin.attention import scores

ROOMY = 80


def both(policy, model, run):
    """The same run into DynamicCache and into a bounded cache whose every layer has room for `ROOMY` tokens."""
    wanted = run(dynamic(model))
    with policy.cache(model, budget=policy.room_for(ROOMY, model)) as cache:
        return run(cache), wanted


@every_cell(attention=["sdpa", "eager"])
def test_logits(policy, family, attention):
    """A prefill, a chunk and single steps, seen <= budget up to equality: fp32 logits agree to 1e-5.

    Kills: a mask off by one where old and new meet; SDPA's own causal mask when kv > q; a scaling applied twice.
    """
    model = families.build(family, attention=attention)
    ids = families.tokens(ROOMY)
    sizes = [40, 7, 1, 1, 20, *[1] * 11]
    got, wanted = both(policy, model, lambda cache: feed_in(model, cache, ids, sizes))
    assert_close(got, wanted, 1e-5)


@every_cell(daily=False)
def test_left_padded_logits(policy, family):
    """Rows of 20 and 7 tokens: every real position agrees with DynamicCache's left-padded batch.

    Kills: ranks counted from the padded start; padding that is attended to.
    """
    model = families.build(family)
    ids, mask = families.pad_left([families.tokens(20)[0], families.tokens(7, seed=1)[0]])
    more = families.tokens(10, rows=2, seed=2)
    ids, mask = torch.cat([ids, more], 1), torch.cat([mask, torch.ones_like(more)], 1)

    def run(cache):
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        first = feed(model, cache, ids[:, :20], mask[:, :20], position_ids=places[:, :20])
        rest = [
            feed(model, cache, ids[:, t : t + 1], mask[:, : t + 1], position_ids=places[:, t : t + 1])
            for t in range(20, 30)
        ]
        return torch.cat([first, *rest], 1)[mask.bool()]

    assert_close(*both(policy, model, run), 1e-5)


@every_cell(
    options={
        "greedy": {},
        "sampling": {"do_sample": True, "temperature": 1.3, "top_k": 20},
        "beams": {"num_beams": 3, "num_return_sequences": 2},
        "beam-sampling": {"num_beams": 2, "do_sample": True},
        "several": {"num_return_sequences": 3, "do_sample": True},
        "prompt-lookup": {"prompt_lookup_num_tokens": 3},
    }
)
def test_generated_tokens(policy, family, options):
    """Greedy, seeded sampling, beams and prompt lookup give the very tokens that DynamicCache gives.

    Kills: a reorder that moves keys but not origins; a crop that leaves a rejected draft behind.
    """
    model = families.build(family)
    ids = families.tokens(12).repeat(1, 2)

    def run(cache):
        torch.manual_seed(7)
        return generate(model, cache, ids, 24, **options)

    got, wanted = both(policy, model, run)
    assert torch.equal(got, wanted)


@every_policy()
def test_assisted_by_a_draft_model(policy):
    """A worse draft of the same vocabulary: its rejected tokens leave no trace.

    Kills: evidence or origins of rejected tokens that survive the crop.
    """
    model, draft = families.build(seed=0), families.build(layers=1, seed=0)
    ids = families.tokens(10)
    got, wanted = both(policy, model, lambda cache: generate(model, cache, ids, 30, assistant_model=draft))
    plain = generate(model, dynamic(model), ids, 30)
    assert torch.equal(got, wanted)
    assert torch.equal(got, plain)


@every_cell(daily=False)
def test_left_padded_generation(policy, family):
    """A left-padded batch through `generate`, greedy and beams."""
    model = families.build(family)
    ids, mask = families.pad_left([families.tokens(20)[0], families.tokens(7, seed=1)[0]])
    for options in ({}, {"num_beams": 2}):
        got, wanted = both(
            policy, model, lambda cache, o=options: generate(model, cache, ids, 20, attention_mask=mask, **o)
        )
        assert torch.equal(got, wanted)


@every_policy()
def test_inputs_embeds(policy):
    """Embeddings in place of ids are the same forward.

    Kills: a door that reads the length of `input_ids` only.
    """
    model = families.build()
    ids = families.tokens(20)
    embeds = model.get_input_embeddings()(ids)

    def run(cache):
        with torch.no_grad():
            first = model(inputs_embeds=embeds[:, :15], **{CACHE: cache}).logits
            return torch.cat([first, model(inputs_embeds=embeds[:, 15:], **{CACHE: cache}).logits], 1)

    assert_close(*both(policy, model, run), 1e-5)


@every_policy()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_within_its_own_noise(policy, dtype):
    """In half precision we are as near to the fp32 truth of the same weights as DynamicCache is.

    Kills: rotation, scores or softmax in bf16, which are several times worse; a bf16 mask whose minimum overflows.
    """
    model = families.build(dtype=dtype)
    ids = families.tokens(60)
    got, other = both(policy, model, lambda cache: feed_in(model, cache, ids, 10))
    exact = copy.deepcopy(model).float()
    truth = feed_in(exact, dynamic(exact), ids, 10)
    ours, theirs = (got.float() - truth).abs(), (other.float() - truth).abs()
    assert ours.mean() <= 1.25 * theirs.mean(), f"mean {ours.mean():.4f}, DynamicCache {theirs.mean():.4f}"
    assert ours.max() <= 2 * theirs.max(), f"worst {ours.max():.3f}, DynamicCache {theirs.max():.3f}"


@pytest.mark.parametrize("policy", ["h2o", "adakv"])
def test_gradients_of_values_alone(policy, monkeypatch):
    """As when only `v_proj` is tuned: queries and keys of the first layer need no gradient, and its weights are needed all
    the same, those of every block.

    Kills: blocks of scores that are written over each other while values still wait for them.
    """
    monkeypatch.setattr(scores, "_SCORES", 200)  # several blocks
    model, ids = families.build(), families.tokens(25)
    model.requires_grad_(False)
    values = model.model.layers[0].self_attn.v_proj.weight.requires_grad_(True)
    gradients = []
    with BoundedCache(model, ROOMY, policy) as ours:
        for cache in (dynamic(model), ours):
            values.grad = None
            logits = model(ids, **{CACHE: cache}).logits
            logits.log_softmax(-1).gather(-1, ids[..., None]).sum().backward()
            gradients.append(values.grad.clone())
    assert gradients[0].abs().max() > 0.01
    assert_close(gradients[1], gradients[0], 1e-4)


@every_policy()
@pytest.mark.parametrize("prompt", [0, 15], ids=["from the start", "with a past"])
def test_gradients(policy, prompt):
    """What flows back through a forward with a bounded cache is what flows back with DynamicCache: to every weight, and
    the past brings none.

    Kills: keys that lost their graph before attention had seen them; a past that keeps the graph of its own forward.
    """
    model = families.build()
    ids = families.tokens(25)
    places = [f"{layer}.self_attn.{name}" for layer in range(2) for name in ("q_proj", "k_proj", "v_proj")]

    def run(cache):
        model.zero_grad()
        if prompt:
            model(ids[:, :prompt], **{CACHE: cache})
        logits = model(ids[:, prompt:], **{CACHE: cache}).logits
        logits.log_softmax(-1).gather(-1, ids[:, prompt:, None]).sum().backward()
        gone = {name: weight.grad.clone() for name, weight in model.base_model.layers.named_parameters()}
        assert all(gone[f"{place}.weight"].abs().max() > 0.01 for place in places)
        return gone

    reference = dynamic(model)
    if prompt:  # DynamicCache does keep the graph of its past
        with torch.no_grad():
            model(ids[:, :prompt], **{CACHE: reference})
        kept = [(layer.keys, layer.values) for layer in reference.layers]
        assert not any(x.requires_grad for pair in kept for x in pair)
    model.zero_grad()
    logits = model(ids[:, prompt:], **{CACHE: reference}).logits
    logits.log_softmax(-1).gather(-1, ids[:, prompt:, None]).sum().backward()
    wanted = {name: weight.grad.clone() for name, weight in model.base_model.layers.named_parameters()}
    with policy.cache(model, budget=policy.room_for(ROOMY, model)) as cache:
        got = run(cache)
    for name, gradient in wanted.items():
        assert_close(got[name], gradient, 1e-4, name)


@every_policy()
def test_a_cap_that_sdpa_leaves_out(policy):
    """Where this transformers lets Gemma 2 use sdpa, it computes no soft cap there; nor do we, below the budget.

    Kills: logits that a cache changes, if for the better.
    """
    config = families.FAMILIES["gemma2"].config(**families.fields_of())
    if not families.supports_sdpa(config):
        pytest.skip("this transformers does not let Gemma 2 use sdpa")
    model = families.from_config(config)
    model.set_attn_implementation("sdpa")
    ids = families.tokens(ROOMY)
    got, wanted = both(policy, model, lambda cache: feed_in(model, cache, ids, [40, 7, *[1] * 33]))
    assert_close(got, wanted, 1e-5)


LENGTH_DEPENDENT = ("dynamic", "longrope")


@every_policy(kind=families.FAMILIES["llama"].rope_kinds)
def test_every_rotary_kind(policy, kind):
    """Below the original length (here of text and budget) all rotary kinds agree with DynamicCache."""
    model = families.build(rope_kind=kind, positions=64)
    ids = families.tokens(50)
    wanted = feed_in(model, dynamic(model), ids, [20, 20, *[1] * 10])
    with policy.cache(model, budget=policy.room_for(60, model)) as cache:
        assert_close(feed_in(model, cache, ids, [20, 20, *[1] * 10]), wanted, 1e-5)


@every_policy(*BOUNDED, kind=LENGTH_DEPENDENT)
def test_a_budget_beyond_the_original_length(policy, kind):
    """Frequencies that depend on length, and a budget beyond the original one: whatever frequencies are chosen for
    it, a text that is still below either agrees with DynamicCache or the choice is on record.

    Kills: long frequencies, picked by the budget, in silence (logits are off by 5).
    """
    model = families.build(rope_kind=kind, positions=64)
    ids = families.tokens(50)
    wanted = feed_in(model, dynamic(model), ids, 10)
    with policy.cache(model, budget=policy.room_for(80, model)) as cache:
        got = feed_in(model, cache, ids, 10)
        if not any("64" in note for note in cache.notes):
            assert_close(got, wanted, 1e-5)
        assert torch.isfinite(got).all()


@every_policy()
def test_generate_may_prefill_in_chunks(policy):
    """`prefill_chunk_size` turns one prompt into several forwards; tokens stay the same."""
    model = families.build()
    ids = families.tokens(30)
    got, wanted = both(policy, model, lambda cache: generate(model, cache, ids, 10, prefill_chunk_size=8))
    assert torch.equal(got, wanted)
