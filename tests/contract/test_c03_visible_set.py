"""C3: which keys a query sees. Position policies: by indices alone, however the text is cut. Scored policies:
everything kept plus the chunk itself, causally; eviction comes after.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import families
from contract.cells import (
    BOUNDED,
    BUDGET,
    POLICIES,
    assert_close,
    every_cell,
    every_policy,
    feed,
    feed_and_see,
    feed_in,
    generate,
    origins,
)
from naive import dense
from naive.streaming import pinned, visible

SPANS = ((9, 11), (25, 28))


@every_cell("position", "full", where=lambda family: family.loops, chunk=[7, 1, 3, 60])
def test_position_policies_do_not_see_the_chunk(policy, family, chunk):
    """Chunks of 1, 3, 7 and all 60 tokens equal the naive token-by-token loop to 1e-4.

    Kills: the chunk's own early tokens seen beyond their window; pins counted before they are met; a query
    placed at the chunk's last rank instead of its own.
    """
    model = families.build(family)
    ids = families.tokens(60)
    with policy.cache(model, budget=11) as cache:
        got = feed_in(model, cache, ids, chunk)
        wanted, kept = policy.naive(model, ids[0], [60], budget=11)
        assert_close(got[0], wanted, 1e-4)
        for layer in range(2):
            for head in range(cache.origins(layer).shape[1]):
                assert origins(cache, layer, head=head) == kept


@every_cell(
    "scored",
    where=lambda family: family.loops,
    sizes={"odd": [33, 1, 1, 25], "all": [60], "by1": [1] * 60, "by7": [7] * 8 + [4]},
)
def test_scored_policies_see_the_kept_and_the_chunk(policy, family, sizes):
    """The chunked naive loop, logits and every head's origins.

    Kills: evicting before attention; one head's choice applied to all; a query that sees its chunk's future.
    """
    model = families.build(family)
    ids = families.tokens(60)
    with policy.cache(model, budget=11) as cache:
        got = feed_in(model, cache, ids, sizes)
        wanted, kept = policy.naive(model, ids[0], sizes, budget=11)
        assert_close(got[0], wanted, 1e-4)
        for layer, heads in enumerate(kept):
            for head, mine in enumerate(heads):
                assert origins(cache, layer, head=head) == mine


@every_cell(sizes={"odd": [33, 1, 1, 25], "all": [60], "by7": [7] * 8 + [4]})
def test_every_family_attends_to_what_it_should(policy, family, sizes):
    """In every layer and head the logits are those of an eager forward whose masks show what that head may see: for
    position policies by their rule, for others what the cache said it held, causally; in sliding layers their window.

    Kills: whatever a family adds to its scores (cap, biases, learned sinks) left out or added twice; a budget on a
    sliding layer; the entries of one head or layer shown to another.
    """
    model, reference = families.build(family), families.build(family, attention="eager")
    ids = families.tokens(60)
    sliding = families.windows(model)
    with policy.cache(model, budget=BUDGET, frame="original") as cache:
        got, masks = feed_and_see(policy, model, cache, ids, sizes, sliding)
    assert_close(got[0], dense.masked_layers(reference, ids[0], masks), 1e-4)


@every_policy(*BOUNDED)
@pytest.mark.parametrize("frame", ["slots", "original"])
@pytest.mark.parametrize("spans", [(), SPANS, ((0, 3), (58, 60))], ids=["none", "middle", "edges"])
def test_spans_and_frames(policy, frame, spans):
    """Pins in the middle of the text and at its ends, in both frames, with an odd budget.

    Kills: pins treated as a prefix; the window's start moved by pins that are still to come; ranks computed
    without the pins that were met.
    """
    model = families.build()
    ids = families.tokens(60)
    sizes = [13, 5, 30, 1, 1, 10]
    with policy.cache(model, budget=13, pins=list(spans), frame=frame) as cache:
        assert cache.frame == frame
        got = feed_in(model, cache, ids, sizes)
        wanted, kept = policy.naive(model, ids[0], sizes, budget=13, spans=spans, frame=frame)
        assert_close(got[0], wanted, 1e-4)
        mine = origins(cache)
        assert mine == (kept if policy.kind == "position" else kept[0][0])
        assert pinned(policy.sinks, spans) <= set(mine)


@every_policy(*BOUNDED)
def test_pins_of_each_row(policy):
    """One list of spans per row: each row equals itself alone with its own list. (Layers are allotted their budgets
    once, beside as many pins as the row with most of them has.)

    Kills: row 0's pins applied to all rows; a room computed from the largest row.
    """
    model = families.build()
    ids = families.tokens(50, rows=3)
    lists = [[(10, 14)], [], [(5, 6), (30, 32)]]
    sizes = [20, 20, 1, 9]
    with policy.cache(model, budget=13, pins=lists) as cache:
        got = feed_in(model, cache, ids, sizes)
        for row, spans in enumerate(lists):
            most = policy.sinks + 4
            wanted, kept = policy.naive(model, ids[row], sizes, budget=13, spans=tuple(spans), most=most)
            assert_close(got[row], wanted, 1e-4, f"row {row}")
            assert origins(cache, row=row) == (kept if policy.kind == "position" else kept[0][0])


@pytest.mark.parametrize("chunk", [1, 3, 7, 64], ids=lambda n: f"by{n}")
@pytest.mark.parametrize("sinks", [0, 1, 4])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_visible_sets_read_off(sinks, chunk, attention):
    """Case 6: an x-ray model shows what each query of each head and layer saw, from W-1 over W and W+1 to 2W on.

    Kills: off by one at exactly the budget, on both sides; sdpa's top-left causal mask.
    """
    model = families.xray(64, attention=attention)
    ids = torch.randperm(64, generator=torch.Generator().manual_seed(1))[None]
    with POLICIES["window"].cache(model, budget=16, sinks=sinks) as cache, families.Xray(model) as shot:
        feed_in(model, cache, ids, chunk)
    for layer in range(2):
        for head in range(4):
            for t, saw in enumerate(shot.seen_by(layer, head=head)):
                wanted = sorted(ids[0, visible(t, 16, pinned(sinks))].tolist())
                assert saw == wanted, f"layer {layer}, head {head}, query {t}"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_budget_any_pins_any_chunks(data):
    """Property: the visible set depends on indices alone, for all budgets, pins, lengths and ways to cut the text."""
    length = data.draw(st.integers(1, 64), label="length")
    sinks = data.draw(st.integers(0, 5), label="sinks")
    spans = data.draw(
        st.lists(
            st.tuples(st.integers(0, 60), st.integers(1, 4)).map(lambda s: (s[0], s[0] + s[1])), max_size=3
        ),
        label="spans",
    )
    pins = pinned(sinks, spans)
    budget = len(pins) + data.draw(st.integers(1, 20), label="room")
    sizes, left = [], length
    while left:
        sizes.append(data.draw(st.integers(1, left), label="chunk"))
        left -= sizes[-1]
    model = families.xray(64)
    ids = torch.randperm(64, generator=torch.Generator().manual_seed(length))[None, :length]
    with (
        POLICIES["window"].cache(model, budget=budget, sinks=sinks, pins=spans) as cache,
        families.Xray(model) as shot,
    ):
        feed_in(model, cache, ids, sizes)
        assert origins(cache) == visible(length - 1, budget, pins)
    for t, saw in enumerate(shot.seen_by(1, head=3)):
        assert saw == sorted(ids[0, visible(t, budget, pins)].tolist()), f"query {t}"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_cut_gives_the_same_logits(data):
    """Property: the same, through real attention and rotation, against the naive loop, spans in mid-text included.

    Kills: a pin's distance that stops growing one token early or late, or forgets the pins between.
    """
    length = data.draw(st.integers(2, 48), label="length")
    sinks = data.draw(st.integers(0, 4), label="sinks")
    spans = data.draw(
        st.lists(
            st.tuples(st.integers(0, 40), st.integers(1, 3)).map(lambda s: (s[0], s[0] + s[1])), max_size=2
        ),
        label="spans",
    )
    budget = len(pinned(sinks, spans)) + data.draw(st.integers(1, 14), label="room")
    frame = data.draw(st.sampled_from(["slots", "original"]), label="frame")
    size = data.draw(st.integers(1, length), label="chunk")
    model = families.build()
    ids = families.tokens(length, seed=length)
    cell = POLICIES["window"]
    with cell.cache(model, budget=budget, sinks=sinks, pins=spans, frame=frame) as cache:
        got = feed_in(model, cache, ids, size)
    wanted, _ = cell.naive(model, ids[0], [], budget=budget, sinks=sinks, spans=tuple(spans), frame=frame)
    assert_close(got[0], wanted, 1e-4)


def test_random_keeps_the_same_whatever_the_chunks():
    """The kept set of `random` is independent of chunks, of the row's place in a batch and of its neighbours.

    Kills: a generator with state; a hash of the slot instead of the index.
    """
    policy, model = POLICIES["random"], families.build()
    ids = families.tokens(50, rows=3)
    results = []
    for sizes in ([50], [1] * 50, [20, 30]):
        with policy.cache(model) as cache:
            feed_in(model, cache, ids, sizes)
            results.append([cache.origins(layer) for layer in range(2)])
    with policy.cache(model) as cache:
        feed_in(model, cache, ids[1:2], 9)
        alone = [cache.origins(layer) for layer in range(2)]
    for layer in range(2):
        assert torch.equal(results[0][layer], results[1][layer])
        assert torch.equal(results[0][layer], results[2][layer])
        for row in range(3):
            assert torch.equal(results[0][layer][row], alone[layer][0])
    assert not torch.equal(alone[0], alone[1]), "another choice in each layer"
    assert not torch.equal(alone[0][:, 0], alone[0][:, 1]), "and in each head"


@every_policy("position")
def test_generate_past_the_budget(policy):
    """Greedy `generate` to five times the budget equals greedy decoding by the naive loop.

    Kills: `generate` slicing its input by kept instead of seen; absolute position ids leaking into ranks.
    """
    model = families.build()
    ids = families.tokens(20)
    with policy.cache(model, budget=10) as cache:
        got = generate(model, cache, ids, 30)
        assert cache.seen == 49
        assert cache.kept() == 10
    logits, _ = policy.naive(model, got[0, :-1], [], budget=10)
    assert torch.equal(got[0, 20:], logits[19:].argmax(-1))


@every_policy("position")
def test_a_long_chunk_is_not_quadratic(policy):
    """A chunk is computed in blocks, never as T x T: 8,192 tokens at budget 16 stay far below T x T scores.

    Kills: materialising the whole score matrix (8192^2 fp32 scores of one head are 268 MB).
    """
    model = families.build(layers=1, positions=16384)
    ids = families.tokens(8192)
    largest = 0
    original = torch.softmax

    def spy(x, *args, **more):
        nonlocal largest
        largest = max(largest, x.numel())
        return original(x, *args, **more)

    with pytest.MonkeyPatch.context() as patch, policy.cache(model, budget=16) as cache:
        patch.setattr(torch, "softmax", spy)
        with torch.profiler.profile(profile_memory=True) as profile:
            feed(model, cache, ids, logits_to_keep=1)
    biggest = max(event.self_cpu_memory_usage for event in profile.events())
    assert max(biggest, 4 * largest) < 8192 * 8192, f"{biggest} bytes in one piece"
