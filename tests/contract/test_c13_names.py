"""C13: honest names. A policy says where it differs from its paper, and a result records what it depends on."""

import importlib
import subprocess
import sys

import pytest
import torch

import families
from contract.cells import BOUNDED, POLICIES, every_policy, feed, own_notes, splitmix
from sinkpin import policies


def test_the_suite_knows_every_policy():
    """A policy without a line in `cells.POLICIES` would never meet the contract."""
    assert {cell.name for cell in POLICIES.values()} == set(policies.names())


@every_policy()
def test_policies_explain_themselves(policy):
    """Each policy's module says what it is, in words; a paper is named where there is one."""
    with policy.cache(families.build()) as cache:
        chosen = cache.policy
    module = importlib.import_module(type(chosen).__module__)
    assert module.__doc__
    assert len(module.__doc__) > 60
    assert type(chosen).__doc__


@every_policy()
def test_frames(policy):
    """The default frame is the documented one, the caller's choice wins, and either is on record."""
    model = families.build()
    with policy.cache(model) as cache:
        assert cache.frame == policy.frame
    for frame in ("slots", "original"):
        with policy.cache(model, frame=frame) as cache:
            assert cache.frame == frame


@every_policy(*BOUNDED)
def test_a_default_that_gives_way_is_noted(policy):
    """A share that rounds below pins + 1 leaves a note with the numbers; one that does not, leaves none. A policy may
    have its own to say."""
    model = families.build()
    with policy.cache(model, budget="10%", sinks=4) as cache:
        feed(model, cache, families.tokens(20))
        assert any("5" in note and "4" in note for note in own_notes(policy, cache)), cache.notes
    with policy.cache(model, budget="50%", sinks=4) as cache:
        feed(model, cache, families.tokens(20))
        assert not own_notes(policy, cache)


def test_streaming_is_window_with_a_sink():
    """`streaming` and `window` with the same sinks are one thing: equal logits and origins."""
    model = families.build()
    ids = families.tokens(40)
    with POLICIES["streaming"].cache(model, sinks=2) as a, POLICIES["window"].cache(model, sinks=2) as b:
        assert torch.equal(feed(model, a, ids), feed(model, b, ids))
        assert torch.equal(a.origins(1), b.origins(1))


def test_random_is_the_documented_hash():
    """The tensor hash equals the docstring's formula in Python integers, for negative and large seeds too.

    Kills: an arithmetic shift where the formula's is logical.
    """
    hashes = importlib.import_module("sinkpin.policies.random").hashes
    index = torch.tensor([0, 1, 2, 63, 10**6, 2**40])
    for seed in (0, 1, 3, -7, 2**31, 2**63 - 1):
        wanted = splitmix(seed)
        for layer in (0, 5, 79):
            for head in (0, 7):
                got = hashes(seed, layer, torch.tensor(head), index)
                assert got.tolist() == [wanted(layer, head, i) for i in index.tolist()]


@pytest.mark.parametrize("module", ["sinkpin", "sinkpin.policies"])
def test_import_is_light(module):
    """`import sinkpin` brings neither torch nor transformers."""
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
