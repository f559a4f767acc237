"""What any policy must keep to inside a cache, as tests that its author runs with one pytest command.

Write a test file with a fixture that says which policy, and run it:

    import pytest
    from my_package import MyPolicy
    from sinkpin.contract import *

    @pytest.fixture
    def policy():
        return MyPolicy()

Tiny random models, seconds, no network. Each failure says what usually is behind it, since pytest does not take apart
the assertions of an installed module. Not covered: whether the policy is any good (`sinkpin compare`), and that it
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
    "test_room_for_one_unpinned_entry_is_enough",
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


def cached(
    policy: Policy, model: Any, *, sinks: int = 4, room: int | None = None, pins: Any = None
) -> BoundedCache:
    """A cache of `BUDGET`, or with `room` for so many unpinned entries; of a policy that insists on more sinks, with
    those and as much more budget."""
    pinned = max(sinks, policy.min_sinks)
    budget = BUDGET + max(policy.min_sinks - 4, 0) if room is None else pinned + room
    return BoundedCache(model, budget, policy, pinned, pins)


def entries(cache: BoundedCache, row: int = 0) -> list[list[list[int]]]:
    """What is held, `[layer][head]`, without empty slots."""
    return [
        [[i for i in head if i >= 0] for head in cache.origins(layer)[row].tolist()]
        for layer in cache.bounded_layers
    ]


def held(cache: BoundedCache) -> int:
    """Entries of row 0 over all layers and KV heads."""
    return sum(len(head) for layer in entries(cache) for head in layer)


def same_entries(one: list[list[list[int]]], other: list[list[list[int]]], why: str) -> None:
    """Fails with `why` and the first KV head that differs."""
    for layer, (here, there) in enumerate(zip(one, other, strict=True)):
        for head, (kept, wanted) in enumerate(zip(here, there, strict=True)):
            assert kept == wanted, f"{why}. Layer {layer}, KV head {head} keeps {kept}, not {wanted}"


def same_logits(one: Tensor, other: Tensor, why: str, *, within: float = 1e-4) -> None:
    torch.testing.assert_close(one, other, atol=within, rtol=within, msg=lambda numbers: f"{why}. {numbers}")


@pytest.mark.parametrize("sinks", [0, 1, 4])
@pytest.mark.parametrize("sizes", [[1], [30, 1], [7], [TEXT]], ids=str)
def test_the_budget_holds_after_every_forward(
    policy: Policy, model: Any, sizes: list[int], sinks: int
) -> None:
    with cached(policy, model, sinks=sinks) as cache:
        budget = cache.budget_tokens
        assert budget is not None, (
            "the policy says bounded=False, which only `full` may: nothing is ever evicted"
        )
        start, bytes_when_full = 0, set()
        for chunk in (
            IDS[:1].split(sizes[0], 1) if len(sizes) == 1 else [IDS[:1, :30], *IDS[:1, 30:].split(1, 1)]
        ):
            feed(model, cache, chunk, [chunk.shape[1]])
            start += chunk.shape[1]
            most = min(start, budget) * 2 * len(cache.bounded_layers)
            assert held(cache) <= most, (
                f"{held(cache)} entries are held after {start} tokens, {most} are allowed over all layers and heads: look at "
                "layer_budget() and share()"
            )
            if start > min(2 * budget, TEXT - 2):
                bytes_when_full.add(cache.nbytes())
        most = budget * 2 * len(cache.bounded_layers)
        assert held(cache) == most, (
            f"a full cache uses its whole budget, {most} entries over all layers and heads; {held(cache)} are held: look at "
            "layer_budget() and share()"
        )
        assert bytes_when_full == {cache.footprint.bytes_of(budget)}, (
            f"a full cache has {cache.footprint.bytes_of(budget)} bytes after every forward, not {sorted(bytes_when_full)}"
        )


def first_pinned(cache: BoundedCache) -> int:
    """How many first tokens it pins: these tests never leave that to a prompt."""
    assert isinstance(cache.sinks, int)
    return cache.sinks


def test_pins_hold(policy: Policy, model: Any) -> None:
    with cached(policy, model, sinks=2, pins=PINS) as cache:
        feed(model, cache, IDS[:1], [25, 5, 1])
        pins = {*range(first_pinned(cache)), *(index for span in PINS for index in range(*span))}
        for layer, heads in enumerate(entries(cache)):
            for head, kept in enumerate(heads):
                where = f"layer {layer}, KV head {head} keeps {kept}"
                assert pins <= set(kept), f"{where}, without the pins {sorted(pins - set(kept))}"
                assert kept == sorted(set(kept)), f"{where}: an entry twice, or out of order"


def test_room_for_one_unpinned_entry_is_enough(policy: Policy, model: Any) -> None:
    """Beside the pins one entry a head is held, on average; which one, and whether it ever changes, is the policy's."""
    with cached(policy, model, room=1) as cache:
        logits = feed(model, cache, IDS[:1], [20, 1])
        assert torch.isfinite(logits).all(), (
            "some logits are not finite numbers with room for one unpinned entry"
        )
        assert cache.seen == TEXT
        loose = [
            [[i for i in head if i >= first_pinned(cache)] for head in layer] for layer in entries(cache)
        ]
        count, heads = sum(len(head) for layer in loose for head in layer), sum(map(len, loose))
        assert count == heads, (
            f"{count} unpinned entries are held where there is room for one in each of {heads} heads: {loose}"
        )


def test_below_the_budget_nothing_is_lost(policy: Policy, model: Any) -> None:
    with torch.no_grad(), cached(policy, model, room=2 * TEXT) as cache:
        budget = cache.budget_tokens or 0
        least = min(policy.layer_budget(layer, 2, budget, first_pinned(cache)) for layer in range(2))
        ids = IDS[:, : min(TEXT, least)]
        same_logits(
            feed(model, cache, ids, [7]),
            model(ids).logits,
            f"{ids.shape[1]} tokens fit into every layer, and the model predicts otherwise than without a cache",
        )


def test_a_choice_depends_on_nothing_else(policy: Policy, model: Any) -> None:
    """The same text chooses the same entries again, beside other rows, and beside another cache."""
    with cached(policy, model) as alone, cached(policy, model) as among:
        first = feed(model, alone, IDS[:1], [25, 5, 1])
        rows = feed(model, among, IDS, [25, 5, 1])
        kept = entries(alone)
        why = (
            "a row alone and beside other rows chooses differently: keep() or scores() mixes rows (something over dim 0, or "
            "without a dim), draws at random, or remembers"
        )
        same_entries(entries(among, row=0), kept, why)
        same_logits(rows[:1], first, why)
        alone.reset()
        again = feed(model, alone, IDS[:1], [25, 5, 1])
        why = "the same text a second time chooses differently: keep() draws at random, or remembers earlier calls"
        same_entries(entries(alone), kept, why)
        same_logits(again, first, why, within=0)


def test_padding_neither_gives_nor_receives(policy: Policy, model: Any) -> None:
    pads = 9
    ids = torch.cat((torch.zeros(1, pads, dtype=torch.int64), IDS[:1, pads:]), dim=1)
    mask = (torch.arange(TEXT) >= pads).long()
    both, masks = torch.cat((ids, IDS[1:2])), torch.stack((mask, torch.ones_like(mask)))
    with cached(policy, model) as alone, cached(policy, model) as padded:
        single = feed(model, alone, IDS[:1, pads:], [30 - pads, 1])
        batch = feed(model, padded, both, [30, 1], masks)
        why = (
            f"a row with {pads} pads on its left chooses differently from the same row without: keep() goes by something "
            "other than the view's origins and seen, or remembers"
        )
        same_entries(entries(padded, row=0), entries(alone), why)
        same_logits(batch[:1, pads:], single, why)


def test_rows_move_whole(policy: Policy, model: Any) -> None:
    order = torch.tensor([2, 0, 0])
    with cached(policy, model) as moved, cached(policy, model) as direct:
        feed(model, moved, IDS[:, :40], [25, 5, 1])
        moved.reorder_cache(order)
        feed(model, direct, IDS[order][:, :40], [25, 5, 1])
        rest = IDS[order][:, 40:]
        same_logits(
            feed(model, moved, rest, [1]),
            feed(model, direct, rest, [1]),
            "rows that were moved (as beam search does) go on differently from rows that always stood there: keep() goes by "
            "the row's number, or remembers",
        )


def test_what_is_taken_back_leaves_no_trace(policy: Policy, model: Any) -> None:
    with cached(policy, model) as cache, cached(policy, model) as plain:
        feed(model, cache, IDS[:1, :30], [30])
        feed(model, plain, IDS[:1, :30], [30])
        cache.activate_past_recording()
        feed(model, cache, torch.cat((IDS[:1, 30:32], IDS[1:2, :3]), dim=1), [5])
        cache.crop(-3)
        feed(model, plain, IDS[:1, 30:32], [2])
        why = "three tokens that were taken back changed what is kept: keep() remembers, or counts its calls"
        same_entries(entries(cache), entries(plain), why)


def test_a_copy_and_a_saved_cache_go_on_alike(policy: Policy, model: Any, tmp_path: Path) -> None:
    with cached(policy, model) as cache:
        feed(model, cache, IDS[:1, :40], [25, 5, 1])
        cache.save(tmp_path / "cache")
        twins = {
            "a deep copy": copy.deepcopy(cache),
            "a saved and loaded cache": BoundedCache.load(tmp_path / "cache", model, policy),
        }
        wanted = feed(model, cache, IDS[:1, 40:], [1])
        for what, twin in twins.items():
            why = f"{what} goes on differently: keep() draws at random, or remembers what is not in the policy's fields"
            same_logits(feed(model, twin, IDS[:1, 40:], [1]), wanted, why, within=0)
            twin.close()


def test_generate(policy: Policy, model: Any) -> None:
    options = {"max_new_tokens": 30, "min_new_tokens": 30, "do_sample": False}
    with cached(policy, model) as cache, cached(policy, model) as again:
        one = model.generate(IDS[:1, :20], **{CACHE_KEYWORD: cache}, **options)
        two = model.generate(IDS[:1, :20], **{CACHE_KEYWORD: again}, prompt_lookup_num_tokens=3, **options)
        assert one.shape == (1, 50), f"generate was to make 20 + 30 tokens, and made {list(one.shape)}"
        assert cache.seen == 49, f"the cache saw {cache.seen} of the 49 tokens that were fed"
        if policy.kind == "position":  # others choose after each forward, and lookup makes other forwards
            assert torch.equal(one, two), "prompt lookup generates otherwise than plain decoding"
