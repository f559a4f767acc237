"""C7 where the heads of a layer share one budget (`adakv`): what each keeps is what the plain loop shares out, set for
set after every forward; and what is not kept is not stored.
"""

from itertools import product

import pytest
import torch

import families
from contract.cells import assert_close, feed, origins, owned
from naive import evidence
from naive.adakv import adakv_choice, of_expected, of_h2o, of_snapkv
from naive.streaming import pinned
from sinkpin import BoundedCache

TOKENS = 75
BASES = {"h2o": of_h2o, "expected": of_expected, "snapkv": of_snapkv}
SIZES = {
    "by1": [1] * TOKENS,
    "by7": [7] * 10 + [5],
    "odd": [37, 1, 1, 13, 1, 2, 1, 11, 8],
    "decode": [31, *[1] * 44],
}
PINS = {"pins0": (0, ()), "pins4": (4, ()), "spans": (0, ((9, 12), (40, 43)))}
# The rest of the product is in the long run.
EVERYDAY = {
    ("original", "pins4", "odd"),
    ("original", "spans", "decode"),
    ("original", "pins0", "by7"),
    ("slots", "spans", "odd"),
}


def cases():
    for frame, pins, sizes in product(("original", "slots"), PINS, SIZES):
        marks = () if (frame, pins, sizes) in EVERYDAY else (pytest.mark.slow,)
        yield pytest.param(frame, pins, sizes, marks=marks, id=f"{frame}-{pins}-{sizes}")


def compare(base, model, ids, sizes, *, budget, sinks=4, spans=(), frame="original", alpha=0.2):
    """Feed a cache, noting what every layer and head holds after each forward; then the plain loop must agree."""
    layers = range(model.config.num_hidden_layers)
    history, got, start = [], [], 0
    given = {"policy": "adakv", "base": base, "alpha": alpha, "budget": budget, "sinks": sinks}
    with BoundedCache(model, pins=list(spans), frame=frame, **given) as cache:
        for size in sizes:
            got.append(feed(model, cache, ids[:, start : start + size]))
            start += size
            heads = range(cache.origins().shape[1])
            history.append([[origins(cache, layer, head=head) for head in heads] for layer in layers])
    choose = adakv_choice(budget, pinned(sinks, spans), score=BASES[base], alpha=alpha, once=base == "snapkv")
    wanted = evidence.walk(model, ids[0], sizes, choose, frame=frame, follow=history)
    assert wanted.near_ties <= 2, f"{wanted.near_ties} near-ties in one run are no chance"
    assert_close(torch.cat(got, 1)[0], wanted.logits, 1e-4)
    return wanted


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("frame", "pins", "sizes"), list(cases()))
def test_chosen_set_for_chosen_set(base, frame, pins, sizes):
    """Prefill and decode, an odd budget.

    Kills: the same number for every head; a total that is not the budget's; a head whose empty slots are attended to,
    scored, or counted as candidates; evidence that stays with the slot when its entry moves.
    """
    model, ids, (sinks, spans) = families.build(), families.tokens(TOKENS), PINS[pins]
    wanted = compare(base, model, ids, SIZES[sizes], budget=19, sinks=sinks, spans=spans, frame=frame)
    floor = len(pinned(sinks, spans))
    for heads in wanted.origins:
        assert sum(map(len, heads)) == 2 * 19
        assert all(pinned(sinks, spans) <= set(head) and len(head) > floor for head in heads)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    ("kv_heads", "alpha", "budget"),
    [
        case
        if case in {(1, 0.5, 7), (4, 0.0, 24), (4, 0.5, 24), (4, 0.5, 5), (4, 1.0, 24)}
        else pytest.param(*case, marks=pytest.mark.slow)
        for case in product([1, 4], [0.0, 0.5, 1.0], [5, 7, 24])
    ],
)
def test_heads_floors_and_budgets(base, kv_heads, alpha, budget):
    """One head, which shares with none, and four; a floor of nothing, and one that leaves nothing to share."""
    model, ids = families.build(kv_heads=kv_heads), families.tokens(61, seed=1)
    wanted = compare(base, model, ids, [37, *[1] * 12, 5, 7], budget=budget, alpha=alpha)
    lengths = {len(head) for heads in wanted.origins for head in heads}
    if alpha == 1.0 or kv_heads == 1:
        assert lengths == {budget}
    elif budget == 24:
        assert len(lengths) > 1, "heads that hold equally many would hide an even share"


@pytest.mark.parametrize("base", BASES)
def test_bytes_are_those_of_the_entries(base):
    """Case 10: what a short head does not hold takes no memory: the bytes are the total's, from the first eviction on.

    Kills: heads filled up to the longest one.
    """
    model, ids = families.build(kv_heads=4), families.tokens(400, seed=1)
    sizes = []
    with BoundedCache(model, policy="adakv", base=base, budget=24) as cache:
        feed(model, cache, ids[:, :100])
        for t in range(100, 400, 3):
            feed(model, cache, ids[:, t : t + 3])
            kept = [[len(origins(cache, layer, head=head)) for head in range(4)] for layer in range(2)]
            assert [sum(heads) for heads in kept] == [4 * 24] * 2
            assert cache.nbytes() == owned(cache)
            sizes.append(cache.nbytes())
    assert len(set(sizes)) == 1, f"bytes moved: {sorted(set(sizes))}"
    with BoundedCache(model, policy=base, budget=24) as even:
        feed(model, even, ids[:, :100])
        feed(model, even, ids[:, 100:103])
        assert sizes[0] - even.nbytes() < 200, "more than the counts of heads on top of an even share"


@pytest.mark.parametrize("base", BASES)
def test_each_padded_row_chooses_alone(base):
    """Rows of 40, 17 and 9 tokens in one batch, the last below the budget: each as the loop alone, through decode."""
    model = families.build()
    prompts = [families.tokens(40)[0], families.tokens(17, seed=1)[0], families.tokens(9, seed=5)[0]]
    ids, mask = families.pad_left(prompts)
    steps = families.tokens(14, rows=3, seed=2)
    with BoundedCache(model, policy="adakv", base=base, budget=13) as cache:
        feed(model, cache, ids, mask)
        for t in range(14):
            mask = torch.cat([mask, torch.ones(3, 1).long()], 1)
            feed(model, cache, steps[:, t : t + 1], mask)
        for row, prompt in enumerate(prompts):
            text = torch.cat([prompt, steps[row]])
            choose = adakv_choice(13, pinned(4), score=BASES[base], once=base == "snapkv")
            wanted = evidence.walk(model, text, [len(prompt), *[1] * 14], choose)
            held = [[origins(cache, layer, row, head) for head in range(2)] for layer in range(2)]
            assert held == wanted.origins, f"row {row}"
