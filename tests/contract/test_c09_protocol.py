"""C9: the whole Cache protocol. Everything owned moves together, and nothing ever returns short or stale."""

import pytest
import torch

import families
from contract.cells import (
    BOUNDED,
    BUDGET,
    POLICIES,
    assert_close,
    assert_full,
    assert_within,
    dynamic,
    every_cell,
    every_policy,
    feed,
    feed_in,
    generate,
    heads,
    origins,
    owned,
)
from sinkpin.errors import CacheError, SinkpinError


def _rows_alone(policy, model, rows, sizes):
    """Each row of [rows, T] run by itself: logits and origins."""
    out = []
    for row in rows:
        with policy.cache(model) as cache:
            out.append((feed_in(model, cache, row[None], sizes)[0], heads(cache, 1)))
    return out


@every_cell(
    move={
        "reorder": ("reorder_cache", torch.tensor([2, 0, 0]), [2, 0, 0]),
        "select": ("batch_select_indices", torch.tensor([2, 1]), [2, 1]),
        "repeat": ("batch_repeat_interleave", 2, [0, 0, 1, 1, 2, 2]),
    }
)
def test_rows_move_whole(policy, family, move):
    """After a row operation each row goes on as the row it came from, past the budget and on.

    Kills: keys moved without origins, pins, or the row's count of real tokens.
    """
    method, argument, mapping = move
    model = families.build(family)
    start = families.distinct(25, rows=3)
    whole = torch.cat([start[mapping], torch.zeros(len(mapping), 10).long()], 1)
    for row, other in zip(whole, families.distinct(90, rows=len(mapping), seed=5), strict=True):
        row[25:] = other[~torch.isin(other, row)][:10]
    more = whole[:, 25:]
    with policy.cache(model) as cache:
        feed(model, cache, start)
        getattr(cache, method)(argument)
        got = feed_in(model, cache, more, 1)
        assert cache.nbytes() == owned(cache)
        for row, (wanted, kept) in enumerate(_rows_alone(policy, model, whole, [25] + [1] * 10)):
            assert_close(got[row], wanted[25:], 1e-4, f"row {row}")
            assert heads(cache, 1, row) == kept


@every_policy(*BOUNDED)
def test_padded_rows_with_own_pins_move_whole(policy):
    """Left-padded rows, each with its own pins, swapped: padding and pins go with the row.

    Kills: a mask or pins list that stays behind.
    """
    model = families.build()
    long, short = families.tokens(20)[0], families.tokens(7, seed=1)[0]
    ids, mask = families.pad_left([long, short])
    more = families.tokens(20, rows=2, seed=3)
    lists = [[(10, 12)], [(5, 7)]]
    with policy.cache(model, pins=lists) as cache:
        feed(model, cache, ids, mask)
        cache.reorder_cache(torch.tensor([1, 0]))
        mask = mask[[1, 0]]
        for t in range(20):
            mask = torch.cat([mask, torch.ones(2, 1).long()], 1)
            got = feed(model, cache, more[:, t : t + 1], mask)
        moved = [heads(cache, row=row) for row in range(2)]
    for row, (first, pins) in enumerate([(short, lists[1]), (long, lists[0])]):
        with policy.cache(model, pins=pins) as alone:
            feed(model, alone, first[None])
            wanted = feed_in(model, alone, more[row : row + 1], 1)[:, -1:]
            assert_close(got[row : row + 1], wanted, 1e-4, f"row {row}")
            assert moved[row] == heads(alone)


@every_cell(*BOUNDED)
def test_left_padded_rows_equal_themselves(policy, family):
    """Case 8: rows of 20 and 7, budget 12, 20 new tokens through `generate`: each row equals itself alone.

    Kills: a shared rank; an empty slot that is attended to, or counted as kept.
    """
    model = families.build(family)
    rows = [families.distinct(20)[0], families.distinct(7, seed=1)[0]]
    ids, mask = families.pad_left(rows)
    once = {"no_repeat_ngram_size": 1, "suppress_tokens": [families.PAD]}  # see `families.distinct`
    with policy.cache(model) as cache:
        got = generate(model, cache, ids, 20, attention_mask=mask, **once)
        together = [[heads(cache, layer, row) for layer in range(2)] for row in range(2)]
    for row, alone_ids in enumerate(rows):
        with policy.cache(model) as alone:
            wanted = generate(model, alone, alone_ids[None], 20, **once)
            assert torch.equal(got[row, 20:], wanted[0, len(alone_ids) :]), f"row {row}"
            assert together[row] == [heads(alone, layer) for layer in range(2)]


@every_policy(*BOUNDED)
def test_empty_slots_are_minus_one_and_first(policy):
    """A short row beside a long one shows its empty slots as -1, before its entries."""
    model = families.build()
    ids, mask = families.pad_left([families.tokens(20)[0], families.tokens(7, seed=1)[0]])
    with policy.cache(model) as cache:
        feed(model, cache, ids, mask)
        for layer in range(2):
            held, width = cache.origins(layer), cache.kept(layer)
            assert policy.allots != "evenly" or width == BUDGET
            assert held[1].tolist() == 2 * [[-1] * (width - 7) + list(range(7))]
            for head in held[0].tolist():
                kept = [origin for origin in head if origin >= 0]
                assert head == [-1] * (width - len(kept)) + kept
        assert cache.nbytes() == owned(cache)


@every_policy()
def test_crop_before_any_eviction(policy):
    """Below the budget `crop(-3)` takes back three tokens, as DynamicCache does; 0 changes nothing. Where attention is
    counted as evidence, that was counted already: refused in words, and done while recording.

    Kills: keys cropped but not origins; a seen that stays; evidence of tokens that were taken back.
    """
    model = families.build()
    ids, other = families.tokens(20), families.tokens(10, seed=4)
    with policy.cache(model, budget=policy.room_for(40, model)) as cache:
        if policy.counts:
            feed(model, cache, ids)
            assert not cache.is_croppable
            with pytest.raises(CacheError, match=r"evidence.*activate_past_recording\(\)"):
                cache.crop(-3)
            assert cache.seen == 20
            assert origins(cache) == list(range(20))
            cache.reset()
            cache.activate_past_recording()
        feed(model, cache, ids)
        assert cache.is_croppable
        if not policy.counts:  # where evidence waits for a crop, this one would count it
            cache.crop(0)
        assert cache.seen == 20
        cache.crop(-3)
        assert cache.seen == 17
        assert cache.kept() == 17
        assert origins(cache) == list(range(17))
        got = feed(model, cache, other)
    reference = dynamic(model)
    feed(model, reference, ids[:, :17])
    assert_close(got, feed(model, reference, other), 1e-5)


@every_policy(*BOUNDED)
def test_crop_after_an_eviction_is_refused(policy):
    """Without past recording, what was evicted cannot come back: the crop raises and the cache stays as it was.

    Kills: a crop that returns a cache which is short by what was evicted.
    """
    model = families.build()
    ids = families.tokens(40)
    with policy.cache(model) as cache:
        feed(model, cache, ids[:, :30])
        held = origins(cache)
        with pytest.raises(SinkpinError):
            cache.crop(-2)
        assert cache.seen == 30
        assert origins(cache) == held
        got = feed(model, cache, ids[:, 30:])
    with policy.cache(model) as fresh:
        assert torch.equal(got, feed_in(model, fresh, ids, [30, 10])[:, 30:])


@every_policy()
@pytest.mark.parametrize("recording", [False, True], ids=["plain", "recording"])
def test_impossible_crops_are_refused(policy, recording):
    """A positive count, and more than was ever fed: refused with the number, and the cache stays as it was."""
    model = families.build()
    with policy.cache(model, budget=policy.room_for(40, model)) as cache:
        if recording:
            cache.activate_past_recording()
        feed(model, cache, families.tokens(10))
        for count, named in ((3, "crop"), (-11, "10 were fed")):
            with pytest.raises(ValueError, match=named):
                cache.crop(count)
            assert cache.seen == 10
            assert origins(cache) == list(range(10))
        if recording:
            cache.crop(-10)
            assert cache.seen == cache.kept() == 0
            got = feed(model, cache, families.tokens(6, seed=1))
            with policy.cache(model, budget=policy.room_for(40, model)) as fresh:
                assert_close(got, feed(model, fresh, families.tokens(6, seed=1)), 1e-5)


@every_cell(*BOUNDED, daily=False, rejected=[0, 1, 4, 6])
def test_rollback_while_recording(policy, family, rejected):
    """With past recording, eviction waits for the crop: held are the budget and the uncommitted, and afterwards the
    cache is the one that was never fed the rejected tokens.

    Kills: eviction before the crop (a key is missing); none at the crop (over budget for good); evidence or origins of
    rejected tokens.
    """
    model = families.build(family)
    ids, draft, more = families.tokens(30), families.tokens(6, seed=8), families.tokens(12, seed=9)
    accepted = draft[:, : 6 - rejected]
    with policy.cache(model) as cache, policy.cache(model) as clean:
        for c in (cache, clean):
            feed(model, c, ids)
        cache.activate_past_recording()
        for _ in range(2):
            feed(model, cache, draft)
            assert_full(policy, cache, waiting=6)
            cache.crop(-rejected)
            assert_full(policy, cache)
            if accepted.shape[1]:
                feed(model, clean, accepted)
            assert cache.seen == clean.seen
            for layer in range(2):
                assert torch.equal(cache.origins(layer), clean.origins(layer))
        got = feed(model, cache, more)
        cache.crop(0)
        assert_close(got, feed(model, clean, more), 1e-4)
        assert_full(policy, cache)


@every_policy(*BOUNDED)
def test_recording_from_the_start(policy):
    """Recording switched on before the first forward, with several forwards between two crops: as one rollback.

    Kills: a count of uncommitted tokens that only knows the last forward.
    """
    model = families.build()
    ids = families.tokens(30)
    with policy.cache(model) as cache:
        cache.activate_past_recording()
        feed(model, cache, ids[:, :20])
        cache.crop(0)
        assert_full(policy, cache)
        feed(model, cache, ids[:, 20:23])
        feed(model, cache, ids[:, 23:26])
        assert_full(policy, cache, waiting=6)
        cache.crop(-4)
        assert cache.seen == 22
        assert_full(policy, cache)
        assert max(origins(cache)) <= 21
        if policy.newest:
            assert origins(cache)[-1] == 21
        with pytest.raises(SinkpinError):
            cache.crop(-1)


@every_policy("position")
@pytest.mark.parametrize("how", ["lookup", "draft"])
def test_assisted_generation_past_the_budget(policy, how):
    """A position policy gives the same tokens with and without an assistant, far past the budget.

    Kills: a rejected draft that pushed real tokens out of the window for good.
    """
    model, draft = families.build(seed=0), families.build(layers=1, seed=0)
    options = {"prompt_lookup_num_tokens": 4} if how == "lookup" else {"assistant_model": draft}
    ids = families.tokens(8).repeat(1, 3)
    with policy.cache(model) as cache, policy.cache(model) as plain:
        got = generate(model, cache, ids, 40, **options)
        wanted = generate(model, plain, ids, 40)
        assert torch.equal(got, wanted)
        assert_within(cache, 10)


@every_policy("scored", "prompt")
def test_assisted_generation_stays_bounded(policy):
    """For these policies the chunk is part of the result; the bound and the length hold all the same."""
    model = families.build()
    ids = families.tokens(8).repeat(1, 3)
    with policy.cache(model) as cache:
        got = generate(model, cache, ids, 40, prompt_lookup_num_tokens=4)
        assert got.shape[1] == 64
        assert cache.seen >= 63
        assert_within(cache, 10)


@every_policy()
@pytest.mark.parametrize("beams", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_beams_past_the_budget(policy, beams):
    """Beam search with eviction equals beam search in which every step feeds its whole history to a fresh cache.

    Kills: a reorder after which origins, pins or evidence belong to another beam.
    """
    model = families.build()
    ids = families.tokens(20)
    with policy.cache(model) as cache:
        result = generate(
            model,
            cache,
            ids,
            20,
            num_beams=beams,
            num_return_sequences=beams,
            return_dict_in_generate=True,
            output_scores=True,
        )
    for row, score in zip(result.sequences, result.sequences_scores, strict=True):
        with policy.cache(model) as fresh:
            logits = feed_in(model, fresh, row[None, :-1], [20] + [1] * 19)[0]
        chosen = logits[19:].log_softmax(-1).gather(1, row[20:, None]).sum()
        assert abs(chosen / 20 - score) < 1e-4 or abs(chosen / 40 - score) < 1e-4


@every_cell(daily=False)
def test_turns_on_one_cache(policy, family):
    """Three turns, each handed the full ids: only what is new is fed; a position policy equals one cold run.

    Kills: input slicing by kept; a mask that covers only the kept.
    """
    model = families.build(family)
    history = families.tokens(15)
    with policy.cache(model) as cache:
        for turn in range(3):
            out = generate(model, cache, history, 12)
            assert cache.seen == out.shape[1] - 1
            assert torch.equal(out[:, : history.shape[1]], history)
            if policy.kind in ("position", "full"):
                with policy.cache(model) as cold:
                    assert torch.equal(out, generate(model, cold, history, 12)), f"turn {turn}"
            history = torch.cat([out, families.tokens(6, seed=turn + 1)], 1)
        if policy.bounded:
            assert_full(policy, cache)
        else:
            assert cache.kept() == cache.seen


@every_cell(daily=False, held=[12, 30])
def test_a_prompt_already_held_is_not_fed_twice(policy, family, held):
    """`generate` with exactly what the cache has seen: refused with the cache intact, or right (never 29 for 17).

    Kills: transformers' `[:, -0:]`, which feeds the whole prompt again in silence.
    """
    model = families.build(family)
    ids = families.tokens(held)
    with policy.cache(model, budget=20) as cache:
        feed(model, cache, ids)
        kept = origins(cache)
        try:
            got = generate(model, cache, ids, 5)
        except SinkpinError as error:
            message, got = str(error), None
        with policy.cache(model, budget=20) as fresh:
            if got is not None:
                assert torch.equal(got, generate(model, fresh, ids, 5))
                assert cache.seen == held + 4
                return
            assert str(held) in message
            assert cache.seen == held
            assert origins(cache) == kept
            more = families.tokens(3, seed=9)
            wanted = feed_in(model, fresh, torch.cat([ids, more], 1), [held, 3])[:, held:]
            assert torch.equal(feed(model, cache, more), wanted)


@every_policy()
def test_a_history_shorter_than_seen_is_refused(policy):
    """Ids that are fewer than the cache has seen cannot be its continuation: refused, nothing changed.

    Kills: a negative slice that feeds some middle part.
    """
    model = families.build()
    ids = families.tokens(30)
    with policy.cache(model, budget=20) as cache:
        feed(model, cache, ids)
        # transformers itself may be the one that refuses.
        with pytest.raises(ValueError, match=r"(?s)."):
            generate(model, cache, ids[:, :25], 5)
        assert cache.seen == 30


@every_policy()
def test_reset(policy):
    """After `reset` the cache is as new: empty, with its budget, bound to its model, and equal to a fresh one.

    Kills: zeroed keys that are still counted; a share that stays settled; notes of the past.
    """
    model = families.build()
    ids = families.tokens(40)
    with policy.cache(model) as cache, policy.cache(model) as fresh:
        feed_in(model, cache, families.tokens(50, rows=2, seed=3), 10)
        cache.reset()
        assert cache.seen == cache.kept() == 0
        assert torch.equal(feed_in(model, cache, ids, 10), feed_in(model, fresh, ids, 10))
        assert torch.equal(cache.origins(1), fresh.origins(1))
        assert cache.nbytes() == fresh.nbytes() == owned(cache)
    if policy.bounded:
        with policy.cache(model, budget="50%", sinks=1) as cache:
            feed(model, cache, ids[:, :20])
            cache.reset()
            feed(model, cache, ids)
            assert cache.budget_tokens == 20


@every_policy()
def test_what_generate_asks_of_a_cache(policy):
    """The attributes and methods that transformers reads exist and agree with each other."""
    model = families.build()
    with policy.cache(model) as cache:
        assert not cache.is_compileable
        feed_in(model, cache, families.tokens(30), 10)
        assert len(cache) == 2
        assert cache.get_seq_length() == 30
        assert cache.is_initialized
        assert isinstance(cache.is_croppable, bool)
        kept_before = cache.kept()
        assert cache.get_query_offset(0) in (kept_before, 30)


def test_a_second_generate_with_padding():
    """Two turns of a left-padded batch: the mask grows as generate wants it, and rows equal themselves alone."""
    model = families.build()
    policy = POLICIES["streaming"]
    rows = [families.tokens(20)[0], families.tokens(7, seed=1)[0]]
    ids, mask = families.pad_left(rows)
    more = families.tokens(4, rows=2, seed=5)
    with policy.cache(model) as cache:
        first = generate(model, cache, ids, 8, attention_mask=mask)
        longer = torch.cat([first, more], 1)
        wide = torch.cat([mask, torch.ones(2, 12).long()], 1)
        got = generate(model, cache, longer, 8, attention_mask=wide)
    for row, own in enumerate(rows):
        with policy.cache(model) as alone:
            history = torch.cat([own, first[row, 20:], more[row]])
            wanted = generate(model, alone, history[None], 8)
            assert torch.equal(got[row, -8:], wanted[0, -8:])
