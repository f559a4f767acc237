"""KeyDiff's choice alone: small views worked out by hand, and the published formula as a plain loop."""

import math

import pytest
import torch
from torch import Tensor

from sinkpin.policies import resolve
from sinkpin.policies.base import View
from sinkpin.policies.keydiff import KeyDiff


def view(rotated: list[list[float]] | Tensor, **more: Tensor) -> View:
    """Keys of one row and head as a list, or `[rows, kv_heads, candidates, dim]`."""
    given = torch.tensor([[rotated]]) if isinstance(rotated, list) else rotated
    origins = torch.arange(given.shape[2]).expand(*given.shape[:2], -1)
    return View(layer=0, origins=origins, seen=given.shape[2], rotated_keys=given, **more)


def kept(given: View, n: int) -> list[int]:
    return sorted(KeyDiff().keep(given, n)[0, 0].tolist())


def test_the_odd_ones_stay() -> None:
    """Three keys along x, one along y, one against x: the anchor points along x, mostly."""
    given = view([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
    assert kept(given, 1) == [3]
    assert kept(given, 2) == [1, 3]
    assert kept(given, 4) == [1, 2, 3, 4], "of three equal keys the oldest goes"


def test_length_does_not_matter() -> None:
    """Kills: an anchor of raw keys, in which one long key is the direction (it would be the first to go)."""
    given = view([[1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [0.0, 100.0]])
    assert kept(given, 1) == [3]


def test_two_candidates_are_a_tie_by_rule() -> None:
    """Both make the same angle with their mean; rounding must not decide. Kills: leaving it to rounding."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        assert kept(view(torch.randn(1, 1, 2, 8, generator=generator)), 1) == [1]


def test_a_zero_key_and_a_zero_anchor_are_finite() -> None:
    given = view([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert torch.isfinite(KeyDiff().scores(given, 1)).all()
    assert kept(given, 1) == [2]


def test_turning_all_keys_changes_nothing() -> None:
    """Cosines do not depend on where positions are counted from."""
    generator = torch.Generator().manual_seed(1)
    keys = torch.randn(1, 2, 9, 2, generator=generator)
    turn = torch.tensor([[math.cos(1.0), math.sin(1.0)], [-math.sin(1.0), math.cos(1.0)]])
    before, after = (KeyDiff().scores(view(k), 3) for k in (keys, keys @ turn))
    assert torch.allclose(before, after, atol=1e-6)


def test_raw_keys_on_request() -> None:
    """Kills: reading the other field than the option and `needs` say."""
    raw = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]]])
    given = view([[0.0, 1.0], [1.0, 0.1], [1.0, 0.0]], keys=raw)
    policy = resolve("keydiff:rotated=false")
    assert policy.needs == {"keys"} and KeyDiff().needs == {"rotated_keys"}
    assert policy.keep(given, 1)[0, 0].tolist() == [1]
    assert kept(given, 1) == [0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 2, 7, 10])
def test_the_published_formula(n: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(n)
    keys = torch.randn(2, 3, 11, 5, generator=generator).to(dtype)
    got = KeyDiff().keep(view(keys), n)

    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    for row in range(2):
        for head in range(3):
            mine = keys[row, head].tolist()
            units = [[x / math.sqrt(dot(key, key)) for x in key] for key in mine]
            anchor = [sum(unit[i] for unit in units) / 11 for i in range(5)]
            cosines = [dot(unit, anchor) / math.sqrt(dot(anchor, anchor)) for unit in units]
            ranked = sorted(range(11), key=lambda j: (-cosines[j], j), reverse=True)
            assert sorted(got[row, head].tolist()) == sorted(ranked[:n])
