"""The path of single tokens and the path of everything else: the same entries, the same logits, the same bytes."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from contract.cells import feed
from families import FAMILIES, build, tokens
from sinkpin import BoundedCache
from sinkpin.cache import forward, step
from sinkpin.policies.base import Ranked

SETUPS = [
    {"policy": "window", "sinks": 2},
    {"policy": "window", "sinks": 0},
    {"policy": "window", "frame": "original"},
    {"policy": "window", "pins": [(3, 5), (30, 33)]},
    {"policy": "h2o", "pins": [(3, 5), (30, 33)]},
    {"policy": "h2o", "frame": "slots"},
    {"policy": "tova", "sinks": 0},
    {"policy": "tova", "frame": "slots"},
    {"policy": "random"},
]


@torch.no_grad()
def streamed(family, setup, rows=1):
    """Logits of a prompt and 40 single tokens, what is held then, and bytes; how many steps went the short way."""
    ids = torch.cat([tokens(60, seed=row) for row in range(rows)])
    model = build(family)
    with BoundedCache(model, budget=12, **setup) as cache:
        logits = [feed(model, cache, ids[:, :20])[:, -1:]]
        logits += [feed(model, cache, ids[:, i : i + 1]) for i in range(20, 50)]
        logits += [feed(model, cache, ids[:, 50:55])]  # a chunk finds everything in order again
        logits += [feed(model, cache, ids[:, i : i + 1]) for i in range(55, 60)]
        held = [cache.origins(layer) for layer in range(len(cache.layers))]
        return torch.cat(logits, dim=1), held, cache.nbytes(), cache.peak_nbytes


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: "-".join(map(str, setup.values())))
@pytest.mark.parametrize(
    "family", ["llama", *(pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES if f != "llama")]
)
def test_one_way_is_the_other(family, setup, monkeypatch):
    """Kills: a rank, a rotation, a tie, a pin or a mask that only one of the two paths has right."""
    if setup.get("frame") == "slots" and not FAMILIES[family].slots:
        pytest.skip("learned positions: no slots")
    taken, real = [], step.plan
    monkeypatch.setattr(forward.step, "plan", lambda *given: taken.append(found := real(*given)) or found)
    logits, held, size, _ = streamed(family, setup, rows=2)
    assert sum(map(bool, taken)) == 35  # the test would be about nothing
    monkeypatch.setattr(forward.step, "plan", lambda *given: {})
    wanted, wanted_held, wanted_size, _ = streamed(family, setup, rows=2)
    assert all(torch.equal(a, b) for a, b in zip(held, wanted_held, strict=True))
    torch.testing.assert_close(logits, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=0)
    assert size == wanted_size


@pytest.mark.parametrize("policy", ["window", "h2o", "tova"])
def test_in_and_out_of_inference_mode(policy):
    """A cache filled under `inference_mode` goes on under `no_grad`, and the other way about."""
    model = build()
    with BoundedCache(model, budget=12, policy=policy) as cache:
        for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
            with mode():
                feed(model, cache, tokens(14))
                for i in range(3):
                    assert torch.isfinite(feed(model, cache, tokens(1, seed=i))).all()


@pytest.mark.parametrize("policy", ["window", "h2o", "tova", "random"])
@torch.no_grad()
def test_nothing_is_allocated_for_good(policy):
    """The tensors of a full cache are the same objects in memory, step after step."""
    model = build()
    with BoundedCache(model, budget=12, policy=policy) as cache:
        feed(model, cache, tokens(14))
        feed(model, cache, tokens(1))

        def places():
            return {
                name: x.data_ptr()
                for name, x in cache.state().items()
                if name.endswith(("keys", "values", "held"))
            }

        before = places()
        for i in range(5):
            feed(model, cache, tokens(1, seed=i))
        assert places() == before


@torch.no_grad()
def test_a_saved_cache_lies_in_order(tmp_path):
    """Steps leave entries out of order, a file has them in order: what is loaded goes on with a chunk as the saved does."""
    model, ids = build(), tokens(40, rows=2)
    with BoundedCache(model, budget=12, policy="h2o") as cache:
        for stop in range(14, 30):
            feed(model, cache, ids[:, stop - 1 : stop] if stop > 14 else ids[:, :14])
        cache.save(tmp_path / "file")
        with BoundedCache.load(tmp_path / "file", model) as loaded:
            chunks = [
                ids[:, 30:35],
                *(ids[:, i : i + 1] for i in range(35, 40)),
            ]  # the first relies on the order
            for chunk in chunks:
                assert torch.equal(feed(model, loaded, chunk), feed(model, cache, chunk))


@dataclass(frozen=True)
class Indifferent(Ranked):
    """Scores every candidate alike."""

    name: ClassVar[str] = "indifferent"

    def scores(self, view, n):
        return torch.zeros(view.origins.shape)


@torch.no_grad()
def test_of_equal_scores_the_newer_stays():
    """One token at a time too, pins apart. Kills: ties that are broken by where an entry happens to lie."""
    model, ids = build(), tokens(40)
    with BoundedCache(model, 12, Indifferent(), sinks=2) as cache:
        feed(model, cache, ids[:, :14])
        for i in range(14, 40):
            feed(model, cache, ids[:, i : i + 1])
            wanted = [0, 1, *range(i - 9, i + 1)]
            assert cache.origins()[0].tolist() == [wanted] * cache.origins().shape[1]


@torch.no_grad()
def test_entries_that_wait_are_counted():
    """New entries of a scored policy wait for the exit beside a full cache. Kills: a peak that leaves them out."""
    model, ids = build(), tokens(20)
    with BoundedCache(model, budget=12, policy="h2o") as cache:
        for i in range(20):
            feed(model, cache, ids[:, i : i + 1])
        waiting = sum(layer.keys[:, :, :1].nbytes + layer.values[:, :, :1].nbytes for layer in cache.layers)
        assert cache.peak_nbytes == cache.nbytes() + waiting


@pytest.mark.parametrize("policy", ["window", "h2o", "tova"])
@torch.no_grad()
def test_a_graph_may_write_on_where_its_new_entries_lay(policy):
    """A compiled graph gives its memory to later layers. Kills: an entry that waits in memory which is not ours."""
    model, ids, states = build(), tokens(15), []
    for scribble in (False, True):
        with BoundedCache(model, budget=12, policy=policy) as cache:
            feed(model, cache, ids[:, :14])
            random = torch.Generator().manual_seed(0)
            under_way = cache.begin(ids[:, 14:], mask=None, positions=None)
            for layer in cache.layers:
                facts = layer.facts
                sizes = (
                    (facts.heads, facts.key_dim),
                    (facts.kv_heads, facts.key_dim),
                    (facts.kv_heads, facts.value_dim),
                )
                q, k, v = (torch.randn(1, heads, 1, dim, generator=random) for heads, dim in sizes)
                under_way.attend_in_graph(facts.index, q, k, v)
                if scribble:
                    k.zero_(), v.zero_()
            under_way.finish(failed=False)
            states.append(cache.state())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
