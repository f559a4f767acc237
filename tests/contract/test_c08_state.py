"""C8: all state lives in the cache. Models can be shared, other caches are untouched, closing leaves no trace."""

import copy
import gc
import pickle
import threading

import pytest
import torch
from transformers import LlamaForCausalLM

import families
from contract.cells import (
    BOUNDED,
    CACHE,
    POLICIES,
    assert_close,
    assert_same_print,
    dynamic,
    every_cell,
    every_policy,
    feed,
    feed_in,
    fingerprint,
    generate,
    origins,
)
from sinkpin.errors import CacheError


@every_policy()
def test_a_b_a(policy):
    """One model serves A, B, A: both A are equal bit by bit.

    Kills: a policy object or a module attribute that remembers.
    """
    model = families.build()
    a, b = families.tokens(40, seed=1), families.tokens(55, seed=2)

    def run(ids):
        with policy.cache(model) as cache:
            logits = feed_in(model, cache, ids, 9)
            return logits, cache.origins(1)

    first, _, second = run(a), run(b), run(a)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@every_cell(*BOUNDED, daily=False)
def test_two_caches_do_not_meet(policy, family):
    """Two caches of different budgets, fed in turns, equal each alone; closing one leaves the other working.

    Kills: the current cache in a global; hooks that the first close removes.
    """
    model = families.build(family)
    a, b = families.tokens(60, seed=1), families.tokens(60, seed=2)

    def alone(ids, budget):
        with policy.cache(model, budget=budget) as cache:
            return feed_in(model, cache, ids, 10)

    wanted_a, wanted_b = alone(a, 10), alone(b, 14)
    first, second = policy.cache(model, budget=10), policy.cache(model, budget=14)
    got_a, got_b = [], []
    for start in range(0, 60, 10):
        got_a.append(feed(model, first, a[:, start : start + 10]))
        if start == 30:
            first_half = torch.cat(got_a, 1)
            assert torch.equal(first_half, wanted_a[:, :40])
            first.close()
        if start >= 30:
            got_b.append(feed(model, second, b[:, start - 30 : start - 20]))
            if start == 30:
                got_a = [got_a[0]]
                break
    for start in range(10, 60, 10):
        got_b.append(feed(model, second, b[:, start : start + 10]))
    assert torch.equal(torch.cat(got_b, 1), wanted_b)
    second.close()


@every_policy()
def test_policies_are_mixed_on_one_model(policy):
    """This policy next to each other one, fed in turns."""
    model = families.build()
    ids = families.tokens(40)
    with policy.cache(model) as cache:
        wanted = feed_in(model, cache, ids, 20)
    for other in POLICIES.values():
        got = []
        with policy.cache(model) as mine, other.cache(model) as theirs:
            for start in range(0, 40, 20):
                got.append(feed(model, mine, ids[:, start : start + 20]))
                feed(model, theirs, ids.flip(1)[:, start : start + 20])
        assert torch.equal(torch.cat(got, 1), wanted), other.name


@every_cell(daily=False, attention=["sdpa", "eager"])
def test_other_caches_see_nothing(policy, family, attention):
    """DynamicCache on the same model is bit-identical while ours is open, between our forwards, and after close;
    the model's config, hooks, attributes and buffers are as before.

    Kills: an attention implementation left switched; a hook left behind; a patched class.
    """
    model = families.build(family, attention=attention)
    ids = families.tokens(40)
    before = fingerprint(model)

    def reference():
        cache = dynamic(model)
        return torch.cat([feed(model, cache, ids[:, :30]), feed(model, cache, ids[:, 30:])], 1)

    def plain():
        with torch.no_grad():
            return model(ids, use_cache=False).logits

    wanted, wanted_plain, wanted_tokens = (
        reference(),
        plain(),
        generate(model, dynamic(model), ids[:, :10], 10),
    )
    cache = policy.cache(model)
    assert torch.equal(reference(), wanted)
    feed(model, cache, ids[:, :20])
    assert torch.equal(reference(), wanted)
    assert torch.equal(plain(), wanted_plain)
    feed(model, cache, ids[:, 20:])
    assert torch.equal(generate(model, dynamic(model), ids[:, :10], 10), wanted_tokens)
    cache.close()
    assert_same_print(before, fingerprint(model))
    assert torch.equal(reference(), wanted)
    assert torch.equal(plain(), wanted_plain)


def test_the_last_close_cleans_up():
    """With two caches the model is clean after the second close, whichever goes first; closing twice is harmless."""
    model = families.build()
    before = fingerprint(model)
    for order in ((0, 1), (1, 0)):
        caches = [POLICIES["window"].cache(model), POLICIES["random"].cache(model)]
        for cache in caches:
            feed(model, cache, families.tokens(20))
        for i in order:
            caches[i].close()
            caches[i].close()
        assert_same_print(before, fingerprint(model))


def test_an_error_inside_the_block_closes_too():
    """Kills: a context manager without `finally`."""
    model = families.build()
    before = fingerprint(model)

    def work():
        with POLICIES["window"].cache(model) as cache:
            feed(model, cache, families.tokens(20))
            raise KeyError("the user's own")

    with pytest.raises(KeyError, match="own"):
        work()
    assert_same_print(before, fingerprint(model))


def test_a_forgotten_cache_leaves_the_model_usable():
    """A cache that is dropped without `close` does not break the model for others.

    Kills: a hook that dereferences a dead cache.
    """
    model = families.build()
    ids = families.tokens(30)
    wanted = feed(model, dynamic(model), ids)
    feed(model, POLICIES["window"].cache(model), ids)
    assert torch.equal(feed(model, dynamic(model), ids), wanted)


@every_policy()
def test_output_attentions_of_other_caches(policy):
    """While ours is open, an eager model still returns its attentions to others."""
    model = families.build(attention="eager")
    ids = families.tokens(12)
    with torch.no_grad(), policy.cache(model):
        attentions = model(ids, output_attentions=True).attentions
    assert attentions is not None
    assert attentions[0].shape == (1, 4, 12, 12)


@every_policy(*BOUNDED)
@pytest.mark.parametrize("rounds", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_threads(policy, rounds):
    """A DynamicCache forward and a bounded one, interleaved in two threads on one model, for many rounds.

    Kills: the attention implementation switched on the shared config for the length of a forward, with the other
    thread inside; a global that says whose turn it is.
    """
    model = families.build()
    ids = families.tokens(40)
    wanted = feed_in(model, dynamic(model), ids, 8)
    with policy.cache(model) as cache:
        wanted_bounded = feed_in(model, cache, ids, 8)
    failures: list[str] = []
    start = threading.Barrier(2)

    def others():
        start.wait()
        for i in range(rounds):
            if not torch.equal(feed_in(model, dynamic(model), ids, 8), wanted):
                failures.append(f"DynamicCache, round {i}")
                return

    def ours():
        start.wait()
        for i in range(rounds):
            with policy.cache(model) as cache:
                if not torch.equal(feed_in(model, cache, ids, 8), wanted_bounded):
                    failures.append(f"bounded, round {i}")
                    return

    def guarded(work):
        try:
            work()
        except Exception as error:  # noqa: BLE001  (it is reported by the main thread)
            failures.append(repr(error))

    keep_open = policy.cache(model)
    threads = [threading.Thread(target=guarded, args=(work,)) for work in (others, ours)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keep_open.close()
    assert not failures, failures


def test_one_thread_inside_while_another_runs():
    """The same without luck: the bounded forward is held in its first layer while the other thread runs whole.

    Kills: what the rounds above may miss by timing.
    """
    model = families.build()
    ids = families.tokens(20)
    wanted = feed(model, dynamic(model), ids)
    with POLICIES["streaming"].cache(model) as cache:
        wanted_bounded = feed(model, cache, ids)
    inside, go_on = threading.Event(), threading.Event()
    slow = threading.local()

    def hold(*_):
        if getattr(slow, "me", False):
            inside.set()
            assert go_on.wait(20)

    handle = model.base_model.layers[0].register_forward_pre_hook(hold)
    results = {}

    def ours():
        slow.me = True
        with POLICIES["streaming"].cache(model) as cache:
            results["ours"] = feed(model, cache, ids)

    thread = threading.Thread(target=ours)
    thread.start()
    try:
        assert inside.wait(20)
        results["other"] = feed(model, dynamic(model), ids)
        with torch.no_grad():
            results["none"] = model(ids, use_cache=False).logits
    finally:
        go_on.set()
        thread.join()
        handle.remove()
    assert torch.equal(results["other"], wanted)
    assert torch.equal(results["ours"], wanted_bounded)
    assert_close(results["none"], wanted, 1e-5)


def of_one_config():
    """Two Llamas with different weights that share one configuration object."""
    config = families.FAMILIES["llama"].config(**families.fields_of())
    pair = []
    for seed in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            pair.append(LlamaForCausalLM(config).eval())
    assert pair[0].config is pair[1].config is pair[1].base_model.config
    return pair


@every_policy(*BOUNDED)
def test_models_that_share_a_configuration(policy):
    """One model's cache is nothing to another model of the same configuration, and both may have caches, fed in turns;
    in the end both are as before.

    Kills: an attention implementation left on the configuration, met by a model that knows nothing of caches.
    """
    model, other = of_one_config()
    ids = families.tokens(40)
    before = fingerprint(model), fingerprint(other)
    wanted = feed_in(other, dynamic(other), ids, 20)
    alone = []
    for each in (model, other):
        with policy.cache(each) as cache:
            alone.append(feed_in(each, cache, ids, 20))
    assert (alone[0] - alone[1]).abs().max() > 0.1
    with policy.cache(model) as cache:
        for start in (0, 20):
            now = slice(start, start + 20)
            assert torch.equal(feed(model, cache, ids[:, now]), alone[0][:, now])
            assert torch.equal(feed_in(other, dynamic(other), ids, 20), wanted)
        cache.reset()
        with policy.cache(other) as theirs:
            for start in (0, 20):
                now = slice(start, start + 20)
                assert torch.equal(feed(model, cache, ids[:, now]), alone[0][:, now])
                assert torch.equal(feed(other, theirs, ids[:, now]), alone[1][:, now])
        assert torch.equal(feed_in(other, dynamic(other), ids, 20), wanted)
    for each, printed in zip((model, other), before, strict=True):
        assert_same_print(printed, fingerprint(each))


@pytest.mark.parametrize("bound", [False, True], ids=["plain", "bound too"])
def test_a_forward_within_a_forward(bound):
    """In the middle of a bounded forward, in the same thread, another model of the same configuration runs (a hook may do
    that): its attention and its masks are its own.

    Kills: no mask where the inner model has a past, so that its tokens see later ones (logits off by 7).
    """
    model, other = of_one_config()
    ids = families.tokens(40)
    wanted, inside = feed_in(other, dynamic(other), ids, 20), []
    policy = POLICIES["streaming"]
    handle = model.base_model.layers[1].register_forward_pre_hook(
        lambda *_: inside.append(feed_in(other, dynamic(other), ids, 20))
    )
    with policy.cache(model) as cache:
        inside.clear()  # of the probing forward
        twin = policy.cache(other) if bound else None
        feed(model, cache, ids)
        if twin is not None:
            twin.close()
    handle.remove()
    assert torch.equal(inside[0], wanted)


def in_threads(*works):
    """Run each function in a thread of its own, all starting at once; their exceptions are the failures."""
    failures, start = [], threading.Barrier(len(works))

    def guarded(work):
        try:
            start.wait()
            work()
        except Exception as error:  # noqa: BLE001  (it is reported by the main thread)
            failures.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_a_shared_configuration_in_threads():
    """One model under a bounded cache, the other without, each in its thread, with one configuration between them.

    Kills: an implementation switched back by the one that leaves while the other is inside.
    """
    model, other = of_one_config()
    ids = families.tokens(30)
    before = fingerprint(model), fingerprint(other)
    policy = POLICIES["streaming"]
    wanted = feed_in(other, dynamic(other), ids, 10)
    with policy.cache(model) as cache:
        wanted_bounded = feed_in(model, cache, ids, 10)

    def ours():
        for _ in range(40):
            with policy.cache(model) as cache:
                assert torch.equal(feed_in(model, cache, ids, 10), wanted_bounded)

    def plain():
        for _ in range(80):
            assert torch.equal(feed_in(other, dynamic(other), ids, 10), wanted)

    in_threads(ours, plain)
    for each, printed in zip((model, other), before, strict=True):
        assert_same_print(printed, fingerprint(each))


def test_caches_come_and_go_beside_another_model():
    """A model streams while, in other threads, caches of a second one are opened and closed, and further models are
    built, bound and dropped.

    Kills: a table of doors read while another thread changes it; a door taken down with the wrong model's.
    """
    model, busy = families.build(), families.build(seed=1)
    ids = families.tokens(30)
    before = fingerprint(model), fingerprint(busy)
    policy = POLICIES["streaming"]
    wanted = feed_in(model, dynamic(model), ids, 10)
    with policy.cache(model) as cache:
        wanted_bounded = feed_in(model, cache, ids, 10)
    with policy.cache(busy) as cache:
        wanted_busy = feed(busy, cache, ids)

    def streams():
        for _ in range(20):
            assert torch.equal(feed_in(model, dynamic(model), ids, 10), wanted)
            with policy.cache(model) as cache:
                assert torch.equal(feed_in(model, cache, ids, 10), wanted_bounded)

    def opens_and_closes():
        for _ in range(20):
            with policy.cache(busy) as cache, policy.cache(busy, budget=9):
                assert torch.equal(feed(busy, cache, ids), wanted_busy)

    def builds_and_drops():
        for _ in range(6):
            passing = families.build(layers=1)
            feed(passing, policy.cache(passing), ids)
            del passing
            gc.collect()

    in_threads(streams, opens_and_closes, builds_and_drops)
    for each, printed in zip((model, busy), before, strict=True):
        assert_same_print(printed, fingerprint(each))


@every_policy()
def test_policies_are_frozen(policy):
    """A policy is a value: it cannot be changed after it was made.

    Kills: evidence kept on the policy, shared by every cache that was given it.
    """
    model = families.build()
    with policy.cache(model) as cache:
        chosen = cache.policy
        for name in ("seed", "kind", "anything"):
            with pytest.raises((AttributeError, TypeError)):
                setattr(chosen, name, 5)


@every_policy(*BOUNDED)
def test_deepcopy_is_independent(policy):
    """`copy.deepcopy` gives a second cache of the same contents; both go their own way, and each is closed alone.

    Kills: a copy that shares storage, copies the model, or loses its binding.
    """
    model = families.build()
    before = fingerprint(model)
    ids = families.tokens(40)
    with policy.cache(model) as cache:
        feed(model, cache, ids[:, :25])
        twin = copy.deepcopy(cache)
        held = origins(twin)
        got = feed(model, cache, ids[:, 25:])
        assert origins(twin) == held
        assert twin.seen == 25
        assert torch.equal(feed(model, twin, ids[:, 25:]), got)
    again = feed(model, twin, ids[:, :3])
    assert torch.isfinite(again).all()
    twin.close()
    assert_same_print(before, fingerprint(model))


@pytest.mark.parametrize("family", ["llama", "phi3", "gemma2", "bloom"])
def test_a_copy_of_the_model_is_a_plain_model(family):
    """`copy.deepcopy(model)` while a cache is open, after a forward: the copy runs, generates and has caches of its own,
    and none of that reaches the original, nor does its closing reach the copy.

    Kills: copied hooks that lead to the original's door; an attention function that finds no door, or the wrong one.
    """
    model = families.build(family)
    ids = families.tokens(30)
    before = fingerprint(model)
    wanted, tokens = feed(model, dynamic(model), ids), generate(model, dynamic(model), ids[:, :9], 8)
    policy = POLICIES["streaming"]
    with policy.cache(model) as cache:
        wanted_bounded = feed(model, cache, ids)
        twin = copy.deepcopy(model)
        with torch.no_grad():
            assert_close(twin(ids, use_cache=False).logits, wanted, 1e-5)
        assert torch.equal(feed(twin, dynamic(twin), ids), wanted)
        assert torch.equal(generate(twin, dynamic(twin), ids[:, :9], 8), tokens)
        with pytest.raises(CacheError, match="another model"):
            feed(twin, cache, ids[:, :3])
        with policy.cache(twin) as theirs:
            assert torch.equal(feed(twin, theirs, ids), wanted_bounded)
            more = feed(twin, theirs, ids[:, :4])
        assert torch.equal(feed(model, cache, ids[:, :4]), more)
    assert_same_print(before, fingerprint(model))
    assert torch.equal(feed(twin, dynamic(twin), ids), wanted)
    with policy.cache(twin) as theirs:
        assert torch.equal(feed(twin, theirs, ids), wanted_bounded)


@every_policy()
def test_pickling_is_refused(policy):
    """`pickle` and `copy.copy` are refused in words that say what to use; the cache goes on.

    Kills: a copy that shares storage; a pickle of the whole model.
    """
    model = families.build()
    with policy.cache(model) as cache:
        feed(model, cache, families.tokens(20))
        for attempt in (pickle.dumps, copy.copy):
            with pytest.raises(CacheError, match=r"save\(\)"):
                attempt(cache)
        assert torch.isfinite(feed(model, cache, families.tokens(2))).all()


def test_importing_and_opening_patch_no_class():
    """Neither the module's functions nor DynamicCache are replaced.

    Kills: monkeypatching as in peers that change every model of the process.
    """
    from transformers import DynamicCache
    from transformers.models.llama import modeling_llama

    watched = (
        modeling_llama.LlamaAttention.forward,
        modeling_llama.LlamaModel.forward,
        DynamicCache.update,
        modeling_llama.apply_rotary_pos_emb,
        modeling_llama.eager_attention_forward,
    )
    model = families.build()
    with POLICIES["window"].cache(model) as cache:
        feed(model, cache, families.tokens(20))
        now = (
            modeling_llama.LlamaAttention.forward,
            modeling_llama.LlamaModel.forward,
            DynamicCache.update,
            modeling_llama.apply_rotary_pos_emb,
            modeling_llama.eager_attention_forward,
        )
        assert all(a is b for a, b in zip(watched, now, strict=True))
        assert CACHE in ("cache", "past_key_values")
