"""C12: no silent degradation. What cannot be honoured is an error of one line, and a cache in doubt says so."""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from transformers import Gemma3nTextConfig, GPT2Config, Ministral3Config, OPTConfig, Qwen2MoeConfig

import families
import sinkpin
from contract.cells import (
    BOUNDED,
    BUDGET,
    CACHE,
    POLICIES,
    assert_close,
    assert_full,
    assert_same_print,
    dynamic,
    every_cell,
    every_policy,
    feed,
    feed_in,
    fingerprint,
    generate,
    origins,
    tensors,
)
from sinkpin.errors import BudgetError, CacheError, InputError, ModelError, PolicyError, SinkpinError
from sinkpin.policies.base import Policy, newest


def refused(kind, work, *named):
    """The one-line error of `work`, which names what it is about."""
    with pytest.raises(kind) as caught:
        work()
    message = str(caught.value)
    assert "\n" not in message, message
    assert len(message) > 20, message
    for name in named:
        assert str(name) in message, message
    return message


@pytest.mark.parametrize("leaf", [BudgetError, PolicyError, ModelError, InputError, CacheError])
def test_all_errors_are_one_family(leaf):
    """One `except` catches all of them, and code that expects ValueError works."""
    assert issubclass(leaf, SinkpinError)
    assert issubclass(leaf, ValueError)


def test_unknown_names_and_options():
    """Kills: `**kwargs` that swallow a misspelt option."""
    model = families.build()
    refused(PolicyError, lambda: sinkpin.BoundedCache(model, budget=8, policy="windw"), "windw", "window")
    refused(SinkpinError, lambda: sinkpin.BoundedCache(model, budget=8, policy="random", sead=1), "sead")
    refused(SinkpinError, lambda: sinkpin.BoundedCache(model, budget=8, policy="window", seed=1), "seed")
    refused(SinkpinError, lambda: sinkpin.BoundedCache(model, budget=8, policy="full", seed=1))
    refused(SinkpinError, lambda: sinkpin.BoundedCache(model, budget=8, frame="slot"), "slot")
    refused(SinkpinError, lambda: sinkpin.BoundedCache(model, budget=8, policy="random", seed="x"), "seed")
    refused(SinkpinError, lambda: sinkpin.BoundedCache("a string", budget=8))


def test_a_refused_construction_leaves_no_trace():
    """Kills: hooks placed before the arguments were checked."""
    model = families.build()
    before = fingerprint(model)
    for more in ({"budget": 0}, {"budget": 4}, {"budget": 8, "policy": "nope"}, {"budget": 8, "frame": "?"}):
        with pytest.raises(SinkpinError):
            sinkpin.BoundedCache(model, **more)
    assert_same_print(before, fingerprint(model))


@every_policy()
@pytest.mark.parametrize("fed", [0, 20])
def test_inputs_that_cannot_be_honoured(policy, fed):
    """Right padding, a mask of another length, a 4-D mask, custom position ids, attentions: each raises, and the cache
    goes on as if nothing had been asked.

    Kills: a mask argument that is dropped on the way; a refusal after the cache was half written.
    """
    model = families.build()
    ids, more = families.tokens(fed + 6), families.tokens(4, seed=7)
    with policy.cache(model) as cache:
        if fed:
            feed(model, cache, ids[:, :fed])
        new = ids[:, fed:]
        ones = torch.ones(1, fed + 6, dtype=torch.long)
        right = ones.clone()
        right[0, -2:] = 0
        kept = origins(cache)
        attempts = {
            "right padding": {"mask": right},
            "mask of the new alone": {"mask": torch.ones(1, 6 if fed else 5).long()},
            "mask too long": {"mask": torch.ones(1, fed + 7).long()},
            "4-D mask": {"mask": torch.zeros(1, 1, 6, fed + 6)},
            "4-D bool mask": {"mask": torch.ones(1, 1, 6, fed + 6, dtype=torch.bool)},
            "shifted positions": {"position_ids": torch.arange(fed + 5, fed + 11)[None]},
            "repeated positions": {"position_ids": torch.full((1, 6), fed)},
            "gaps": {"position_ids": fed + 2 * torch.arange(6)[None]},
            "attentions": {"output_attentions": True},
        }
        let_by = []
        for what, given in attempts.items():
            try:
                feed(model, cache, new, **given)
            except SinkpinError as error:
                let_by += [f"{what}: more than one line"] if "\n" in str(error) else []
            else:
                let_by.append(what)
            if (cache.seen, origins(cache)) != (fed, kept):
                pytest.fail(f"{what} changed the cache; let by so far: {let_by}")
        assert not let_by
        got = torch.cat([feed(model, cache, new), feed(model, cache, more)], 1)
    with policy.cache(model) as fresh:
        whole = torch.cat([ids, more], 1)
        wanted = feed_in(model, fresh, whole, [n for n in (fed, 6, 4) if n])[:, fed:]
    assert torch.equal(got, wanted)


@every_policy()
def test_right_positions_are_welcome(policy):
    """What `generate` itself passes: a mask of ones, position ids that go on from seen."""
    model = families.build()
    ids = families.tokens(30)
    with policy.cache(model) as cache, policy.cache(model) as bare:
        for start in (0, 10, 20):
            got = feed(
                model,
                cache,
                ids[:, start : start + 10],
                torch.ones(1, start + 10).long(),
                position_ids=torch.arange(start, start + 10)[None],
            )
            assert torch.equal(got, feed(model, bare, ids[:, start : start + 10]))


@every_policy()
def test_a_padding_mask_must_stay(policy):
    """A padded batch continued without its mask, or with another one, is refused or handled, never wrong.

    Kills: a decode step that takes a missing mask for 'no padding'.
    """
    model = families.build()
    rows = [families.tokens(12)[0], families.tokens(5, seed=1)[0]]
    ids, mask = families.pad_left(rows)
    more = families.tokens(1, rows=2, seed=4)
    with policy.cache(model) as alone:
        wanted = feed_in(model, alone, torch.cat([rows[1], more[1]])[None], [5, 1])[0, -1]
    with policy.cache(model) as cache:
        feed(model, cache, ids, mask)
        try:
            got = feed(model, cache, more)
        except SinkpinError:
            return
        assert_close(got[1, 0], wanted, 1e-4)


@every_policy()
@pytest.mark.parametrize("fed", [0, 20])
def test_a_hole_in_the_mask(policy, fed):
    """Padding in mid-row (a batch whose second turns differ in length): refused, or the row without the hole.

    Kills: a hole that takes an index, a rank, or a pin.
    """
    model = families.build()
    ids = families.tokens(fed + 12)
    mask = torch.ones(1, fed + 12).long()
    mask[0, fed + 3 : fed + 6] = 0
    with policy.cache(model) as cache, policy.cache(model) as without:
        if fed:
            feed(model, cache, ids[:, :fed])
            feed(model, without, ids[:, :fed])
        try:
            got = feed(model, cache, ids[:, fed:], mask[:, : fed + 12])
        except SinkpinError:
            assert cache.seen == fed
            return
        own = mask[0, fed:].bool()
        assert_close(got[:, own], feed(model, without, ids[:, fed:][:, own]), 1e-4)
        for layer in range(2):
            assert origins(cache, layer) == origins(without, layer)


@every_policy()
def test_a_changed_past_mask_is_refused(policy):
    """A mask that hides, later, a token that was real: refused."""
    model = families.build()
    with policy.cache(model) as cache:
        feed(model, cache, families.tokens(10))
        changed = torch.ones(1, 11).long()
        changed[0, :3] = 0
        with pytest.raises(SinkpinError):
            feed(model, cache, families.tokens(1), changed)
        assert cache.seen == 10


@every_cell(daily=False)
def test_with_another_model(policy, family):
    """A cache belongs to the model it was built for, even to one of the same shape.

    Kills: a check by class or config instead of identity.
    """
    model, other = families.build(family), families.build(family, seed=1)
    with policy.cache(model) as cache:
        with pytest.raises(SinkpinError):
            feed(other, cache, families.tokens(5))
        assert cache.seen == 0
        feed(model, cache, families.tokens(5))
        with policy.cache(other) as theirs:
            with pytest.raises(SinkpinError):
                feed(other, cache, families.tokens(5))
            with pytest.raises(SinkpinError):
                feed(model, theirs, families.tokens(5))
        assert cache.seen == 5


@every_policy()
def test_after_close(policy):
    """A closed cache says so; while another keeps the door up, and when none does.

    Kills: a forward that fills a closed cache without its policy.
    """
    model = families.build()
    cache = policy.cache(model)
    feed(model, cache, families.tokens(20))
    with policy.cache(model):
        cache.close()
        refused(SinkpinError, lambda: feed(model, cache, families.tokens(2)), "close")
    refused(SinkpinError, lambda: feed(model, cache, families.tokens(2)))
    refused(SinkpinError, lambda: generate(model, cache, families.tokens(25), 2))


@every_policy()
def test_not_through_our_door(policy):
    """Keys that reach `update` without a forward of the model are refused.

    Kills: an update that believes whatever it is given (rotated keys would be rotated again).
    """
    model = families.build()
    with policy.cache(model) as cache, pytest.raises(SinkpinError):
        cache.update(torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8), 0)


@every_policy()
@pytest.mark.parametrize("where", ["before the layer", "after its attention", "in the mlp"])
@pytest.mark.parametrize("fed", [0, 30])
def test_a_forward_that_fails_midway(policy, where, fed):
    """An exception in layer 1 leaves layer 0 written: the cache says so at the next forward, and `reset` cures it.
    The model itself is unharmed at once.

    Kills: going on with layers of unequal length; an attention implementation left switched by the exception.
    """
    model = families.build(layers=3)
    ids = families.tokens(40)
    wanted = feed(model, dynamic(model), ids)
    layer = model.base_model.layers[1]
    target = {
        "before the layer": layer,
        "after its attention": layer.self_attn.o_proj,
        "in the mlp": layer.mlp,
    }[where]

    def fail(*_):
        raise RuntimeError("out of memory, say")

    with policy.cache(model) as cache:
        if fed:
            feed(model, cache, ids[:, :fed])
        handle = target.register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            feed(model, cache, ids[:, fed:])
        handle.remove()
        assert torch.equal(feed(model, dynamic(model), ids), wanted)
        refused(CacheError, lambda: feed(model, cache, ids[:, fed:]))
        refused(CacheError, lambda: feed(model, cache, ids[:, fed:]))
        cache.reset()
        with policy.cache(model) as fresh:
            assert torch.equal(feed(model, cache, ids), feed(model, fresh, ids))


@every_policy()
def test_another_batch_size(policy):
    """Two rows, then one or three: refused with both numbers, and the two go on.

    Kills: broadcasting one row over two.
    """
    model = families.build()
    ids = families.tokens(20, rows=3)
    with policy.cache(model) as cache:
        feed(model, cache, ids[:2])
        refused(SinkpinError, lambda: feed(model, cache, ids[:1]), "1", "2")
        refused(SinkpinError, lambda: feed(model, cache, ids), "3", "2")
        assert cache.seen == 20
        got = feed(model, cache, ids[:2])
    with policy.cache(model) as fresh:
        feed(model, fresh, ids[:2])
        assert torch.equal(got, feed(model, fresh, ids[:2]))


@every_policy(*BOUNDED)
def test_pins_for_another_number_of_rows(policy):
    """Three lists of pins and two rows are refused at the first forward."""
    model = families.build()
    with policy.cache(model, pins=[[(1, 2)], [(2, 3)], [(5, 6)]]) as cache:
        refused(SinkpinError, lambda: feed(model, cache, families.tokens(9, rows=2)), "3", "2")


@every_policy()
def test_another_precision(policy):
    """The model is converted while a cache lives: refused, naming both, whether anything is held or not; a new cache is
    as a new cache is.

    Kills: bf16 keys appended to fp32 ones and promoted in silence; keys rotated by frequencies that the conversion has
    rounded away.
    """
    model = families.build()
    ids = families.tokens(20)
    with policy.cache(model) as cache:
        feed(model, cache, ids)
        model.bfloat16()
        refused(CacheError, lambda: feed(model, cache, ids[:, :3]), "float32", "bfloat16", "new BoundedCache")
        cache.reset()
        refused(CacheError, lambda: feed(model, cache, ids[:, :3]), "float32", "bfloat16", "new BoundedCache")
        with policy.cache(model) as late, policy.cache(model) as later:
            assert torch.equal(feed(model, late, ids), feed(model, later, ids))


@every_policy(*BOUNDED)
def test_bytes_are_promised_for_one_precision(policy):
    """A budget in bytes and keys of another size: refused with what to do, before anything is stored."""
    model = families.build()
    with policy.cache(model, budget="24KiB") as cache:
        model.bfloat16()
        refused(CacheError, lambda: feed(model, cache, families.tokens(9)), "bytes", "bfloat16")
        assert cache.kept() == 0


@dataclass(frozen=True)
class Faulty(Policy):
    """Answers in a way that it was not asked to. `answer(view, n)`."""

    answer: Any
    name: ClassVar[str] = "faulty"

    def keep(self, view, n):
        return self.answer(view, n)


@dataclass(frozen=True)
class FaultyShare(Faulty):
    """The same where the heads of a layer share their budget."""

    name: ClassVar[str] = "faulty-share"
    across_heads: ClassVar[bool] = True

    def share(self, view, n):
        return self.answer(view, n)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda view, n: newest(view, n).clamp(max=view.candidates - 2), "twice"),
        (lambda view, n: newest(view, n) + 1, "not among"),
        (lambda view, n: newest(view, n) - view.candidates, "not among"),
        (lambda view, n: newest(view, n - 1), "keep()"),
        (lambda view, n: newest(view, n)[:, :1], "keep()"),
        (lambda view, n: newest(view, n)[0], "keep()"),
        (lambda view, n: newest(view, n).float(), "float32"),
        (lambda view, n: newest(view, n).int(), "int32"),
        (lambda view, n: newest(view, view.candidates) >= 0, "bool"),
        (lambda view, n: newest(view, n).tolist(), "list"),
    ],
    ids=[
        "twice",
        "too high",
        "negative",
        "one short",
        "one head",
        "no rows",
        "float",
        "int32",
        "mask",
        "list",
    ],
)
@pytest.mark.parametrize("fed", [5, 1], ids=["chunk", "token"])
def test_a_policy_that_answers_wrongly(answer, says, fed, tmp_path):
    """Whatever `keep` returns that is not n distinct candidates for each row and head is a `PolicyError` that names the
    policy; from then on the cache says that it stopped midway, in a forward or when it is saved.

    Kills: an entry held twice, which counts twice in every softmax from then on; a choice that fails at the exit of a
    forward and leaves a cache that looks whole.
    """
    model = families.build()
    with sinkpin.BoundedCache(model, budget=12, policy=Faulty(answer)) as cache, torch.no_grad():
        feed(model, cache, families.tokens(12, rows=2))
        refused(PolicyError, lambda: feed(model, cache, families.tokens(fed, rows=2)), "Faulty", says)
        refused(CacheError, lambda: cache.save(tmp_path / "file"), "reset()")
        refused(CacheError, lambda: feed(model, cache, families.tokens(1, rows=2)), "reset()")


@pytest.mark.parametrize(
    "answer",
    [
        lambda view, n: view.origins >= 0,
        lambda view, n: view.origins < 0,
        lambda view, n: view.origins[..., :-1] > view.origins.amax() - n,
        lambda view, n: (view.origins > view.origins.amax() - n)[0],
        lambda view, n: (view.origins > view.origins.amax() - n).long(),
    ],
    ids=["all", "none", "another shape", "no rows", "numbers"],
)
def test_a_policy_that_shares_wrongly(answer):
    """The same for `share`: a bool for each candidate, of which exactly n a head on average hold."""
    model = families.build()
    with sinkpin.BoundedCache(model, budget=12, policy=FaultyShare(answer)) as cache:
        feed(model, cache, families.tokens(12))
        refused(PolicyError, lambda: feed(model, cache, families.tokens(5)), "FaultyShare")


@dataclass(frozen=True)
class Looking(Policy):
    """Looks at the last `looks(room)` queries."""

    looks: Any
    kind: str = "scored"
    name: ClassVar[str] = "looking"
    needs: ClassVar[frozenset[str]] = frozenset({"recent"})

    def keep(self, view, n):
        return newest(view, n)

    def window(self, room):
        return self.looks(room)


@pytest.mark.parametrize(
    ("looks", "kind", "says"),
    [
        (lambda room: 0, "scored", "1 or more"),
        (lambda room: -1, "scored", "1 or more"),
        (lambda room: room / 2, "scored", "whole number"),
        (lambda room: None, "scored", "whole number"),
        (lambda room: room - 8, "prompt", "1 or more"),
        (lambda room: room + 1, "prompt", "in room for 8"),
    ],
    ids=["none", "negative", "a fraction", "None", "none in this room", "more than the room"],
)
def test_a_policy_that_looks_back_wrongly(looks, kind, says):
    """Refused when the cache is made, with the room.

    Kills: a window of 0 that looks at everything, since [-0:] does; an error in the midst of a forward.
    """
    model = families.build()
    refused(PolicyError, lambda: sinkpin.BoundedCache(model, 12, Looking(looks, kind)), "looking", says)


def test_layers_that_are_not_there():
    """Kills: an IndexError from a list of ours."""
    with sinkpin.BoundedCache(families.build(), budget=12) as cache:
        for ask in (cache.origins, cache.kept):
            refused(InputError, lambda ask=ask: ask(9), "layer 9", "2 layers")
            refused(InputError, lambda ask=ask: ask("0"), "layer '0'")
            assert ask(-1) is not None


def with_a_mask_of_its_own():
    """Qwen 2 MoE: its decoder narrows the mask of sliding layers and tells attention nothing."""
    config = families._grouped(
        Qwen2MoeConfig,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    return families.from_config(config(**families.fields_of()))


def with_growing_queries():
    """Ministral 3: queries are multiplied by a number that grows with their position."""
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
    config = families._grouped(
        Ministral3Config, sliding_window=None, rope_parameters={**rope, "llama_4_scaling_beta": 0.1}
    )
    return families.from_config(config(**families.fields_of()))


def with_queries_of_zero():
    model = families.build()
    with torch.no_grad():
        model.base_model.layers[1].self_attn.q_proj.weight.zero_()
    return model


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (with_a_mask_of_its_own, ("mask narrows", "own cache")),
        (with_growing_queries, ("layer 0", "grow or shrink")),
        (with_queries_of_zero, ("layer 1", "zero", "weights")),
    ],
    ids=["a mask of its own", "growing queries", "queries of zero"],
)
def test_models_that_only_a_forward_gives_away(build, named):
    """Nothing in the configuration's type tells; the probing forward does. Refused, and left as they were.

    Kills: a visible set, or a scale, that is the model's below the budget and nobody's above.
    """
    model = build()
    before = fingerprint(model)
    for policy in POLICIES.values():
        refused(ModelError, lambda p=policy: p.cache(model), *named)
    assert_same_print(before, fingerprint(model))


@pytest.mark.parametrize("family", families.REFUSED)
def test_models_that_cannot_be_bounded(family, record_property):
    """Refused at construction under every policy, with the reason, and left as they were.

    Kills: a family that runs, and is silently wrong.
    """
    config, word = families.REFUSED[family]
    model = families.from_config(config(**families.fields_of()))
    before = fingerprint(model)
    for policy in POLICIES.values():
        message = refused(ModelError, lambda p=policy: p.cache(model), word)
    record_property("refused", (family, message))
    assert_same_print(before, fingerprint(model))


def test_keys_taken_from_another_layer():
    """Gemma 3n's last layers attend to the keys of earlier ones: said at construction, not in the first forward.

    Kills: a layer that is never evicted from because it never stores.
    """
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Gemma3nTextConfig(
        **sizes,
        vocab_size=97,
        vocab_size_per_layer_input=97,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        head_dim=8,
        num_hidden_layers=4,
        num_kv_shared_layers=2,
        layer_types=["full_attention"] * 4,
        activation_sparsity_pattern=[0.0] * 4,
    )
    model = families.from_config(config)
    refused(ModelError, lambda: sinkpin.BoundedCache(model, budget=8), "layer 2", "from elsewhere")


@pytest.mark.parametrize("prompt", [70, 60], ids=["a long prompt", "while it grows"])
def test_a_model_that_drops_the_cache_in_generate(prompt):
    """Phi-3 past its original length: refused before it does, in words; forwards of one's own go on, bounded, and once
    the cache has seen more than that, `generate` does too.

    Kills: a generation that goes on with an unbounded cache of the model's own.
    """
    model = families.build("phi3", original_max_position_embeddings=64)
    ids = families.tokens(80)
    before = fingerprint(model)
    with POLICIES["streaming"].cache(model) as cache:
        refused(InputError, lambda: generate(model, cache, ids[:, :prompt], 10), "64", "chunks")
        assert cache.kept() in (0, BUDGET)
        cache.reset()
        feed_in(model, cache, ids[:, :70], 10)
        out = generate(model, cache, ids, 10)
        assert cache.seen == 89
        assert cache.kept() == BUDGET
        with POLICIES["streaming"].cache(model) as again:
            logits = feed_in(model, again, out[:, :-1], 10)
        assert torch.equal(logits[0, 79:].argmax(-1), out[0, 80:])
        assert torch.equal(generate(model, dynamic(model), ids[:, :20], 5)[:, :20], ids[:, :20])
    assert_same_print(before, fingerprint(model))


LEARNED = {
    "gpt2": lambda: GPT2Config(
        vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=40, bos_token_id=1, eos_token_id=None
    ),
    "opt": lambda: OPTConfig(
        vocab_size=97,
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=40,
        word_embed_proj_dim=32,
        bos_token_id=1,
        eos_token_id=None,
    ),
}


@pytest.mark.parametrize("name", LEARNED)
def test_learned_positions_end(name):
    """Refused at construction, or only `original`, right below the budget, and an end that names the limit.

    Kills: keys moved to ranks that their embeddings do not know; an index error from the embedding table.
    """
    model = families.from_config(LEARNED[name]())
    ids = families.tokens(60)
    with pytest.raises(SinkpinError):
        POLICIES["window"].cache(model, frame="slots")
    try:
        cache = POLICIES["window"].cache(model, sinks=2)
    except ModelError:
        return
    with cache:
        assert cache.frame == "original"
        wanted = feed(model, dynamic(model), ids[:, :10])
        assert_close(feed(model, cache, ids[:, :10]), wanted, 1e-5)
        feed_in(model, cache, ids[:, 10:40], 10)
        refused(SinkpinError, lambda: feed(model, cache, ids[:, 40:50]), "40")


@every_policy(*BOUNDED)
@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_sliding_layers_are_never_silently_wrong(policy, family):
    """A model with sliding-window layers is refused, or agrees with its own cache below the budget.

    Kills: a budget on a layer that has its own window.
    """
    more = {"sliding_window": 8}
    if family == "qwen2":
        more |= {"use_sliding_window": True, "max_window_layers": 1}
    model = families.build(family, **more)
    ids = families.tokens(30)
    wanted = feed_in(model, dynamic(model), ids, 5)
    try:
        cache = policy.cache(model, budget=40)
    except ModelError:
        return
    with cache:
        assert_close(feed_in(model, cache, ids, 5), wanted, 1e-5)


def test_training_mode_and_gradients():
    """In training mode with dropout a cache is refused or deterministic; gradients do not pile up in the cache.

    Kills: stored keys that hold the graph of every forward so far.
    """
    model = families.build()
    with POLICIES["streaming"].cache(model) as cache:
        for start in range(0, 40, 10):
            model(families.tokens(40)[:, start : start + 10], **{CACHE: cache})
        assert not any(t.requires_grad for t in tensors(cache))


@every_cell(daily=False)
def test_uninitialised_memory_is_never_read(policy, family):
    """Every fresh allocation is filled with NaN: nothing of it reaches a logit.

    Kills: attention over slots not yet written, weighted by zero (0 x NaN is NaN).
    """
    model = families.build(family)
    ids, mask = families.pad_left([families.tokens(20)[0], families.tokens(7, seed=1)[0]])
    more = families.tokens(15, rows=2, seed=2)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert torch.empty(4).isnan().all(), "the poison works"
        with policy.cache(model) as cache:
            got = [feed(model, cache, ids, mask)[mask.bool()]]
            for t in range(15):
                mask = torch.cat([mask, torch.ones(2, 1).long()], 1)
                got.append(feed(model, cache, more[:, t : t + 1], mask).flatten(0, 1))
            cache.reorder_cache(torch.tensor([1, 0]))
            mask = torch.cat([mask[[1, 0]], torch.ones(2, 1).long()], 1)
            got.append(feed(model, cache, more[:, :1], mask).flatten(0, 1))
        assert torch.isfinite(torch.cat(got)).all()
    finally:
        torch.use_deterministic_algorithms(False)


@every_policy()
def test_an_empty_forward(policy):
    """No new token at all: refused, nothing changed."""
    model = families.build()
    with policy.cache(model) as cache:
        feed(model, cache, families.tokens(5))
        with pytest.raises((SinkpinError, RuntimeError, IndexError, ValueError)):
            feed(model, cache, families.tokens(5)[:, :0])
        assert cache.seen == 5
        assert torch.isfinite(feed(model, cache, families.tokens(2))).all()


@every_policy()
def test_positional_and_decoder_calls(policy):
    """The cache is found however it arrives: by keyword at the head or the decoder, or by position.

    Kills: a door that only reads one keyword and lets the rest by, unbounded.
    """
    model = families.build()
    ids = families.tokens(30)
    with torch.no_grad():
        with policy.cache(model) as cache:
            wanted = model.base_model(ids, **{CACHE: cache}).last_hidden_state
        with policy.cache(model) as cache:
            got = model.base_model(ids, None, None, cache).last_hidden_state
            assert cache.seen == 30
            if policy.bounded:
                assert_full(policy, cache)
        assert torch.equal(got, wanted)
        with policy.cache(model.base_model) as cache:  # built for the decoder alone, which has no generate
            assert torch.equal(model.base_model(ids, **{CACHE: cache}).last_hidden_state, wanted)
        with policy.cache(model) as cache:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", FutureWarning
                )  # the old name, which newer versions still take
                got = model.base_model(ids, past_key_values=cache).last_hidden_state
            assert cache.seen == 30
            assert torch.equal(got, wanted)
