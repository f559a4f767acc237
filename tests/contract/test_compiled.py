"""A compiled model decodes through a bounded cache as an eager one does, and compiles nothing more after warm-up."""

import pytest
import torch

from contract.cells import every_policy, feed
from families import build, tokens
from sinkpin import BoundedCache


@every_policy("position", "scored", "prompt")
def test_decode_without_recompiles(policy) -> None:
    """Kills: a shape, a counter or an object of the cache that a compiled frame has learnt by heart."""
    torch._dynamo.reset()
    model, ids = build(), tokens(20)
    compiled = torch.compile(model, backend="eager")
    with policy.cache(model) as cache, policy.cache(model) as plain:
        for twin in (cache, plain):
            feed(model, twin, ids)
        step = tokens(1, seed=1)
        for _warm_up in range(10):
            feed(compiled, cache, step)
            feed(model, plain, step)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for _decoded in range(60):
                out = feed(compiled, cache, step)
                assert torch.equal(out, feed(model, plain, step))
    torch._dynamo.reset()


@pytest.mark.parametrize("policy", ["streaming", pytest.param("h2o", marks=pytest.mark.slow)])
@torch.no_grad()
def test_two_thousand_steps_without_a_recompile(policy) -> None:
    """Kills: anything that grows with the stream and that a graph depends on."""
    torch._dynamo.reset()
    model = build()
    compiled = torch.compile(model, backend="eager")
    with BoundedCache(model, budget=12, policy=policy) as cache:
        feed(model, cache, tokens(20))
        for i in range(2010):
            with torch._dynamo.config.patch(error_on_recompile=i >= 10):
                feed(compiled, cache, tokens(1, seed=i % 7))
    torch._dynamo.reset()


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma2"])
@torch.no_grad()
def test_all_layers_are_one_graph(family) -> None:
    """What a cache does is one opaque operation in each layer. Kills: a break in every layer, and all speed with it."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = build(family)
    compiled = torch.compile(model, backend="eager")
    with BoundedCache(model, budget=12) as cache, BoundedCache(model, budget=12) as plain:
        for twin in (cache, plain):
            feed(model, twin, tokens(20))
        for i in range(5):
            wanted = feed(model, plain, tokens(1, seed=i))
            torch.testing.assert_close(feed(compiled, cache, tokens(1, seed=i)), wanted, atol=1e-5, rtol=0)
    # Before the masks, all layers, after them.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3
    torch._dynamo.reset()
