"""Families that compute attention inline: their slopes are the model's own, and their modules are given back."""

import copy
import functools
import math
import threading

import pytest
import torch
from transformers import BloomConfig, FalconConfig, MptConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as bloom_biases
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as falcon_biases
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor as mpt_biases

import families
from contract.cells import (
    POLICIES,
    assert_close,
    assert_same_print,
    dynamic,
    feed,
    feed_in,
    fingerprint,
    generate,
)
from naive import dense
from naive.streaming import pinned, visible
from sinkpin import BoundedCache
from sinkpin.cache import adapters
from sinkpin.errors import InputError, ModelError

INLINE = ("falcon", "falcon-alibi", "mpt", "bloom")
SMALL = {"vocab_size": families.VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}


def falcon(**more):
    return FalconConfig(
        **{**SMALL, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **more}
    )


VARIANTS = {
    "one KV head": lambda: falcon(multi_query=True),
    "all KV heads": lambda: falcon(multi_query=False, parallel_attn=False, bias=True),
    "grouped KV heads": lambda: falcon(new_decoder_architecture=True, num_kv_heads=2),
    "one norm": lambda: falcon(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1),
    "ALiBi, one KV head": lambda: falcon(alibi=True, multi_query=True),
    "ALiBi, six heads": lambda: BloomConfig(**SMALL, hidden_size=48, n_layer=2, n_head=6),
    "clipped, own scale": lambda: MptConfig(
        **SMALL,
        d_model=48,
        n_layers=2,
        n_heads=6,
        max_seq_len=64,
        use_cache=True,
        attn_config={"clip_qkv": 0.5, "softmax_scale": 0.2},
    ),
}


def adapted(model):
    return [
        m.__dict__["forward"]
        for m in model.modules()
        if isinstance(m.__dict__.get("forward"), adapters.Adapter)
    ]


def slopes_of(model):
    with BoundedCache(model, budget=8, sinks=0):
        return [adapter.slopes for adapter in adapted(model)]


@pytest.mark.parametrize("heads", [4, 6])
def test_slopes_are_those_of_the_models_own_biases(heads):
    """Slope x distance is what the model itself adds, up to the constant that softmax does not see.

    Kills: slopes by the paper's formula where the family has another; biases that are not scaled with the scores.
    """
    size = 8 * heads
    ones = torch.ones(1, 50, dtype=torch.long)
    wanted = {
        "bloom": bloom_biases(ones, heads, torch.float32).view(heads, 50),
        "mpt": mpt_biases(heads, 50).view(heads, 50),
        "falcon": falcon_biases(ones, heads, torch.float32).view(heads, 50) / math.sqrt(8),
    }
    configs = {
        "bloom": BloomConfig(**SMALL, hidden_size=size, n_layer=1, n_head=heads),
        "mpt": MptConfig(**SMALL, d_model=size, n_layers=1, n_heads=heads, max_seq_len=64),
        "falcon": falcon(
            alibi=True, multi_query=False, num_attention_heads=heads, hidden_size=size, num_hidden_layers=1
        ),
    }
    for name, config in configs.items():
        (slopes,) = slopes_of(families.from_config(config))
        biases = wanted[name] - wanted[name][:, -1:]
        ours = slopes[:, None] * (torch.arange(50) - 49)
        # Falcon rounds each product to bf16 (8 bits); with six heads its slopes are not powers of two.
        tolerance = 1e-6 if name != "falcon" or heads == 4 else 2**-8
        assert_close(ours, biases, tolerance, name)


def test_falcon_with_rotary_has_no_slopes():
    assert slopes_of(families.build("falcon")) == [None, None]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_below_the_budget(name, attention):
    """Every way these families lay out their heads equals DynamicCache, prefill, chunk and steps; and generates alike.

    Kills: KV heads split as query heads; a clip or a scale left out; eager Falcon's biases, which transformers adds twice.
    """
    model = families.from_config(VARIANTS[name](), attention=attention)
    ids = families.tokens(50)
    sizes = [30, 7, *[1] * 13]
    wanted = feed_in(model, dynamic(model), ids, sizes)
    for policy in ("streaming", "random"):
        with POLICIES[policy].cache(model, budget=60) as cache:
            assert_close(feed_in(model, cache, ids, sizes), wanted, 1e-5, policy)
        with POLICIES[policy].cache(model, budget=60) as cache:
            assert torch.equal(
                generate(model, cache, ids[:, :20], 15), generate(model, dynamic(model), ids[:, :20], 15)
            )


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_above_the_budget(name):
    """One layer at ranks: an ordinary forward on what each token sees."""
    config = VARIANTS[name]()
    config.num_hidden_layers = 1
    model = families.from_config(config)
    ids = families.tokens(40)
    with POLICIES["streaming"].cache(model, frame="slots") as cache:
        got = feed_in(model, cache, ids, 7)[0]
    for t in range(40):
        assert_close(got[t], dense.plain(model, ids[0, visible(t, 12, pinned(4))])[-1], 1e-4, f"token {t}")


def test_grouped_keys_are_stored_once():
    """Falcon's newer architecture copies KV heads to its groups before the cache; we hold two heads, not four."""
    model = families.build("falcon", kv_heads=2)
    with POLICIES["streaming"].cache(model) as cache:
        feed(model, cache, families.tokens(20))
        assert cache.layers[0].keys.shape == (1, 2, 12, 8)


@pytest.mark.parametrize("family", INLINE)
def test_modules_are_adapted_on_the_instance_and_given_back(family):
    """Two instances, one adapted; with the last cache closed no attribute is left; the class never changes."""
    model, other = families.build(family), families.build(family)
    before = fingerprint(model)
    forwards = {type(m): type(m).forward for m in model.modules()}
    first, second = BoundedCache(model, budget=8), BoundedCache(model, budget=9)
    assert len(adapted(model)) == 2
    assert not adapted(other)
    first.close()
    assert len(adapted(model)) == 2
    second.close()
    assert_same_print(before, fingerprint(model))
    assert all(kind.forward is forward for kind, forward in forwards.items())


def test_a_forward_that_was_replaced_before_is_given_back():
    """accelerate wraps forwards on the instance: ours goes inside it, and leaves it as it was.

    Kills: deleting an attribute that was someone else's; skipping a hook that brings weights to the device.
    """
    model = families.build("bloom")
    module = model.transformer.h[0].self_attention
    calls = []

    def wrapped(module, *args, **kwargs):
        calls.append(1)
        return module._old_forward(*args, **kwargs)

    module._old_forward = module.forward
    module.forward = functools.partial(wrapped, module)
    ids = families.tokens(20)
    wanted = feed(model, dynamic(model), ids)
    before, called = fingerprint(model), len(calls)
    mine = module.forward
    with BoundedCache(model, budget=30) as cache:
        assert_close(feed(model, cache, ids), wanted, 1e-5)
    assert len(calls) > called
    assert module.forward is mine
    assert_same_print(before, fingerprint(model))


@pytest.mark.parametrize("family", INLINE)
def test_a_thread_with_another_cache_runs_the_models_own_code(family):
    """While our forward is between two layers, a dense one in another thread is bit-identical to one without us.

    Kills: Falcon's own code, asked for attention by a configuration that names us for the moment, taking its eager path.
    """
    model = families.build(family)
    ids = families.tokens(40)
    wanted, results = feed(model, dynamic(model), ids), []

    def meanwhile(*_):
        if not results:
            results.append(None)
            thread = threading.Thread(target=lambda: results.append(feed(model, dynamic(model), ids)))
            thread.start()
            thread.join()

    blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    handle = blocks[1].register_forward_pre_hook(meanwhile)
    with POLICIES["streaming"].cache(model) as cache:
        results[:] = []
        feed(model, cache, ids)
    handle.remove()
    assert torch.equal(results[1], wanted)


@pytest.mark.parametrize("family", INLINE)
def test_a_copy_of_an_adapted_model_is_its_own(family):
    """`deepcopy` while a cache is open: the copy runs by itself, and takes caches of its own.

    Kills: a forward bound to the original's weights.
    """
    model = families.build(family)
    ids = families.tokens(30)
    with POLICIES["streaming"].cache(model) as cache:
        wanted = feed(model, cache, ids)
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for weight in twin.parameters():
                weight.mul_(1.5)
        assert (feed(twin, dynamic(twin), ids) - feed(model, dynamic(model), ids)).abs().max() > 0.01
        with POLICIES["streaming"].cache(twin) as theirs:
            assert (feed(twin, theirs, ids) - wanted).abs().max() > 0.01


def test_a_long_stream_makes_no_long_biases():
    """Falcon makes biases as long as everything seen; with ours they stay short.

    Kills: a decode step whose memory grows for ever though the cache does not.
    """
    model = families.build("falcon-alibi", layers=1)
    lengths = []
    block = model.transformer.h[0]
    block.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["alibi"].shape[-1]), with_kwargs=True
    )
    with POLICIES["streaming"].cache(model) as cache:
        lengths.clear()
        feed_in(model, cache, families.tokens(60), 10)
    assert max(lengths) == 1


def test_falcons_rounding_is_on_record():
    """What is not as in the model itself is said in the notes; for rotary Falcon there is nothing to say."""
    with BoundedCache(families.build("falcon-alibi"), budget=8) as cache:
        assert any("bf16" in note for note in cache.notes)
    with BoundedCache(families.build("falcon"), budget=8) as cache:
        assert not cache.notes


def test_what_cannot_be_adapted_is_refused_and_left():
    """BLOOM's sliced output, and a subclass whose forward may be another: refused, with no adapter left behind."""
    model = families.build("bloom", pretraining_tp=2, slow_but_exact=True)
    before = fingerprint(model)
    with pytest.raises(ModelError, match="slow_but_exact=False"):
        BoundedCache(model, budget=8)
    assert_same_print(before, fingerprint(model))
    model = families.build("falcon")
    module = model.transformer.h[1].self_attention
    module.__class__ = type("OwnAttention", (type(module),), {})
    before = fingerprint(model)
    with pytest.raises(ModelError, match="attention"):
        BoundedCache(model, budget=8)
    assert_same_print(before, fingerprint(model))


def test_mpt_without_use_cache_is_refused():
    """MPT's configuration switches the cache off; generate would then feed the whole text at every step.

    Kills: 20 tokens that fill the cache with 400.
    """
    model = families.build("mpt", use_cache=False)
    with BoundedCache(model, budget=40) as cache:
        with pytest.raises(InputError, match="use_cache=True"):
            generate(model, cache, families.tokens(20), 5)
        assert cache.seen == 0
        assert generate(model, cache, families.tokens(20), 5, use_cache=True).shape == (1, 25)
