"""C4: where a kept key stands. Raw keys are rotated once, to their rank (`slots`) or index (`original`)."""

import pytest
import torch

import families
from contract.cells import (
    BOUNDED,
    BUDGET,
    ONE_OF_A_KIND,
    POLICIES,
    assert_close,
    every_cell,
    every_policy,
    feed,
    feed_in,
    origins,
)
from naive import dense
from naive.streaming import pinned, visible

LOOPS = [name for name, family in families.FAMILIES.items() if family.loops]
KINDS = [(name, kind) for name in LOOPS for kind in families.FAMILIES[name].rope_kinds]


def rotary_cells():
    """Every bounded policy on every rotary kind; in the ordinary run all on one, and one of each kind on all."""
    cells = []
    for name, cell in POLICIES.items():
        for family, kind in KINDS if cell.bounded else ():
            everyday = (family, kind) == ("llama", "default") or name in ONE_OF_A_KIND
            marks = () if everyday else (pytest.mark.slow,)
            cells.append(pytest.param(cell, family, kind, marks=marks, id=f"{name}-{family}-{kind}"))
    return pytest.mark.parametrize(("policy", "family", "kind"), cells)


@rotary_cells()
@pytest.mark.parametrize("frame", ["slots", "original"])
def test_every_rotary_kind(policy, family, kind, frame):
    """All rotary kinds in both frames equal the naive loop, which uses the model's own rotary module.

    Lengths stay below the original one: beyond it dynamic and longrope depend on the call.
    Kills: `attention_scaling` twice (YaRN); rotary applied to the pass-through half of a partial head; inverse
    frequencies taken from the config's base instead of the module.
    """
    model = families.build(family, rope_kind=kind, positions=64)
    ids = families.tokens(50)
    sizes = [20, 1, 1, 28]
    with policy.cache(model, budget=14, frame=frame) as cache:
        got = feed_in(model, cache, ids, sizes)
    wanted, _ = policy.naive(model, ids[0], sizes, budget=14, frame=frame)
    assert_close(got[0], wanted, 1e-4)


@every_cell("position", where=lambda family: family.slots, chunk=[7, 1])
def test_ranks_in_every_family(policy, family, chunk):
    """One layer of any family: the logits at each token are those of an ordinary forward on what it sees, at ranks.

    Kills: a family's rotation or bias that goes by the index in the text; interleaved or partial rotation done plainly.
    """
    model = families.build(family, layers=1)
    ids = families.tokens(50)
    with policy.cache(model, frame="slots") as cache:
        got = feed_in(model, cache, ids, chunk)[0]
    for t in range(50):
        seen = ids[0, visible(t, BUDGET, pinned(policy.sinks))]
        assert_close(got[t], dense.plain(model, seen)[-1], 1e-4, f"token {t}")


@every_policy(*BOUNDED)
@pytest.mark.parametrize("frame", ["slots", "original"])
@pytest.mark.parametrize("kind", ["default", pytest.param("yarn", marks=pytest.mark.slow)])
def test_one_layer_oracle(policy, frame, kind):
    """Case 1: prompt 41 into 4 + 10, then decode to three times the budget; each step is a plain forward on what
    is kept, at ranks 0...13 or at its indices. This oracle shares no code with the naive loops.

    Kills: a query one rank too far; slots and indices mixed (wrong by about 1.0, where right is 1e-6).
    """
    model = families.build(layers=1, kv_heads=1, rope_kind=kind)
    ids = families.tokens(41 + 42)
    with policy.cache(model, budget=14, frame=frame) as cache:
        feed(model, cache, ids[:, :41])
        for t in range(41, ids.shape[1]):
            held = origins(cache)
            # A position policy's query sees `budget` entries, itself included; a scored one all that is kept.
            seen = visible(t, 14, pinned(policy.sinks))[:-1] if policy.kind == "position" else held
            got = feed(model, cache, ids[:, t : t + 1])
            assert set(seen) <= set(held)
            wanted = dense.one_layer(model, ids[0], seen, [t], frame=frame)
            assert_close(got[0], wanted, 1e-4, f"step {t}")


@pytest.mark.parametrize("policy", [POLICIES["window"], POLICIES["streaming"]], ids=["window", "streaming"])
def test_original_frame_is_a_masked_dense_forward(policy):
    """In the `original` frame a position policy is one dense forward with a banded mask, in every layer.

    Kills: an `original` frame that still moves the query, in deep models too.
    """
    model = families.build(layers=3)
    ids = families.tokens(60)
    allowed = torch.zeros(60, 60, dtype=torch.bool)
    for t in range(60):
        allowed[t, visible(t, 12, pinned(policy.sinks))] = True
    with policy.cache(model, frame="original") as cache:
        got = feed_in(model, cache, ids, 7)
    assert_close(got[0], dense.masked(model, ids[0], allowed), 1e-4)


@rotary_cells()
def test_an_endless_stream(policy, family, kind):
    """Case 3: 500 tokens through a model of 64 positions in `slots`: finite, and the step at 500 is the step of
    ranks below the budget (the naive loop, run on the last stretch only for one layer, is the proof).

    Kills: a rank that grows with seen; a frequency table that ends at 64; dynamic frequencies chosen by seen.
    """
    model = families.build(family, rope_kind=kind, positions=64, layers=1, kv_heads=1)
    ids = families.tokens(500)
    with policy.cache(model, budget=16, frame="slots") as cache:
        got = feed_in(model, cache, ids, [64, 1, 1, 100, *[1] * 30, 300, 3, 1])
        assert torch.isfinite(got).all()
        held = origins(cache)
    if policy.kind == "position":
        wanted = dense.one_layer(model, ids[0], held[:-1], [499], frame="slots")
        assert_close(got[0, -1:], wanted, 1e-4)


@every_policy(*BOUNDED)
def test_original_past_the_trained_length_is_noted(policy):
    """`original` beyond the trained positions runs, with a note that names the length.

    Kills: a silent run into untrained positions.
    """
    model = families.build(positions=64)
    with policy.cache(model, frame="original") as cache:
        feed_in(model, cache, families.tokens(60), 20)
        assert not any("64" in note for note in cache.notes)
        assert torch.isfinite(feed_in(model, cache, families.tokens(40), 10)).all()
        assert any("64" in note for note in cache.notes)


@every_policy("position")
def test_bf16_keys_are_not_rotated_again_and_again(policy):
    """After 400 single steps in bf16 the next logits are those of one dense forward on what is kept.

    Kills: rotating cached keys in place by one step each time: 5 % off after 100 shifts, 52 % after 1,000.
    """
    model = families.build(layers=1, kv_heads=1, dtype=torch.bfloat16)
    ids = families.tokens(401)
    with policy.cache(model, budget=32) as cache:
        for t in range(401):
            got = feed(model, cache, ids[:, t : t + 1])
        held = origins(cache)
    wanted = dense.one_layer(model, ids[0], held[:-1], [400], frame="slots")
    error = (got[0].float() - wanted.float()).norm() / wanted.float().norm()
    assert error < 0.02, f"relative error {error:.3f}"


@every_policy(*BOUNDED)
def test_the_rotary_module_is_left_as_it_was(policy):
    """Streaming does not grow a dynamic model's frequencies behind its back.

    Kills: asking the model's rotary module for positions beyond its original length and leaving it so.
    """
    model = families.build(rope_kind="dynamic", positions=64)
    before = model.base_model.rotary_emb.inv_freq.clone()
    with policy.cache(model, frame="slots") as cache:
        feed_in(model, cache, families.tokens(300), 50)
    assert torch.equal(model.base_model.rotary_emb.inv_freq, before)
