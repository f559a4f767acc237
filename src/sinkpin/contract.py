"""What any policy must keep to inside a cache, as tests that its author runs with one pytest command.

Write a test file with a fixture that says which policy, and run it:

    import pytest
    from my_package import MyPolicy
    from sinkpin.contract import *

    @pytest.fixture
    def policy():
        return MyPolicy()

Tiny random models, seconds, no network. Not covered: whether the policy is any good (`sinkpin compare`), and that it
computes what its paper says (a plain loop of your own, as in this project's tests/naive).
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from sinkpin.cache.bounded import BoundedCache
from sinkpin.cache.compat import CACHE_KEYWORD
from sinkpin.policies.base import Policy

__all__ = [
    "model",
    "test_the_budget_holds_after_every_forward",
    "test_pins_hold",
    "test_one_unpinned_entry_still_makes_progress",
    "test_below_the_budget_nothing_is_lost",
    "test_a_choice_depends_on_nothing_else",
    "test_padding_neither_gives_nor_receives",
    "test_rows_move_whole",
    "test_what_is_taken_back_leaves_no_trace",
    "test_a_copy_and_a_saved_cache_go_on_alike",
    "test_generate",
]

BUDGET, TEXT = 13, 61
PINS = [(20, 23), (40, 41)]
IDS = torch.randint(2, 97, (3, TEXT), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model() -> Any:
    """A two-layer Llama with two query heads to a KV head; weights large enough for a wrong cache to show."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def feed(
    model: Any, cache: BoundedCache, ids: Tensor, sizes: list[int], mask: Tensor | None = None
) -> Tensor:
    """Logits of `ids [rows, tokens]`, fed in chunks of the given sizes, the last repeated."""
    start: int = 0
    out: list[Tensor] = []
    while start < ids.shape[1]:
        stop = min(start + sizes[min(len(out), len(sizes) - 1)], ids.shape[1])
        given = {} if mask is None else {"attention_mask": mask[:, :stop]}
        out.append(model(ids[:, start:stop], **{CACHE_KEYWORD: cache}, **given).logits)
        start = stop
    return torch.cat(out, dim=1)


def entries(cache: BoundedCache, row: int = 0) -> list[list[list[int]]]:
    """What is held, `[layer][head]`, without empty slots."""
    return [
        [[i for i in head if i >= 0] for head in cache.origins(layer)[row].tolist()]
        for layer in cache.bounded_layers
    ]


def held(cache: BoundedCache) -> int:
    """Entries of row 0 over all layers and KV heads."""
    return sum(len(head) for layer in entries(cache) for head in layer)


@pytest.mark.parametrize("sinks", [0, 1, 4])
@pytest.mark.parametrize("sizes", [[1], [30, 1], [7], [TEXT]], ids=str)
def test_the_budget_holds_after_every_forward(
    policy: Policy, model: Any, sizes: list[int], sinks: int
) -> None:
    with BoundedCache(model, BUDGET, policy, sinks) as cache:
        start, bytes_when_full = 0, set()
        for chunk in (
            IDS[:1].split(sizes[0], 1) if len(sizes) == 1 else [IDS[:1, :30], *IDS[:1, 30:].split(1, 1)]
        ):
            feed(model, cache, chunk, [chunk.shape[1]])
            start += chunk.shape[1]
            most = min(start, BUDGET) * 2 * len(cache.bounded_layers)
            assert held(cache) <= most, f"{held(cache)} entries after {start} tokens, {most} allowed"
            if start > 2 * BUDGET:
                bytes_when_full.add(cache.nbytes())
        assert held(cache) == BUDGET * 2 * len(cache.bounded_layers), "a full cache uses its whole budget"
        assert len(bytes_when_full) == 1, "bytes change after the cache is full"
        assert bytes_when_full == {cache.footprint.bytes_of(BUDGET)}


def test_pins_hold(policy: Policy, model: Any) -> None:
    with BoundedCache(model, BUDGET, policy, sinks=2, pins=PINS) as cache:
        feed(model, cache, IDS[:1], [25, 5, 1])
        for layer in entries(cache):
            for head in layer:
                assert {0, 1, 20, 21, 22, 40} <= set(head)
                assert head == sorted(set(head)), "an entry is held twice, or out of order"


def test_one_unpinned_entry_still_makes_progress(policy: Policy, model: Any) -> None:
    with BoundedCache(model, 5, policy, sinks=4) as cache:
        logits = feed(model, cache, IDS[:1], [20, 1])
        assert torch.isfinite(logits).all()
        assert cache.seen == TEXT


def test_below_the_budget_nothing_is_lost(policy: Policy, model: Any) -> None:
    least = min(policy.layer_budget(layer, 2, 2 * TEXT, 4) for layer in range(2))
    with torch.no_grad(), BoundedCache(model, 2 * TEXT, policy) as cache:
        ids = IDS[:, : min(TEXT, least)]
        torch.testing.assert_close(feed(model, cache, ids, [7]), model(ids).logits, atol=1e-4, rtol=1e-5)


def test_a_choice_depends_on_nothing_else(policy: Policy, model: Any) -> None:
    """The same text chooses the same entries again, beside other rows, and beside another cache."""
    with BoundedCache(model, BUDGET, policy) as alone, BoundedCache(model, BUDGET, policy) as among:
        first = feed(model, alone, IDS[:1], [25, 5, 1])
        rows = feed(model, among, IDS, [25, 5, 1])
        assert entries(alone) == entries(among, row=0)
        torch.testing.assert_close(first, rows[:1], atol=1e-4, rtol=1e-4)
        alone.reset()
        torch.testing.assert_close(feed(model, alone, IDS[:1], [25, 5, 1]), first, atol=0, rtol=0)


def test_padding_neither_gives_nor_receives(policy: Policy, model: Any) -> None:
    pads = 9
    ids = torch.cat((torch.zeros(1, pads, dtype=torch.int64), IDS[:1, pads:]), dim=1)
    mask = (torch.arange(TEXT) >= pads).long()
    both, masks = torch.cat((ids, IDS[1:2])), torch.stack((mask, torch.ones_like(mask)))
    with BoundedCache(model, BUDGET, policy) as alone, BoundedCache(model, BUDGET, policy) as padded:
        single = feed(model, alone, IDS[:1, pads:], [30 - pads, 1])
        batch = feed(model, padded, both, [30, 1], masks)
        assert entries(alone) == entries(padded, row=0)
        torch.testing.assert_close(batch[:1, pads:], single, atol=1e-4, rtol=1e-4)


def test_rows_move_whole(policy: Policy, model: Any) -> None:
    order = torch.tensor([2, 0, 0])
    with BoundedCache(model, BUDGET, policy) as moved, BoundedCache(model, BUDGET, policy) as direct:
        feed(model, moved, IDS[:, :40], [25, 5, 1])
        moved.reorder_cache(order)
        feed(model, direct, IDS[order][:, :40], [25, 5, 1])
        rest = IDS[order][:, 40:]
        torch.testing.assert_close(
            feed(model, moved, rest, [1]), feed(model, direct, rest, [1]), atol=1e-4, rtol=1e-4
        )


def test_what_is_taken_back_leaves_no_trace(policy: Policy, model: Any) -> None:
    with BoundedCache(model, BUDGET, policy) as cache, BoundedCache(model, BUDGET, policy) as plain:
        feed(model, cache, IDS[:1, :30], [30])
        feed(model, plain, IDS[:1, :30], [30])
        cache.activate_past_recording()
        feed(model, cache, torch.cat((IDS[:1, 30:32], IDS[1:2, :3]), dim=1), [5])
        cache.crop(-3)
        feed(model, plain, IDS[:1, 30:32], [2])
        assert entries(cache) == entries(plain)


def test_a_copy_and_a_saved_cache_go_on_alike(policy: Policy, model: Any, tmp_path: Path) -> None:
    with BoundedCache(model, BUDGET, policy) as cache:
        feed(model, cache, IDS[:1, :40], [25, 5, 1])
        cache.save(tmp_path / "cache")
        twins = [copy.deepcopy(cache), BoundedCache.load(tmp_path / "cache", model, policy)]
        wanted = feed(model, cache, IDS[:1, 40:], [1])
        for twin in twins:
            assert torch.equal(feed(model, twin, IDS[:1, 40:], [1]), wanted)
            twin.close()


def test_generate(policy: Policy, model: Any) -> None:
    options = {"max_new_tokens": 30, "min_new_tokens": 30, "do_sample": False}
    with BoundedCache(model, BUDGET, policy) as cache, BoundedCache(model, BUDGET, policy) as again:
        one = model.generate(IDS[:1, :20], **{CACHE_KEYWORD: cache}, **options)
        two = model.generate(IDS[:1, :20], **{CACHE_KEYWORD: again}, prompt_lookup_num_tokens=3, **options)
        assert one.shape == (1, 50)
        assert cache.seen == 49
        if policy.kind == "position":  # others choose after each forward, and lookup makes other forwards
            assert torch.equal(one, two)
