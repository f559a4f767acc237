"""C10: in hybrid models each kind of layer keeps its own visible set, and the budget is that of the full layers."""

import pytest
import torch

import families
from contract.cells import (
    BUDGET,
    CACHE,
    POLICIES,
    assert_close,
    dynamic,
    every_cell,
    feed,
    feed_and_see,
    feed_in,
    generate,
    origins,
    owned,
)
from naive import dense

HYBRID = [name for name, family in families.FAMILIES.items() if family.sliding]
CHUNKS = {"odd": [33, 1, 1, 25], "by1": [1] * 60, "by7": [7] * 8 + [4], "all": [60]}


def hybrid_cells(*kinds, **axes):
    return every_cell(*kinds, where=lambda family: family.sliding, **axes)


def test_there_are_hybrid_families():
    """Kills: a list that is empty, so that nothing below runs."""
    assert {"gemma2", "gemma3", "gpt_oss", "cohere2"} <= set(HYBRID)


@hybrid_cells(sizes=CHUNKS)
@pytest.mark.parametrize("window", [5, 20], ids=["narrower", "wider"])
def test_each_layer_has_its_own_visible_set(policy, family, window, sizes):
    """Four layers, sliding windows below and above the budget: the logits are those of an eager forward with one 4-D
    mask a layer, whatever the chunks; and a sliding layer holds its window, no more.

    Kills: the budget on sliding layers; the pins seen from sliding layers; a sliding window one too wide, or forgotten
    in decode; sliding layers that are not rotated, or rotated with the base of the full ones.
    """
    model = families.build(family, layers=4, sliding_window=window)
    reference = families.build(family, layers=4, sliding_window=window, attention="eager")
    ids = families.tokens(60)
    sliding = families.windows(model)
    assert sliding == [None, window, None, window]
    with policy.cache(model, frame="original") as cache:
        got, masks = feed_and_see(policy, model, cache, ids, sizes, sliding)
        assert_close(got[0], dense.masked_layers(reference, ids[0], masks), 1e-4)
        assert cache.bounded_layers == [0, 2]
        for layer in (1, 3):
            assert origins(cache, layer) == list(range(60 - window, 60))
        held = [(cache.origins(layer)[0] >= 0).sum(-1).float().mean() for layer in (0, 2)]
        assert sum(held) / 2 == (BUDGET if policy.bounded else 60), (
            "on average over the full layers and their heads"
        )


@hybrid_cells("position")
@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
def test_ranks_in_full_layers_leave_sliding_ones_alone(policy, family, sizes):
    """Frame `slots`: whatever the chunks, logits are those of the token-by-token run; and what reaches the second layer
    of a text below the budget is what its own cache makes of it.

    Kills: ranks of the full layers' pool used for the sliding ones.
    """
    model = families.build(family, layers=4, sliding_window=5)
    ids = families.tokens(60)
    with policy.cache(model, frame="slots") as cache, policy.cache(model, frame="slots") as single:
        got = feed_in(model, cache, ids, sizes)
        assert_close(got, feed_in(model, single, ids, 1), 1e-4)
    roomy = model_first_layers(model, ids)
    with policy.cache(model, budget=80, frame="slots") as cache:
        feed_in(model, cache, ids, sizes)
        assert_close(cache.layers[1].values[:, :, -4:], roomy[:, :, -4:], 1e-4, "values of the sliding layer")


@torch.no_grad()
def model_first_layers(model, ids):
    """The values that the second layer, a sliding one, is given in a forward of the model's own."""
    cache = dynamic(model)
    model(ids, **{CACHE: cache})
    return cache.layers[1].values


@hybrid_cells()
def test_left_padded_rows_are_themselves(policy, family):
    """Rows of 25 and 9 tokens past every window and the budget: each is as it is alone.

    Kills: a sliding window counted in columns instead of the row's tokens.
    """
    model = families.build(family, layers=4, sliding_window=5)
    rows = [families.tokens(25)[0], families.tokens(9, seed=1)[0]]
    ids, mask = families.pad_left(rows)
    more = families.tokens(8, rows=2, seed=2)
    ids, mask = torch.cat([ids, more], 1), torch.cat([mask, torch.ones_like(more)], 1)
    with policy.cache(model) as cache:
        got = feed_in(model, cache, ids, [25, 1, 1, 6], mask)
    for row, own in enumerate(rows):
        with policy.cache(model) as alone:
            wanted = feed_in(model, alone, torch.cat([own, more[row]])[None], [len(own), 1, 1, 6])[0]
        assert_close(got[row, 25 - len(own) :], wanted, 1e-4, f"row {row}")


@hybrid_cells()
def test_generate_below_the_budget(policy, family):
    """Past the sliding window and below the budget `generate` gives DynamicCache's tokens, greedy and by beams."""
    model = families.build(family, layers=4, sliding_window=5)
    ids = families.tokens(12)
    for options in ({}, {"num_beams": 2}):
        wanted = generate(model, dynamic(model), ids, 20, **options)
        with policy.cache(model, budget=60) as cache:
            assert torch.equal(generate(model, cache, ids, 20, **options), wanted)


@hybrid_cells("position", "scored", "prompt")
def test_bytes_count_the_windows(policy, family):
    """Once full, bytes are constant and the storages', sliding layers included."""
    model = families.build(family, layers=4, sliding_window=5)
    with policy.cache(model) as cache:
        feed(model, cache, families.tokens(60))
        full = cache.nbytes()
        assert full == owned(cache)
        feed_in(model, cache, families.tokens(40, seed=1), 1)
        assert cache.nbytes() == owned(cache) == full


def test_all_layers_sliding_is_refused():
    """There is no layer for a budget: said at construction, with the window and what to do."""
    config = families.REFUSED["mistral, all layers sliding"][0](**families.fields_of())
    model = families.from_config(config)
    with pytest.raises(ValueError, match=r"sliding window of 8 .*sliding_window=None"):
        POLICIES["streaming"].cache(model)
