"""C6: pins hold. They are the row's first real tokens and the caller's spans, and no policy can outvote them."""

import pytest
import torch

import families
from contract.cells import (
    BOUNDED,
    POLICIES,
    assert_close,
    assert_full,
    every_cell,
    every_policy,
    feed,
    feed_in,
    heads,
    origins,
    own_notes,
)
from sinkpin import BoundedCache
from sinkpin.errors import BudgetError, PolicyError, SinkpinError


@every_cell(*BOUNDED, daily=False)
def test_pins_are_held_in_every_layer_and_head(policy, family):
    """Sinks and a span are there after 100 tokens, wherever the budget applies.

    Kills: pins as a large score (lost when another score is larger, or NaN).
    """
    model = families.build(family, layers=3)
    spans = [(17, 20)]
    with policy.cache(model, sinks=3, pins=spans, budget=9) as cache:
        feed_in(model, cache, families.tokens(100), 8)
        for layer in cache.bounded_layers:
            for held in heads(cache, layer):
                assert {0, 1, 2, 17, 18, 19} <= set(held)


@every_policy(*BOUNDED)
def test_padding_is_never_a_pin(policy):
    """Case 9: 13 left pads; the sinks are the row's first four real tokens, and the row equals itself unpadded.

    Kills: pinning slots 0...3 of the padded batch.
    """
    model = families.build()
    long, short = families.tokens(33)[0], families.tokens(20, seed=1)[0]
    ids, mask = families.pad_left([long, short])
    with policy.cache(model, sinks=4, budget=10) as cache:
        got = feed(model, cache, ids, mask)
        assert all({0, 1, 2, 3} <= set(held) for held in heads(cache, row=1))
        padded = [heads(cache, layer, 1) for layer in range(2)]
    with policy.cache(model, sinks=4, budget=10) as alone:
        wanted = feed(model, alone, short[None])
        assert [heads(alone, layer) for layer in range(2)] == padded
    assert_close(got[1:, 13:], wanted, 1e-4)


@every_policy(*BOUNDED)
@pytest.mark.parametrize(
    ("sinks", "pins", "budget", "count"),
    [(8, None, 8, 8), (8, None, 5, 8), (4, [(4, 12)], 12, 12), (4, [[(20, 26)], [(9, 10)]], 10, 10)],
    ids=["equal", "fewer", "span", "one row"],
)
def test_pins_that_fill_the_budget_raise(policy, sinks, pins, budget, count):
    """Pins >= an explicit budget raises, naming both numbers, at construction or at the first forward.

    Kills: a room of zero that slices `[-0:]`, that is, everything.
    """
    model = families.build()
    with (
        pytest.raises(BudgetError) as caught,
        policy.cache(model, sinks=sinks, pins=pins, budget=budget) as cache,
    ):
        feed(model, cache, families.tokens(5, rows=2))
    assert str(count) in str(caught.value)
    assert str(budget) in str(caught.value)
    assert "\n" not in str(caught.value)


@every_policy(*BOUNDED)
@pytest.mark.parametrize("spans", [(), ((6, 8), (20, 21))], ids=["sinks", "spans"])
def test_budget_of_pins_plus_one(policy, spans):
    """It makes progress: the one free slot is the newest token's, unless a policy says that this one may go, and logits
    are the naive loop's.

    Kills: an eviction loop that never ends or drops the query's own key.
    """
    model = families.build()
    ids = families.tokens(40)
    pins = policy.sinks + sum(b - a for a, b in spans)
    sizes = [10, 1, 1, 28]
    with policy.cache(model, budget=pins + 1, pins=list(spans)) as cache:
        got = feed_in(model, cache, ids, sizes)
        assert cache.kept() == pins + 1
        if policy.newest:
            assert origins(cache)[-1] == 39
        wanted, _ = policy.naive(model, ids[0], sizes, budget=pins + 1, spans=spans)
        assert_close(got[0], wanted, 1e-4)


@every_policy(*BOUNDED)
def test_overlapping_pins_count_once(policy):
    """Sinks 0...3, a span that overlaps them and one given twice are eight pins, so that a budget of nine is enough.

    Kills: pins summed instead of united.
    """
    model = families.build()
    with policy.cache(model, sinks=4, pins=[(2, 6), (2, 6), (10, 12)], budget=9) as cache:
        feed_in(model, cache, families.tokens(30), 5)
        held = set(origins(cache))
        assert {*range(6), 10, 11} < held
        assert cache.kept() == len(held) == 9
        if policy.newest:
            assert 29 in held


@every_policy(*BOUNDED)
def test_pins_beyond_the_text_wait(policy):
    """A span that has not been reached reserves nothing: until then the room belongs to the policy.

    Kills: a window shortened by pins that are not there.
    """
    model = families.build()
    ids = families.tokens(60)
    with policy.cache(model, sinks=2, pins=[(50, 54)], budget=10) as cache:
        feed_in(model, cache, ids[:, :40], 10)
        assert_full(policy, cache, 10)
        feed_in(model, cache, ids[:, 40:], 10)
        assert_full(policy, cache, 10)
        for layer in range(2):
            for held in heads(cache, layer):
                assert {0, 1, 50, 51, 52, 53} < set(held)
                if policy.newest:
                    assert 59 in held


@pytest.mark.parametrize("budget", [0, -1, "0%", "-5%", "nonsense", "", "0MiB", 1.5, True, "1B", "101%"])
def test_budgets_that_mean_nothing(budget):
    """Each is one clear line, at construction.

    Kills: `int("...")` errors that reach the user, and a zero that means 'unbounded' somewhere.
    """
    with pytest.raises(BudgetError) as caught:
        POLICIES["window"].cache(families.build(), budget=budget)
    assert "\n" not in str(caught.value)


def test_who_takes_a_budget():
    """`full` takes none, all others need one; `streaming` needs a sink; a negative count is refused."""
    model = families.build()
    with pytest.raises(BudgetError):
        BoundedCache(model, policy="full", budget=16)
    with pytest.raises(BudgetError):
        BoundedCache(model, policy="window")
    with pytest.raises(PolicyError):
        POLICIES["streaming"].cache(model, sinks=0)
    with pytest.raises(SinkpinError):
        POLICIES["window"].cache(model, sinks=-1)
    for span in [(5, 5), (6, 4), (-2, 3)]:
        with pytest.raises(SinkpinError):
            POLICIES["window"].cache(model, pins=[span])


@every_policy(*BOUNDED)
@pytest.mark.parametrize("length", [1, 2, 15, 41, 100])
def test_a_share_of_the_prompt(policy, length):
    """Case 7: 25 % of the first forward rounds down but never below pins + 1, and says when it gave way.

    Kills: a share of 1 token rounding to 0; a note that is missing, or there without need.
    """
    model = families.build()
    ids = families.tokens(length + 20)
    with policy.cache(model, budget="25%", sinks=4) as cache:
        assert cache.budget_tokens is None
        got = feed(model, cache, ids[:, :length])
        budget = max(length // 4, 5)
        assert cache.budget_tokens == budget
        if length < budget:
            assert [heads(cache, layer) for layer in range(2)] == 2 * [2 * [list(range(length))]]
        else:
            assert_full(policy, cache, budget)
        assert bool(own_notes(policy, cache)) == (length // 4 < 5), cache.notes
        rest = feed_in(model, cache, ids[:, length:], 1)
        assert_full(policy, cache, budget)
        wanted, _ = policy.naive(model, ids[0], [length, *[1] * 20], budget=budget, sinks=4)
        assert_close(torch.cat([got, rest], 1)[0], wanted, 1e-4)


@every_policy(*BOUNDED)
def test_a_share_of_prompt_length(policy):
    """With `prompt_length` the share is known before the first forward, and does not depend on its size."""
    model = families.build()
    with policy.cache(model, budget="25%", prompt_length=80) as cache:
        assert cache.budget_tokens == 20
        feed_in(model, cache, families.tokens(90), 9)
        assert_full(policy, cache, 20)


@every_policy(*BOUNDED)
def test_a_share_is_of_the_longest_real_row(policy):
    """In a left-padded batch a share is taken of the longest row's real tokens."""
    model = families.build()
    ids, mask = families.pad_left([families.tokens(20)[0], families.tokens(7, seed=1)[0]])
    ids, mask = torch.cat([torch.zeros(2, 4).long(), ids], 1), torch.cat([torch.zeros(2, 4).long(), mask], 1)
    with policy.cache(model, budget="50%") as cache:
        feed(model, cache, ids, mask)
        assert cache.budget_tokens == 10


@every_policy(*BOUNDED)
def test_audit_knows_the_pins(policy):
    """`audit()` reports what is held, head by head, and that no pin is lost; and changes nothing."""
    model = families.build()
    with policy.cache(model, pins=[(6, 8), (90, 95)]) as cache:
        assert all((line.pins_held, line.kept, line.evicted) == (1.0, 0, 0) for line in cache.audit())
        feed_in(model, cache, families.tokens(40), 10)
        before = [heads(cache, layer) for layer in range(2)]
        lines = cache.audit()
        assert [(line.layer, line.head) for line in lines] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        for line in lines:
            assert line.pins_held == 1.0
            assert line.kept == len(before[line.layer][line.head]) == 40 - line.evicted
            assert line.frame == cache.frame
        assert [heads(cache, layer) for layer in range(2)] == before
        assert_full(policy, cache)
