"""`sinks="auto"`: the first forward is dense, its sinks are pinned, and then the budget holds."""

import copy

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import families
from contract.cells import CACHE, assert_close
from sinkpin import BoundedCache, SinkpinError
from sinkpin.cache import found

POLICIES = ["window", "streaming", "h2o", "tova", "snapkv", "keydiff", "random", "adakv", "pyramidkv"]
PROMPT, BUDGET = 90, 32


class Few:
    """Random weights have no sinks: call those tokens so that are paid most."""

    def __init__(self, mass):
        self.mean = mass.mean((0, 1))
        self.sinks = tuple(np.argsort(np.nan_to_num(self.mean))[-3:].tolist())


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(found, "outliers", Few)


@torch.no_grad()
def feed(model, cache, ids, **more):
    return model(ids, **{CACHE: cache}, **more).logits


@pytest.mark.parametrize("policy", POLICIES)
def test_dense_then_evicted_and_pinned_for_good(policy):
    model, ids = families.build("llama"), families.tokens(PROMPT + 40)
    cache = BoundedCache(model, BUDGET, policy, sinks="auto")
    logits = feed(model, cache, ids[:, :PROMPT])
    assert_close(logits, feed(model, DynamicCache(config=model.config), ids[:, :PROMPT]), 1e-5)
    pins = [index for start, stop in cache._pins.rows[0] for index in range(start, stop)]
    assert pins and len(pins) <= BUDGET // 4
    assert cache.budget_tokens == BUDGET
    for token in ids[0, PROMPT:]:
        total = sum(int((cache.origins(layer) >= 0).sum()) for layer in cache.bounded_layers)
        heads = model.config.num_key_value_heads
        assert total <= BUDGET * heads * len(cache.bounded_layers)
        for layer in cache.bounded_layers:
            for head in cache.origins(layer)[0].tolist():
                assert set(pins) <= set(head)
        feed(model, cache, token[None, None])
    assert cache.nbytes() == cache.footprint.bytes_of(BUDGET)


def test_it_pins_what_the_mass_says():
    model, ids = families.build("llama"), families.tokens(PROMPT)
    cache = BoundedCache(model, BUDGET, "h2o", sinks="auto")
    feed(model, cache, ids)
    eager = copy.deepcopy(model)
    eager.config._attn_implementation = "eager"
    with torch.no_grad():
        a = torch.stack(eager(ids, output_attentions=True).attentions)[:, 0].double()
    mass = torch.full((*a.shape[:2], PROMPT), float("nan"), dtype=torch.float64)
    for k in range(PROMPT - 32):
        mass[..., k] = a[:, :, k + 1 :, k].mean(-1)
    chosen = Few(mass.numpy()).sinks
    assert [start for start, _ in cache._pins.rows[0]] == sorted(chosen) or len(cache._pins.rows[0]) < len(
        chosen
    )
    assert {i for s, e in cache._pins.rows[0] for i in range(s, e)} == set(chosen)


def test_rows_have_their_own_and_padding_is_none():
    model = families.build("llama")
    rows = [families.tokens(80, seed=1)[0], families.tokens(100, seed=2)[0]]
    ids, mask = families.pad_left(rows)
    cache = BoundedCache(model, BUDGET, "h2o", sinks="auto")
    feed(model, cache, ids, attention_mask=mask)
    for row, own in enumerate(rows):
        alone = BoundedCache(model, BUDGET, "h2o", sinks="auto")
        feed(model, alone, own[None])
        assert cache._pins.rows[row] == alone._pins.rows[0]


def test_reset_looks_again_and_a_saved_one_goes_on(tmp_path):
    model = families.build("llama")
    first, second = families.tokens(PROMPT, seed=3), families.tokens(PROMPT, seed=4)
    cache = BoundedCache(model, BUDGET, "h2o", sinks="auto")
    feed(model, cache, first)
    pins = cache._pins.rows
    cache.save(tmp_path / "cache.safetensors")
    loaded = BoundedCache.load(tmp_path / "cache.safetensors", model)
    assert loaded._pins.rows == pins and loaded.sinks == "auto"
    more = families.tokens(5, seed=5)
    assert torch.equal(feed(model, cache, more), feed(model, loaded, more))
    for one in (cache, loaded):
        one.reset()
        assert one.budget_tokens is None
        feed(model, one, second)
    fresh = BoundedCache(model, BUDGET, "h2o", sinks="auto")
    feed(model, fresh, second)
    assert cache._pins.rows == loaded._pins.rows == fresh._pins.rows != pins


def test_a_short_prompt_pins_the_first_four_and_says_so():
    model = families.build("llama")
    cache = BoundedCache(model, BUDGET, "h2o", sinks="auto")
    feed(model, cache, families.tokens(20))
    assert cache._pins.rows == (((0, 4),),)
    assert any("too short to find sinks in" in note for note in cache.notes)


def test_generate_and_shares():
    model, ids = families.build("llama"), families.tokens(PROMPT)
    cache = BoundedCache(model, "40%", "streaming", sinks="auto")
    out = model.generate(ids, max_new_tokens=8, do_sample=False, **{CACHE: cache})
    assert out.shape[1] == PROMPT + 8 and cache.budget_tokens == 36 and cache.kept() == 36


def test_other_words_are_refused():
    with pytest.raises(SinkpinError, match="sinks='all'"):
        BoundedCache(families.build("llama"), 16, "window", sinks="all")


def test_more_than_a_quarter_of_the_budget_is_never_pinned():
    model = families.build("llama")
    cache = BoundedCache(model, 8, "h2o", sinks="auto")
    feed(model, cache, families.tokens(PROMPT))
    assert sum(stop - start for start, stop in cache._pins.rows[0]) == 2
    assert any("3 sinks were found, and the 2 that receive most" in note for note in cache.notes)


def test_a_prompt_that_is_taken_back_is_looked_for_again():
    model = families.build("llama")
    cache, fresh = (BoundedCache(model, BUDGET, "h2o", sinks="auto") for _ in range(2))
    cache.activate_past_recording()
    feed(model, cache, families.tokens(PROMPT, seed=3))
    cache.crop(-PROMPT)
    for one in (cache, fresh):
        feed(model, one, families.tokens(PROMPT, seed=4))
    cache.crop(0)
    assert cache._pins.rows == fresh._pins.rows
    assert torch.equal(cache.origins(), fresh.origins())


def test_what_is_dropped_is_gone_from_a_cache_that_decodes():
    """Steps of one token leave entries in another order; what is dropped is told by its index all the same."""
    model, ids = families.build("llama"), families.tokens(60)
    cache = BoundedCache(model, 24, "h2o", sinks=2)
    for at in range(50):
        feed(model, cache, ids[:, at : at + 1])
    before = [cache.origins(layer) for layer in (0, 1)]
    common = set(before[0].flatten().tolist())
    for head in (head for layer in before for head in layer[0].tolist()):
        common &= set(head)
    lost = sorted(common)[:3]
    assert len(lost) == 3
    twin = copy.deepcopy(cache)
    for one in (cache, twin):
        one.drop(lost)
    for layer in (0, 1):
        assert not set(lost) & set(cache.origins(layer).flatten().tolist())
        assert cache.kept(layer) == 21
    with torch.no_grad():
        after = feed(model, cache, ids[:, 50:60])
        again = torch.cat([feed(model, twin, ids[:, at : at + 1]) for at in range(50, 53)], dim=1)
    assert_close(again, after[:, :3], 1e-5)


@pytest.mark.parametrize("indices", [[1.5], ["a"], "12", 5.0, [-1], [2**40], [True]])
def test_what_is_no_index_is_not_dropped(indices):
    model = families.build("llama")
    cache = BoundedCache(model, 64, "h2o")
    feed(model, cache, families.tokens(20))
    with pytest.raises(SinkpinError, match="give the indices of tokens"):
        cache.drop(indices)
    assert cache.kept() == 20


def test_nothing_is_dropped_while_tokens_may_be_taken_back():
    model = families.build("llama")
    cache = BoundedCache(model, 64, "h2o")
    cache.activate_past_recording()
    feed(model, cache, families.tokens(20))
    with pytest.raises(SinkpinError, match="20 tokens may still be taken back"):
        cache.drop([3])
