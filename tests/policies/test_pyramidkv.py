"""PyramidKV's allotment of layers: by hand, and its promises over every small case. Its scores are SnapKV's."""

import itertools

import pytest
import torch

from sinkpin.errors import PolicyError
from sinkpin.policies import resolve
from sinkpin.policies.base import View
from sinkpin.policies.pyramidkv import PyramidKV
from sinkpin.policies.snapkv import SnapKV


def allotted(layers: int, budget: int, pins: int = 0, **options: int) -> list[int]:
    policy = PyramidKV(**options)
    return [policy.layer_budget(layer, layers, budget, pins) for layer in range(layers)]


def test_by_hand() -> None:
    """C = 44, w = 4, β = 4: min = 10, max = 70, steps of 20."""
    assert allotted(4, 44, window_size=4, beta=4) == [74, 54, 34, 14]
    assert allotted(4, 48, 4, window_size=4, beta=4) == [78, 58, 38, 18]


def test_the_published_defaults() -> None:
    """C = 1024, w = 32, β = 20: min = 49.6, max = 1934.4."""
    out = allotted(32, 1024)
    assert out[0] - 32 == pytest.approx(1934.4, abs=1)
    assert out[-1] - 32 == pytest.approx(49.6, abs=1)
    steps = {a - b for a, b in itertools.pairwise(out)}
    assert steps <= {60, 61}, "the arithmetic sequence falls by 60.8 a layer"


def test_what_rounding_leaves_over_goes_to_those_that_lost_most() -> None:
    """C = 10, w = 2, β = 4: min = 2, max = 14; of five layers 14, 11, 8, 5, 2; of four 14, 10, 6, 2. Means of 7, 5 and
    8: of 11.67, 7, 2.33 the first lost most; of 8.33, 5, 1.67 the last; of 13.33, 9.78, 6.22, 2.67 the second, then
    the last. Kills: the rest given to the lowest layers."""
    assert [x - 2 for x in allotted(5, 10, window_size=2, beta=4)] == [14, 11, 8, 5, 2]
    assert [x - 2 for x in allotted(4, 10, window_size=2, beta=4)] == [14, 10, 6, 2]
    assert [x - 2 for x in allotted(3, 9, window_size=2, beta=3)] == [12, 7, 2]
    assert [x - 2 for x in allotted(3, 7, window_size=2, beta=3)] == [8, 5, 2]
    assert [x - 2 for x in allotted(4, 10, window_size=2, beta=3)] == [13, 10, 6, 3]


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 12, 31])
@pytest.mark.parametrize("beta", [1, 2, 7, 20, 1000])
@pytest.mark.parametrize("pins", [0, 1, 4])
def test_the_promises(layers: int, beta: int, pins: int) -> None:
    """Exact total, never growing from layer to layer, and more than the pins and the window wherever there is room."""
    for room in [1, 2, 3, 5, 8, 9, 27, 64, 65, 100, 333]:
        budget = pins + room
        out = allotted(layers, budget, pins, beta=beta)
        window = PyramidKV().window(room)
        assert sum(out) == layers * budget
        assert out == sorted(out, reverse=True)
        assert min(out) > pins
        assert min(out) >= pins + window + (1 if room > window else 0)
        if beta == 1:
            assert set(out) == {budget}


def test_an_explicit_window_holds_in_every_layer() -> None:
    """Kills: a top layer with no room beside a window that was asked for."""
    policy = PyramidKV(window_size=8)
    for layer in range(9):
        room = policy.layer_budget(layer, 9, 13, 2) - 2
        assert policy.window(room) == 8
    with pytest.raises(PolicyError, match="window_size=8"):
        policy.layer_budget(0, 9, 10, 2)


def test_a_single_layer_holds_the_budget() -> None:
    assert allotted(1, 40, 4) == [40]


def test_scores_are_snapkvs() -> None:
    torch.manual_seed(0)
    given = View(layer=0, origins=torch.arange(20).expand(1, 2, -1), recent=torch.rand(1, 2, 4, 20))
    assert torch.equal(PyramidKV().keep(given, 9), SnapKV().keep(given, 9))
    assert (PyramidKV().name, PyramidKV().kind, PyramidKV().needs) == ("pyramidkv", "prompt", SnapKV.needs)


def test_options() -> None:
    assert resolve("pyramidkv:beta=10,kernel=5") == PyramidKV(beta=10, kernel=5)
    assert PyramidKV() != SnapKV()
    with pytest.raises(PolicyError, match="turn the pyramid over"):
        resolve("pyramidkv:beta=0")
    with pytest.raises(PolicyError, match="'pyramidkv': kernel=2"):
        resolve("pyramidkv:kernel=2")
