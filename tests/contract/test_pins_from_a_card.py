"""Pins from a sink card: rules become spans at the first forward, and from then on the cache is the one with those spans.

The oracle is that other cache: same logits bit for bit, same entries, bytes and promises. What the spans have to be is
written out by hand.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import families
from contract.cells import BOUNDED, CACHE, assert_full, every_policy, feed, feed_in, generate, heads
from sinkpin import BoundedCache
from sinkpin.card import Card
from sinkpin.card.rules import Rule, first, indices, opening
from sinkpin.errors import BudgetError, InputError, PolicyError
from sinkpin.policies.base import Policy, newest

IDS = families.distinct(60)
OPENING = IDS[0, :3].tolist()
FAR = [11, 12, 17]
PLACES = indices(FAR, [int(IDS[0, i]) for i in FAR])


def card(*rules: Rule) -> Card:
    return Card(model="toy", model_hash="ab" * 32, settings={}, rules=rules)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sinks.json"
    card(first(2), opening(OPENING), PLACES).write(path)
    return path


def same(one: BoundedCache, other: BoundedCache, *, notes: bool = True) -> None:
    """Everything a user can ask of two caches, but for what a card has to say, and how both go on."""
    assert (one.seen, one.budget_tokens, one.nbytes(), one.peak_nbytes) == (
        other.seen,
        other.budget_tokens,
        other.nbytes(),
        other.peak_nbytes,
    )
    assert one.footprint == other.footprint
    if one.policy.bounded:
        assert [ledger.rule for ledger in one._ledgers()] == [ledger.rule for ledger in other._ledgers()]
    assert one.audit() == other.audit()
    if notes:
        assert [note for note in one.notes if "card" not in note] == other.notes
    assert one._pins == one._stream.pins and one._pins.rows[0] == other._pins.rows[0]
    for layer in range(len(one.layers)):
        assert torch.equal(one.origins(layer), other.origins(layer))


@every_policy(budget=[14, "40%", "6KiB"])
def test_it_is_the_cache_with_the_spans(policy, budget, file):
    """A prompt, then token by token, then a chunk: as if the spans had been named.

    Kills: rules resolved against padding or the wrong tokens; a ledger, an allotment or a footprint that still counts
    what the card could have pinned.
    """
    model = families.build()
    for rules, spans in (
        (file, [(0, 3), (11, 13), (17, 18)]),
        (card(first(2), opening([3, 2, 1]), PLACES), [(0, 2), (11, 13), (17, 18)]),
        (card(opening([3, 2, 1]), PLACES), [(11, 13), (17, 18)]),
        (card(opening(OPENING), indices([0], [0])), [(0, 3)]),
        (card(), []),
    ):
        with (
            policy.cache(model, budget, sinks=1, pins=rules) as carded,
            policy.cache(model, budget, sinks=1, pins=spans) as named,
        ):
            sizes = [20, 1, 1, 1, 7, 1, 1, 28]
            got, wanted = (feed_in(model, cache, IDS, sizes) for cache in (carded, named))
            assert torch.equal(got, wanted)
            same(carded, named)


@every_policy(*BOUNDED)
def test_pins_are_held_through_decoding(policy, file):
    """Kills: pins of the prompt's choice only, lost in the steps that follow it."""
    model = families.build()
    with policy.cache(model, 12, pins=str(file)) as cache:
        feed_in(model, cache, IDS, [20, *[1] * 40])
        for layer in range(2):
            for held in heads(cache, layer):
                assert {0, 1, 2, 11, 12, 17} <= set(held)
        assert_full(policy, cache, 12)
        assert all(line.pins_held == 1.0 for line in cache.audit())


@every_policy(*BOUNDED)
def test_rows_have_their_own_and_padding_is_none(policy):
    """Row 0 opens as the card says, row 1 does not, row 2 does behind 9 pads: real tokens are counted.

    Kills: ids compared column by column; one row's rules taken for all.
    """
    model = families.build()
    rows = [IDS[0, :30], families.distinct(30, seed=5)[0], IDS[0, :21]]
    ids, mask = families.pad_left(rows)
    spans = [[(0, 3), (17, 18)], [], [(0, 3), (17, 18)]]
    rules = card(opening(OPENING), indices([17], [int(IDS[0, 17])]))
    more = families.distinct(10, rows=3, seed=7)
    with policy.cache(model, pins=rules) as carded, policy.cache(model, pins=spans) as named:
        assert torch.equal(feed(model, carded, ids, mask), feed(model, named, ids, mask))
        for token in more.split(1, 1):
            assert torch.equal(feed(model, carded, token), feed(model, named, token))
        same(carded, named)
        for row, pins in ((0, {0, 1, 2, 17}), (2, {0, 1, 2, 17})):
            assert all(pins <= set(held) for held in heads(carded, 1, row))
        told = [note for note in carded.notes if "card" in note]
        assert len(told) == 2
        assert all("row 1 " in note for note in told)
        assert any("rule opening" in note for note in told)


def test_a_rule_that_does_not_apply_is_noted():
    model = families.build()
    with BoundedCache(model, 12, pins=card(first(1), opening([5, 5]))) as cache:
        assert not cache.notes
        feed(model, cache, IDS)
        [note] = cache.notes
        assert "card" in note and "rule opening" in note and f"token 0 is {IDS[0, 0]}, not 5" in note
        assert "row" not in note


@every_policy(*BOUNDED)
@pytest.mark.parametrize("budget", [8, 9])
def test_what_a_card_may_pin_has_to_fit_at_construction(policy, budget):
    """Two sinks, an opening of three and six places: nine pins at most, whatever the prompt. Both numbers are named.

    Kills: a budget that is found too small only once a prompt has come that the rules apply to.
    """
    rules = card(opening(OPENING), indices([*range(10, 16)], [5] * 6))
    with pytest.raises(BudgetError) as caught:
        policy.cache(families.build(), budget, sinks=2, pins=rules)
    assert "the 9 pinned" in str(caught.value) and f"budget {budget} tokens" in str(caught.value)
    policy.cache(families.build(), 10, sinks=2, pins=rules).close()


def test_sinks_and_card_unite():
    """Kills: `sinks` replaced by the card, or counted on top of it."""
    model = families.build()
    for sinks, wanted in ((0, 3), (2, 3), (5, 5)):
        with BoundedCache(model, 12, sinks=sinks, pins=card(opening(OPENING))) as cache:
            feed(model, cache, IDS)
            assert set(range(wanted)) <= set(heads(cache)[0])
            assert cache._pins.most == wanted
    with pytest.raises(PolicyError, match="at least 1"):
        BoundedCache(model, 12, policy="streaming", sinks=0, pins=card(first(4)))


# the first forward


@pytest.mark.parametrize("rules", [(opening(OPENING),), (first(1), PLACES)], ids=["opening", "indices"])
def test_a_first_forward_that_cannot_decide_is_refused(rules):
    """One line with both numbers, and nothing has changed; with more of the prompt it works."""
    model = families.build()
    rules = card(*rules)
    with BoundedCache(model, 12, sinks=0, pins=rules) as cache:
        short = rules.reads - 1
        with pytest.raises(InputError) as caught:
            feed(model, cache, IDS[:, :short])
        said = str(caught.value)
        assert f"brings {short} tokens" in said and f"needs {rules.reads}" in said and "one forward" in said
        assert "\n" not in said
        assert (cache.seen, cache.notes) == (0, [])
        feed_in(model, cache, IDS, [rules.reads, 10, 60 - 10 - rules.reads])
        assert set(range(*rules.spans[-1])) <= set(heads(cache)[0])


def test_a_short_first_forward_that_differs_already_is_enough():
    model = families.build()
    with BoundedCache(model, 12, pins=card(first(2), opening([5, 6, 7, 8]))) as cache:
        feed_in(model, cache, IDS, [1, 59])
        assert cache._pins.most == 4
    with BoundedCache(model, 12, sinks=0, pins=card(first(3))) as cache:  # asks for no ids
        feed_in(model, cache, IDS, [1, 59])
        assert {0, 1, 2} <= set(heads(cache)[0])


def test_a_row_of_nothing_but_padding_is_named():
    model = families.build()
    ids, mask = families.pad_left([IDS[0, :20], IDS[0, :2]])
    with (
        BoundedCache(model, 12, pins=card(opening(OPENING))) as cache,
        pytest.raises(InputError, match="row 1 brings 2 tokens"),
    ):
        feed(model, cache, ids, mask)


def test_embeddings_have_no_ids():
    """A card that asks for ids is refused, one of first tokens is not."""
    model = families.build()
    embeds = model.get_input_embeddings()(IDS).detach()
    with torch.no_grad(), BoundedCache(model, 12, pins=card(first(2), opening(OPENING))) as cache:
        with pytest.raises(InputError, match=r"inputs_embeds.*opening.*input_ids"):
            model(inputs_embeds=embeds, use_cache=True, **{CACHE: cache})
        assert cache.seen == 0
    with torch.no_grad(), BoundedCache(model, 12, sinks=0, pins=card(first(3))) as cache:
        model(inputs_embeds=embeds, use_cache=True, **{CACHE: cache})
        assert {0, 1, 2} <= set(heads(cache)[0])


def test_a_forward_refused_for_another_reason_resolves_nothing():
    """Kills: pins of a forward that never was, on the next one."""
    model = families.build()
    with BoundedCache(model, "4KiB", pins=card(opening(OPENING))) as cache:
        before = cache._pins, cache.budget_tokens, cache.footprint
        wrong = torch.arange(60)[None] + 5
        with pytest.raises(InputError, match="position_ids"):
            feed(model, cache, IDS, position_ids=wrong)
        assert (cache._pins, cache.budget_tokens, cache.footprint) == before
        assert cache.notes == []
        feed(model, cache, families.distinct(60, seed=3))
        assert cache._pins.most == 4


class Counted(Policy):
    """Allots what does not add up as soon as fewer than three pins are left."""

    name = "counted"

    def layer_budget(self, layer, layers, budget, pins):
        return budget if pins >= 3 else budget + 1

    def keep(self, view, n):
        return newest(view, n)


def test_pins_that_a_policy_cannot_allot_for_change_nothing():
    """Kills: the pins of a prompt that was refused, on a cache that may be saved or asked."""
    model = families.build()
    with BoundedCache(model, 12, policy=Counted(), sinks=0, pins=card(opening(OPENING))) as cache:
        before = cache._pins, cache._stream.pins, cache.footprint, cache.budget_tokens
        with pytest.raises(PolicyError, match="allots"):
            feed(model, cache, families.distinct(60, seed=3))
        assert (cache._pins, cache._stream.pins, cache.footprint, cache.budget_tokens) == before
        assert (cache.seen, cache.notes) == (0, [])
        feed(model, cache, IDS)
        assert {0, 1, 2} <= set(heads(cache)[0])


# what moves with it


@every_policy(*BOUNDED, budget=[14, "40%", "6KiB"])
def test_reset_forgets_the_resolution(policy, budget, file):
    """Another text, another batch size: the rules are asked again, and what they pinned in the first is gone."""
    model = families.build()
    other = families.distinct(40, rows=2, seed=9)
    with policy.cache(model, budget, pins=file) as cache:
        new = cache.budget_tokens, cache.footprint, list(cache.notes)
        feed(model, cache, IDS)
        cache.reset()
        assert (cache.budget_tokens, cache.footprint, cache.notes) == new
        feed(model, cache, other)
        with policy.cache(model, budget, pins=[[(0, 2)], [(0, 2)]]) as named:
            feed(model, named, other)
            same(cache, named)
        assert any("card" in note for note in cache.notes)
        cache.reset()
        assert (cache.budget_tokens, cache.footprint, cache.notes) == new
        feed(model, cache, IDS)
        assert all({0, 1, 2, 11, 12, 17} <= set(held) for held in heads(cache, 1))


def test_all_taken_back_is_a_first_forward_again():
    model = families.build()
    with BoundedCache(model, 30, sinks=0, pins=card(opening(OPENING))) as cache:
        feed(model, cache, IDS[:, :20])
        cache.crop(-20)
        feed(model, cache, families.distinct(60, seed=3))
        assert cache._pins.most == 0
        assert len(cache.notes) == 1


@pytest.mark.parametrize("fed", [0, 30])
@pytest.mark.parametrize("applies", [True, False])
@pytest.mark.parametrize("policy", ["window", "h2o", "snapkv", "pyramidkv"])
@pytest.mark.parametrize("budget", [14, "40%", "4KiB"])
def test_saved_and_loaded(policy, budget, applies, fed, file, tmp_path):
    """Resolved or not yet, it goes on bit for bit, and a reset of the loaded cache asks the rules again.

    Kills: a loaded cache that knows the spans and has forgotten the card, or pins what the card could have pinned.
    """
    model = families.build()
    texts = [IDS, families.distinct(60, seed=3)]
    text, other = texts if applies else texts[::-1]
    cache = BoundedCache(model, budget, policy=policy, pins=file)
    if fed:
        feed(model, cache, text[:, :fed])
    cache.save(tmp_path / "cache")
    loaded = BoundedCache.load(tmp_path / "cache", model)
    assert loaded.notes == cache.notes
    assert bool(fed and not applies) == any("card" in note for note in cache.notes)
    same(loaded, cache, notes=False)
    for piece in text[:, fed:].split([30 - fed, 1, 1, 28] if not fed else [1, 1, 28], 1):
        assert torch.equal(feed(model, cache, piece), feed(model, loaded, piece))
    same(loaded, cache, notes=False)
    for one in (cache, loaded):
        one.reset()
        feed(model, one, other)
    told = [[note for note in one.notes if "card" in note] for one in (cache, loaded)]
    assert told[0] == told[1] and bool(told[0]) == applies
    same(loaded, cache, notes=False)
    cache.close()
    loaded.close()


@pytest.mark.parametrize("fed", [0, 30])
def test_a_deep_copy_is_independent(fed, file):
    model = families.build()
    with BoundedCache(model, 14, policy="h2o", pins=file) as cache:
        if fed:
            feed(model, cache, IDS[:, :fed])
        with copy.deepcopy(cache) as twin:
            if not fed:  # another text in the copy must not decide for the original
                feed(model, twin, families.distinct(40, seed=3))
                twin.reset()
            pieces = IDS[:, fed:].split(10, 1) if fed else IDS.split([30, 30], 1)
            for piece in pieces:
                assert torch.equal(feed(model, cache, piece), feed(model, twin, piece))
            same(cache, twin)
            assert {0, 1, 2, 11, 12, 17} <= set(heads(cache)[0])


def test_rows_that_are_chosen_and_repeated_take_their_pins_along():
    model = families.build()
    ids = torch.cat([IDS, families.distinct(60, seed=5)])
    with BoundedCache(model, 12, policy="h2o", sinks=0, pins=card(opening(OPENING))) as cache:
        feed(model, cache, ids[:, :30])
        cache.reorder_cache(torch.tensor([1, 0]))
        cache.batch_repeat_interleave(2)
        feed_in(model, cache, ids[[1, 1, 0, 0], 30:], 1)
        for row in (2, 3):
            assert all({0, 1, 2} <= set(held) for held in heads(cache, 1, row))


@pytest.mark.parametrize("policy", ["window", "h2o", "snapkv"])
def test_generate(policy, file):
    """The prompt is the first forward; beams and a second turn go on with the same pins."""
    model = families.build()
    for more in ({}, {"num_beams": 3}):
        with (
            BoundedCache(model, 14, policy=policy, pins=file) as carded,
            BoundedCache(model, 14, policy=policy, pins=[(0, 3), (11, 13), (17, 18)]) as named,
        ):
            told = [generate(model, cache, IDS[:, :25], 12, **more) for cache in (carded, named)]
            assert torch.equal(*told)
            if not more:
                longer = torch.cat([told[0], IDS[:, 25:35]], 1)
                assert torch.equal(*(generate(model, cache, longer, 6) for cache in (carded, named)))
                same(carded, named)
            assert {0, 1, 2, 11, 12, 17} <= set(heads(carded)[0])


def test_sliding_layers_have_no_pins(file):
    model = families.build("gemma3")
    with BoundedCache(model, 12, pins=file) as cache:
        feed_in(model, cache, IDS, 20)
        assert {0, 1, 2, 11, 12, 17} <= set(heads(cache, 0)[0])
        assert 0 not in heads(cache, 1)[0]


# what is no card


@pytest.mark.parametrize(
    ("pins", "says"),
    [
        ("missing.json", "missing.json does not exist"),
        (Path("nowhere/x"), "does not exist"),
        (4, "list of spans"),
    ],
)
def test_pins_that_are_neither_spans_nor_a_card(pins, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=says) as caught:
        BoundedCache(families.build(), 12, pins=pins)
    assert "\n" not in str(caught.value)


def test_a_file_that_changes_later_changes_nothing(file):
    """The card is read once, at construction."""
    model = families.build()
    with BoundedCache(model, 12, sinks=0, pins=file) as cache:
        replace(Card.read(file), rules=(first(1),)).write(file)
        feed(model, cache, IDS)
        assert {0, 1, 2, 11, 12, 17} <= set(heads(cache)[0])
