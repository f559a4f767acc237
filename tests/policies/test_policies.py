"""The table of policies, and each policy's choice alone (the contract suite sees them inside a cache)."""

import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
import torch

from sinkpin.errors import PolicyError
from sinkpin.policies import names, parse, resolve
from sinkpin.policies.base import Policy, QueryStatistics, View, highest, newest
from sinkpin.policies.random import hashes


@pytest.mark.parametrize("name", names())
def test_every_name_resolves_to_a_frozen_value(name: str) -> None:
    policy = resolve(name)
    assert policy.name == name
    assert policy == resolve(name)
    assert isinstance(hash(policy), int)
    with pytest.raises((FrozenInstanceError, AttributeError)):
        policy.seed = 3  # type: ignore[attr-defined]


def everything(heads: int, window: int) -> View:
    """Nine candidates of two rows, with all the evidence there is."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, heads, 9, 4), torch.randn(2, heads, 9, 4)
    return View(
        layer=1,
        origins=torch.arange(3, 12).expand(2, heads, -1),
        seen=12,
        mass=torch.rand(2, heads, 9),
        recent=torch.randn(2, heads, window, 9).softmax(-1),
        keys=keys,
        rotated_keys=keys.flip(-1),
        values=values,
        queries=QueryStatistics(
            mean=torch.randn(2, 2 * heads, 4),
            covariance=torch.eye(4).expand(2, 2 * heads, -1, -1),
            rotate=lambda x, positions: x,
            positions=torch.full((2, 2 * heads), 11),
            scaling=0.5,
        ),
    )


@pytest.mark.parametrize("name", [n for n in names() if n != "full"])
@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_keeps_distinct_candidates(name: str, n: int) -> None:
    policy = resolve(name)
    heads = 3 if policy.per_head or not policy.needs else 1
    if getattr(policy, "across_heads", False):  # keep() is for one head; several share()
        heads = 1
    kept = policy.keep(everything(heads, max(1, policy.window(n))), n)
    assert kept.shape == (2, heads, n)
    assert kept.dtype == torch.int64
    assert all(len(set(head.tolist())) == n for row in kept for head in row)
    assert kept.min() >= 0
    assert kept.max() <= 8
    if name not in {"tova", "keydiff", "expected"}:  # they say in their docstrings that the newest may go
        assert (kept == 8).any(-1).all(), "the newest entry stays"


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("windwo", "did you mean 'window'"),
        ("h2o2x", "there are"),
        ("random:seed", "not option=value"),
        ("random:", "not option=value"),
        ("random:sed=3", "it has seed"),
        ("window:seed=3", "it has none"),
        ("random:seed=x", "not of type int"),
    ],
)
def test_what_cannot_be_read(written: str, says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        resolve(written)


def test_options_come_from_both_sides_but_once() -> None:
    assert resolve("random:seed=3") == resolve("random", {"seed": 3})
    assert parse("random:seed=3") == ("random", {"seed": "3"})
    with pytest.raises(PolicyError, match="twice"):
        resolve("random:seed=3", {"seed": 3})
    with pytest.raises(PolicyError, match="on the object"):
        resolve(resolve("random"), {"seed": 3})
    with pytest.raises(PolicyError, match="keep"):
        resolve(object())  # type: ignore[arg-type]


class Nameless(Policy):
    def keep(self, view: View, n: int) -> torch.Tensor:
        return newest(view, n)


class Ignored(Nameless):
    """Of a kind whose choice the cache computes itself, with a choice of its own."""

    name, kind = "ignored", "position"


class Plain:
    """Has everything but the ancestry."""

    name, kind, frame, bounded, needs = "plain", "scored", "original", True, frozenset[str]()

    def keep(self, view: View, n: int) -> torch.Tensor:
        return newest(view, n)


class Undecided(Policy):
    name = "undecided"


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Nameless(), "has no name"),
        (Ignored(), "'position'.*ignored"),
        (Plain(), r"derive its class.*keep\(view, n\)"),
        (Undecided(), r"derive its class.*keep\(view, n\)"),
        (Nameless, r"derive its class"),
        (None, r"derive its class"),
    ],
    ids=["nameless", "position", "plain", "undecided", "class", "None"],
)
def test_objects_that_are_no_policy(policy: object, says: str) -> None:
    """Refused when they are given, with what is missing. Kills: a choice that is never asked for; an error in the first
    eviction."""
    with pytest.raises(PolicyError, match=says):
        resolve(policy)  # type: ignore[arg-type]


def test_an_object_of_ones_own_is_taken_as_it_is() -> None:
    class Own(Nameless):
        name = "own"

    own = Own()
    assert resolve(own) is own


def test_of_equal_scores_the_newer_stays() -> None:
    scores = torch.tensor([[2.0, 1.0, 2.0, 1.0, 1.0]])
    assert highest(scores, 3).tolist() == [[2, 0, 4]]


def test_the_hash_differs_by_seed_layer_and_head_and_repeats() -> None:
    index = torch.arange(1000)
    base = hashes(0, 0, torch.tensor(0), index)
    assert torch.equal(base, hashes(0, 0, torch.tensor(0), index))
    for other in (hashes(1, 0, torch.tensor(0), index), hashes(0, 1, torch.tensor(0), index)):
        assert not torch.equal(base, other)
    assert not torch.equal(base, hashes(0, 0, torch.tensor(1), index))
    assert 450 < int((base > 0).sum()) < 550, "the hash leans to one side"


def test_names_need_no_torch() -> None:
    code = "import sys, sinkpin, sinkpin.policies as p; p.names(); p.parse('random:seed=1'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
