"""A compiled model decodes through a bounded cache as an eager one does, and compiles nothing more after warm-up."""

import torch

from contract.cells import every_policy, feed
from families import build, tokens


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
