"""Inputs that broke this cache once, each the smallest of its kind."""

import copy

import pytest
import torch

from contract.cells import CACHE, feed
from families import build, tokens
from sinkpin import BoundedCache
from sinkpin.errors import PolicyError
from sinkpin.policies.base import Policy, View
from sinkpin.policies.h2o import H2O
from sinkpin.policies.keydiff import KeyDiff

BASES = ["h2o", "keydiff", "lagkv", "expected", "snapkv"]


@pytest.mark.parametrize("base", BASES)
@torch.no_grad()
def test_unequal_heads_in_a_rollback(base):
    """Three tokens at once or one by one, all still to be taken back: the same. Kills: empty slots attended to."""
    model, ids = build(), tokens(3, seed=5)
    at_once = BoundedCache(model, budget=16, policy="adakv", base=base, alpha=0.0)
    feed(model, at_once, tokens(40))
    singly = copy.deepcopy(at_once)
    for cache in (at_once, singly):
        cache.layers[0].activate_past_recording()
    wanted = feed(model, at_once, ids)
    got = torch.cat([feed(model, singly, ids[:, i : i + 1]) for i in range(3)], dim=1)
    torch.testing.assert_close(got, wanted, atol=5e-5, rtol=0)


@pytest.mark.parametrize("base", BASES)
@torch.no_grad()
def test_unequal_heads_and_a_crop_of_nothing(base):
    """`crop(0)` on a full cache changes nothing, and neither does what `generate` does to start anew."""
    model = build()
    with BoundedCache(model, budget=16, policy="adakv", base=base) as cache:
        feed(model, cache, tokens(30))
        held, size = [cache.origins(layer) for layer in range(2)], cache.nbytes()
        cache.crop(0)
        assert all(torch.equal(cache.origins(layer), held[layer]) for layer in range(2))
        assert cache.nbytes() == size
        out = tokens(30, seed=3)
        for _turn in range(2):
            cache.reset()
            out = model.generate(
                out, **{CACHE: cache}, max_new_tokens=6, do_sample=False, prompt_lookup_num_tokens=3,
                attention_mask=torch.ones_like(out), pad_token_id=0,
            )  # fmt: skip
            cache.crop(0)
            feed(model, cache, tokens(1))
            assert cache.kept() >= 16


@pytest.mark.parametrize("base", ["snapkv", "pyramidkv", "h2o"])
@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_pins_met_after_heads_were_given_their_parts(base, seed):
    """Pins that nearly fill the budget, met in decode: every head holds them all and the newest token."""
    model = build()
    with BoundedCache(model, budget=16, policy="adakv", base=base, sinks=4, pins=[(50, 61)]) as cache:
        feed(model, cache, tokens(40, seed=seed))
        for i in range(40):
            feed(model, cache, tokens(1, seed=100 * seed + i))
            pins = {*range(4), *range(50, min(61, 41 + i))}
            for layer in range(2):
                heads = cache.origins(layer)[0].tolist()
                assert sum(x >= 0 for head in heads for x in head) == 32
                for head in heads:
                    assert pins <= set(head)
                    assert base == "h2o" or 40 + i in head
        assert all(line.pins_held == 1.0 for line in cache.audit())


@pytest.mark.parametrize("policy", ["h2o", "expected", "adakv", "tova", "snapkv", "window", "keydiff"])
def test_no_graph_is_kept_between_forwards(policy):
    """Outside `no_grad` too. Kills: evidence that holds on to everything that it was computed from."""
    model = build()
    with BoundedCache(model, budget=16, policy=policy) as cache:
        feed_with_grad = {CACHE: cache}
        model(tokens(24), **feed_with_grad)
        for i in range(3):
            model(tokens(1, seed=i), **feed_with_grad)
        assert not [name for name, x in cache.state().items() if x.requires_grad]
        copy.deepcopy(cache).close()


@pytest.mark.parametrize(("policy", "options"), [("snapkv", {"window_size": 8}), ("lagkv", {"lag": 8})])
@torch.no_grad()
def test_a_share_that_cannot_hold_leaves_nothing_behind(policy, options):
    model = build()
    with BoundedCache(model, budget="25%", policy=policy, **options) as cache:
        with pytest.raises(PolicyError):
            feed(model, cache, tokens(20))
        assert cache.budget_tokens is None and cache.seen == 0 and not cache.notes
        feed(model, cache, tokens(200))
        assert cache.budget_tokens == 50


class Third(Policy):
    """A prompt policy that reads nothing."""

    name = "third"
    kind = "prompt"

    def keep(self, view: View, n: int) -> torch.Tensor:
        return torch.arange(n).expand(*view.origins.shape[:-1], n)


@pytest.mark.parametrize("kept", [0, 6])
@torch.no_grad()
def test_a_prompt_that_was_taken_back_has_not_ended(kept):
    model, ids = build(), tokens(40)
    with BoundedCache(model, 16, Third()) as cropped, BoundedCache(model, 16, Third()) as fresh:
        feed(model, cropped, ids[:, :10])
        cropped.crop(kept - 10)
        if kept:
            feed(model, fresh, ids[:, :kept])
        for cache in (cropped, fresh):
            feed(model, cache, ids[:, kept:])
        assert torch.equal(cropped.origins(), fresh.origins())


def test_two_candidates_are_scored_by_the_formula():
    """What is a tie within a head decides between heads. Kills: zeros, which beat every cosine."""
    keys = torch.tensor([[1.0, 0.0], [0.999, 0.045]])[None, None]
    view = View(layer=0, origins=torch.tensor([[[0, 1]]]), rotated_keys=keys)
    scores = KeyDiff().scores(view, 1)
    assert scores[0, 0, 0] == scores[0, 0, 1] < -0.999


@torch.no_grad()
def test_a_file_goes_on_under_its_own_rule_only(tmp_path):
    model = build()
    with BoundedCache(model, 16, "h2o") as cache:
        feed(model, cache, tokens(20))
        cache.save(tmp_path / "cache")
    with pytest.raises(PolicyError, match="another rule"):
        BoundedCache.load(tmp_path / "cache", model, H2O(recent=0.0))
    BoundedCache.load(tmp_path / "cache", model, H2O()).close()


@torch.no_grad()
def test_the_longest_row_leaves():
    model = build("gpt2", positions=64)
    ids = tokens(60, rows=2)
    mask = torch.ones_like(ids)
    mask[1, :40] = 0
    with BoundedCache(model, 16, "h2o") as cache:
        model(ids, attention_mask=mask, **{CACHE: cache})
        cache.batch_select_indices(torch.tensor([1]))
        feed(model, cache, tokens(10))
        assert cache.seen == 70


@torch.no_grad()
def test_notes_go_with_the_budget():
    model = build()
    with BoundedCache(model, "25%") as cache:
        feed(model, cache, tokens(8))
        assert any("8 tokens" in note for note in cache.notes)
        cache.reset()
        feed(model, cache, tokens(100))
        assert not any("8 tokens" in note for note in cache.notes)


class Allots(Policy):
    """Gives its layers what it likes."""

    name = "allots"

    def __init__(self, parts: list[int]) -> None:
        self.parts = parts

    def keep(self, view: View, n: int) -> torch.Tensor:
        return torch.arange(n).expand(*view.origins.shape[:-1], n)

    def layer_budget(self, layer: int, layers: int, budget: int, pins: int) -> int:
        return self.parts[layer]


@pytest.mark.parametrize("parts", [[21, 21], [2, 30], [4, 28]])
def test_parts_that_do_not_add_up(parts):
    with pytest.raises(PolicyError, match="layer_budget"):
        BoundedCache(build(), 16, Allots(parts), sinks=4)
