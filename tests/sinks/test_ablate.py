"""Losing a token, in three ways, against what each means; and the bookkeeping around it."""

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import families
from contract.cells import CACHE
from sinkpin import BoundedCache, SinkpinError
from sinkpin.sinks import ablate
from sinkpin.sinks.ablate import Window
from sinkpin.sinks.lockstep import lockstep

PROMPT, TOKENS = 20, 37
LOST = [0, 7, 8]


def losses_of(logits, ids):
    return -logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0].double().numpy()


def lost_by(model, way, lost, ids):
    """The product's losses of the continuation, and how they differ from the whole run's."""
    return ablate._lost(model, Window(ids, PROMPT), way, [lost], len(ids) - PROMPT - 1)[0]


def expected(model, ids, hidden_from):
    """Losses by a forward whose mask hides the lost keys from whoever `hidden_from(query)` says."""
    n = len(ids) - 1
    sees = torch.ones(n, n, dtype=torch.bool).tril()
    for key in LOST:
        for query in range(key + 1, n):
            if hidden_from(query):
                sees[query, key] = False
    mask = torch.where(sees, 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        logits = model(ids[None, :-1], attention_mask=mask, position_ids=torch.arange(n)[None]).logits[0]
    return losses_of(logits[PROMPT:], ids[PROMPT + 1 :])


@pytest.mark.parametrize("name", ["llama", "olmo2", "gpt_neox", "opt", "smollm3"])
@pytest.mark.parametrize("way", ["masked", "evicted"])
def test_masked_and_evicted_are_a_mask(name, way):
    model = families.build(name, positions=512)
    model.config._attn_implementation = "eager"
    ids = families.tokens(TOKENS)[0]
    hides = (lambda query: True) if way == "masked" else (lambda query: query >= PROMPT)
    with torch.no_grad():
        plain = losses_of(model(ids[None, :-1]).logits[0, PROMPT:], ids[PROMPT + 1 :])
    delta = (expected(model, ids, hides) - plain).mean()
    assert abs(delta) > 1e-3
    assert lost_by(model, way, LOST, ids)[0, 0] == pytest.approx(delta, abs=1e-5)


def test_re_ranked_is_a_text_without_them():
    """With one layer, keys and values hang on nothing but their token."""
    model = families.build("llama", layers=1)
    ids = families.tokens(TOKENS)[0]
    stay = [i for i in range(len(ids)) if i not in LOST]
    with torch.no_grad():
        without = model(ids[None, stay[:-1]]).logits[0, PROMPT - len(LOST) :]
        plain = model(ids[None, :-1]).logits[0, PROMPT:]
    delta = losses_of(without, ids[PROMPT + 1 :]).mean() - losses_of(plain, ids[PROMPT + 1 :]).mean()
    found = lost_by(model, "re-ranked", LOST, ids)[0, 0]
    assert found == pytest.approx(delta, abs=1e-5)
    assert abs(found - lost_by(model, "evicted", LOST, ids)[0, 0]) > 1e-4  # positions do matter


def test_divergence_and_agreement():
    model, ids = families.build("llama"), families.tokens(TOKENS)[0]
    with BoundedCache(model, policy="full") as whole, BoundedCache(model, 8) as window:
        first, second = lockstep(model, [whole, window], ids, 0, chunk=5)
    assert not first.kl.any() and first.same.all()
    with torch.no_grad(), BoundedCache(model, 8) as window:
        p = model(ids[None, :-1], **{CACHE: DynamicCache()}).logits[0].log_softmax(-1)
        q = model(ids[None, :-1], **{CACHE: window}).logits[0].log_softmax(-1)
    assert np.allclose(second.kl, (p.exp() * (p - q)).sum(-1).numpy(), atol=1e-5)
    assert np.array_equal(second.same, (p.argmax(-1) == q.argmax(-1)).double().numpy())
    assert np.allclose(second.losses, losses_of(q, ids[1:]), atol=1e-5)


def test_controls_are_near_alike_and_nobody_twice():
    norms = np.array([1.0, 5.0, 5.1, 4.9, 9.0, 5.05, 1.1, 5.2, 0.9, 5.3])
    sets = ablate.matched(norms, [1], 3, others=[5])
    assert sets == [[2], [3], [7]]
    pairs = ablate.matched(norms, [1, 6], 3)
    assert all(len(set(one)) == 2 and not {1, 6} & set(one) for one in pairs)
    assert [one[0] for one in pairs] == [5, 2, 3] and [one[1] for one in pairs] == [0, 8, 5]
    assert len(ablate.matched(np.ones(4), [0, 1], 9)) == 1  # two tokens are left: one set of two
    assert ablate.matched(np.ones(2), [0, 1], 9) == []


def test_the_table_is_complete_and_the_control_is_a_mean():
    model, ids = families.build("llama"), families.tokens(200)[0]
    windows = ablate.windows(ids, prompt=16, most=3, block=10)
    assert [len(w.ids) for w in windows] == [27, 27, 27] and torch.equal(windows[1].ids, ids[27:54])
    norms = np.arange(1.0, 17.0)
    rows = ablate.ablate(model, windows, [0], "token 0", key_norms=lambda w: norms, controls=4, block=10)
    assert [row.way for row in rows] == ["masked", "evicted", "re-ranked"]
    for row in rows:
        assert row.controls == 4 and row.scored == 30
        assert row.effect.ci95[0] <= row.effect.delta_nll <= row.effect.ci95[1]
        lost = [ablate._lost(model, w, row.way, [[0], [1], [2], [3], [4]], 10) for w in windows]
        assert row.effect.delta_nll == pytest.approx(np.mean([x[0, :, 0] for x in lost]), abs=1e-9)
        assert row.control.delta_nll == pytest.approx(np.mean([x[1:, :, 0] for x in lost]), abs=1e-9)


def test_learned_positions_cannot_be_re_ranked():
    assert ablate.ways(families.build("gpt2")) == ["masked", "evicted"]


def test_one_block_makes_no_interval():
    model, ids = families.build("llama"), families.tokens(40)[0]
    with pytest.raises(SinkpinError, match="1 block of 10 tokens"):
        ablate.ablate(
            model, [Window(ids[:31], 20)], [0], "token 0", key_norms=lambda w: np.ones(20), block=10
        )
    with pytest.raises(SinkpinError, match="40 tokens leave 23 to score past a window of 16"):
        ablate.restored(model, ids, 16, {"none": []}, block=20)


def test_pinning_gives_back_what_compare_says():
    model, ids = families.build("llama"), families.tokens(100)[0]
    runs = ablate.restored(model, ids, 16, {"none": [], "first 4": [(0, 4)]}, block=20, chunk=9)
    assert runs["none"].shape == (4, 3)
    with torch.no_grad():
        full = losses_of(model(ids[None, :-1]).logits[0], ids[1:])
        with BoundedCache(model, 16, "window", sinks=4) as cache:
            pinned = losses_of(model(ids[None, :-1], **{CACHE: cache}).logits[0], ids[1:])
    wanted = (pinned - full)[16 : 16 + 80].reshape(4, 20).mean(1)
    assert np.allclose(runs["first 4"][:, 0], wanted, atol=1e-5)
