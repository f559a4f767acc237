"""C1: what is held stays within the budget, and `nbytes()` is the truth about memory.

After any forward at most `budget` entries per layer and KV head; once full, not one byte more, ever.
"""

import pytest
import torch

import families
import sinkpin
from contract.cells import (
    BOUNDED,
    BUDGET,
    POLICIES,
    assert_close,
    assert_full,
    every_cell,
    every_policy,
    feed,
    feed_in,
    heads,
    origins,
    owned,
    tensors,
)


@every_cell(*BOUNDED)
def test_never_over_budget(policy, family):
    """A prompt over the budget, then single steps for twice the budget: what is held is exact after each.

    Kills: evicting before the update instead of after (one too many), and evicting too much (one too few).
    """
    model = families.build(family)
    ids = families.tokens(41 + 2 * BUDGET)
    with policy.cache(model) as cache:
        feed(model, cache, ids[:, :41])
        for t in range(41, ids.shape[1]):
            feed(model, cache, ids[:, t : t + 1])
            assert cache.seen == t + 1
            assert_full(policy, cache)
            for layer, window in enumerate(families.windows(model)):
                held = cache.origins(layer)
                assert window is None or cache.kept(layer) == held.shape[-1] == window
                assert held.dtype == torch.int64
                assert ((held[..., 1:] > held[..., :-1]) | (held[..., :-1] < 0)).all(), "origins ascend"
                if policy.newest:
                    assert (held[..., -1] == t).all(), "the newest is kept"


@every_policy(*BOUNDED)
@pytest.mark.parametrize("steps", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_many_steps(policy, steps):
    """Case 12: prompt 50, then 500 decoded tokens, the budget exact at every step, all finite.

    Kills: a buffer that grows by one each time some condition (wrap-around, compaction) is met.
    """
    model = families.build(layers=1)
    ids = families.tokens(50 + steps)
    with policy.cache(model, budget=20) as cache:
        feed(model, cache, ids[:, :50])
        for t in range(50, 50 + steps):
            assert torch.isfinite(feed(model, cache, ids[:, t : t + 1])).all()
            assert_full(policy, cache, 20)


@every_cell(*BOUNDED, daily=False, rows=[1, 2])
def test_bytes_are_the_storages_and_stop_growing(policy, family, rows):
    """Case 10: `nbytes()` equals every storage reachable from the cache, the same after 200 and 2,000 tokens.

    Kills: counting `numel` of a view; forgetting origins or a rotated copy in the count; a kept reference to
    the chunk that was just fed.
    """
    model = families.build(family, layers=1, positions=4096)
    ids = families.tokens(500, rows=rows)
    with policy.cache(model, budget=16) as cache:
        feed_in(model, cache, ids[:, :200], 20)
        full = cache.nbytes()
        assert full == owned(cache)
        for start in range(0, 1800, 100):
            feed(model, cache, ids[:, start % 400 : start % 400 + 100])
        assert cache.seen == 2000
        assert cache.nbytes() == full == owned(cache)
        for t in range(10):
            feed(model, cache, ids[:, t : t + 1])
            assert cache.nbytes() == full == owned(cache)


@every_policy(*BOUNDED)
def test_a_long_prefill_leaves_nothing_behind(policy):
    """Case 10: right after a 4,096-token prefill the bytes are those of a cache filled in small steps.

    Kills: keeping `keys[:, :, -n:]`, a view that holds the whole prefill alive.
    """
    model = families.build(layers=1, positions=8192)
    ids = families.tokens(4096)
    with policy.cache(model, budget=16) as slow, policy.cache(model, budget=16) as fast:
        feed_in(model, slow, ids[:, :64], 1)
        feed(model, fast, ids)
        assert_full(policy, fast, 16)
        assert_full(policy, slow, 16)
        assert fast.nbytes() == owned(fast) == slow.nbytes()


@every_policy(*BOUNDED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_by_arithmetic(policy, dtype):
    """Case 10: keys and values are rows x KV heads x budget x head size x 2 x itemsize; origins are the extra, and what
    evidence the policy needs in fp32: a sum for each entry, or the moments of each query head.

    Kills: storing keys per query head, or in a wider dtype than the model's, or a second copy of everything; evidence
    of the queries kept for good.
    """
    model = families.build(layers=2, kv_heads=2, head_dim=16, dtype=dtype)
    with policy.cache(model, budget=16) as cache:
        feed_in(model, cache, families.tokens(64, rows=3), 8)
        floats = {t.untyped_storage().data_ptr(): t for t in tensors(cache) if t.is_floating_point()}
        stored = sum(t.untyped_storage().nbytes() for t in floats.values())
        evidence = 4 * 2 * 3 * 2 * 16 if "mass" in cache.policy.needs else 0
        evidence += 4 * 2 * 3 * (1 + 4 * 16 + 4 * 16 * 16) if "queries" in cache.policy.needs else 0
        assert stored == 2 * (3 * 2 * 16 * 16 * 2 * dtype.itemsize) + evidence
        extras = cache.nbytes() - stored
        assert extras <= 2 * (3 * 2 * 16 * 8) + 1024, f"{extras} bytes beside keys and values"


@every_cell(*BOUNDED)
def test_bytes_below_the_budget(policy, family):
    """One token short of full, never more than a full cache: 15 of 16 in one prefill.

    Kills: storing the model's own tensors, which may be views of a fused projection three times the size.
    """
    model = families.build(family, layers=1)
    with policy.cache(model, budget=16) as short, policy.cache(model, budget=16) as full:
        feed(model, short, families.tokens(15))
        feed(model, full, families.tokens(64))
        assert short.nbytes() == owned(short) <= full.nbytes()


@every_policy(*BOUNDED)
def test_a_budget_in_bytes_is_kept(policy):
    """`64KiB` is an upper bound on `nbytes()` of one row, and one token more would break it.

    Kills: bytes turned into tokens without the origins or with the wrong number of layers.
    """
    model = families.build(layers=3)
    ids = families.tokens(400)
    with policy.cache(model, budget="24KiB") as cache:
        feed(model, cache, ids)
        assert cache.budget_tokens < 100
        assert_full(policy, cache, cache.budget_tokens)
        assert cache.nbytes() == owned(cache) <= 24 * 1024
    with policy.cache(model, budget=cache.budget_tokens + 1) as larger:
        feed(model, larger, ids)
        assert larger.nbytes() > 24 * 1024


@every_policy(*BOUNDED)
@pytest.mark.parametrize("stays_open", [False, True], ids=["closed", "open"])
def test_bytes_after_the_model_was_converted(policy, stays_open):
    """A cache of the fp32 model, then `model.bfloat16()`: bytes of the next cache are those of a model built so, whether
    or not the first is still open.

    Kills: entry sizes that were found once and remembered with the model.
    """
    model, twin = families.build(layers=2, head_dim=16), families.build(layers=2, head_dim=16)
    first = policy.cache(model, budget="24KiB")
    feed(model, first, families.tokens(20))
    if not stays_open:
        first.close()
    model.bfloat16()
    twin.bfloat16()
    ids = families.tokens(400)
    with policy.cache(model, budget="24KiB") as cache, policy.cache(twin, budget="24KiB") as fresh:
        feed(model, cache, ids)
        feed(twin, fresh, ids)
        assert first.budget_tokens < cache.budget_tokens == fresh.budget_tokens
        assert_full(policy, cache, cache.budget_tokens)
        assert fresh.nbytes() == cache.nbytes() == owned(cache) <= 24 * 1024
        assert cache.nbytes() == cache.footprint.bytes_of(cache.budget_tokens)
    first.close()


def test_full_keeps_everything():
    """`full` has no bound, and its bytes are exact all the same."""
    model = families.build()
    with POLICIES["full"].cache(model) as cache:
        feed_in(model, cache, families.tokens(100), 9)
        assert cache.kept() == cache.seen == 100
        assert cache.budget_tokens is None
        assert origins(cache, 1) == list(range(100))
        assert cache.nbytes() == owned(cache)


@every_policy(*BOUNDED)
@pytest.mark.parametrize("new", [1, 5, 12, pytest.param(36, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fill", [0, 3, 4, 11, 12])
def test_fill_levels(policy, fill, new):
    """Case 5: fill {0, S-1, S, budget-1, budget} x new {1, R, budget, 3 budget}: logits and origins are right.

    Kills: each boundary's own off-by-one; an empty slice `[-0:]`.
    """
    model = families.build()
    ids = families.tokens(fill + new, seed=fill)
    sizes = [fill, new] if fill else [new]
    with policy.cache(model, budget=12) as cache:
        got = feed_in(model, cache, ids, sizes)
        wanted, kept = policy.naive(model, ids[0], sizes, budget=12)
        assert_close(got[0], wanted, 1e-4)
        for layer in range(2):
            assert heads(cache, layer) == (
                [kept] * len(heads(cache, layer)) if policy.kind == "position" else kept[layer]
            )


def test_public_names():
    """The names that the rest of the suite leans on are there."""
    model = families.build()
    with sinkpin.BoundedCache(model, budget=8, policy="streaming") as cache:
        assert cache.seen == cache.get_seq_length() == 0
        assert cache.kept() == 0
        assert cache.origins(0).shape[-1] == 0
        assert isinstance(cache.notes, list)
        assert cache.frame == "slots"
        assert cache.nbytes() == owned(cache)
