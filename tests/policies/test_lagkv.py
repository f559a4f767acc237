"""LagKV's choice alone: small views worked out by hand, and the published formula as a plain loop."""

import math
from itertools import pairwise
from statistics import stdev

import pytest
import torch
from torch import Tensor

from sinkpin.errors import PolicyError
from sinkpin.policies import resolve
from sinkpin.policies.base import View
from sinkpin.policies.lagkv import LagKV


def view(rotated: Tensor, values: Tensor | None = None, **more: Tensor) -> View:
    """`[rows, kv_heads, candidates, dim]`; values default to the rotated keys."""
    origins = torch.arange(rotated.shape[2]).expand(*rotated.shape[:2], -1)
    values = rotated if values is None else values
    return View(layer=0, origins=origins, seen=rotated.shape[2], rotated_keys=rotated, values=values, **more)


def kept(policy: LagKV, given: View, n: int) -> list[int]:
    return sorted(policy.keep(given, n)[0, 0].tolist())


def test_what_stands_out_against_the_next_block_stays() -> None:
    """Blocks of two. Against [0, 1] x [0, 1], (9, 0) has a spread and (3, 3) has none, however large it is.

    Kills: the norm in place of the spread over channels.
    """
    x = torch.tensor([[[[9.0, 0.0], [3.0, 3.0], [0.0, 0.0], [1.0, 1.0]]]])
    assert kept(LagKV(lag=2), view(x), 3) == [0, 2, 3]
    assert kept(LagKV(lag=2), view(x.flip(2)[:, :, [2, 3, 0, 1]]), 3) == [1, 2, 3]


def test_every_block_gives_the_same_share() -> None:
    """The first block stands out far more in its best than the second, yet each keeps its best.

    Kills: scores compared between blocks when nobody asked (`across`).
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 1, 12, 4, generator=generator)
    for n in (5, 6, 7, 9, 11):
        chosen = kept(LagKV(lag=3), view(x), n)
        blocks = [sum(j // 3 == b for j in chosen) for b in range(4)]
        assert blocks[3] == 3
        assert max(blocks[:3]) - min(blocks[:3]) <= 1
        assert blocks[:3] == sorted(blocks[:3]), "of equal ranks the newer block's stays"


def test_across_compares_between_blocks() -> None:
    """One block with an outlier takes the softmax for itself: its other entries go first, then those of even blocks."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [90.0, 0.0], [0.5, 0.0], [1.0, 0.0], [0.0, 1.0]])[None, None]
    # Block 0 against block 1 (ranges 89.5 and 0): only channel 0 speaks. Block 1 against block 2 (both ranges 1).
    scores = LagKV(lag=2, across=True).scores(view(x), 3)[0, 0]
    assert scores[:2].sum().item() == pytest.approx(2.0)
    assert scores[2].item() == pytest.approx(2.0, abs=1e-3)
    assert kept(LagKV(lag=2, across=True), view(x), 5) == [0, 1, 2, 4, 5]
    assert kept(LagKV(lag=2), view(x), 5) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("candidates", range(6, 14))
def test_the_last_block_and_the_rest_stay(candidates: int) -> None:
    """Of 8 candidates and a lag of 3: two whole blocks, the last of them and two entries behind it stay.

    Kills: a rest that is dropped, or blocks cut from the newest end.
    """
    generator = torch.Generator().manual_seed(candidates)
    x = torch.randn(1, 1, candidates, 4, generator=generator)
    scores = LagKV(lag=3).scores(view(x), 5)[0, 0]
    tail = 3 + candidates % 3
    assert torch.isinf(scores).tolist() == [False] * (candidates - tail) + [True] * tail
    assert {candidates - 1 - i for i in range(tail)} <= set(kept(LagKV(lag=3), view(x), 5))


def test_equal_entries_keep_the_newer() -> None:
    x = torch.ones(1, 1, 10, 4)
    for n in (1, 2, 4, 9):
        assert kept(LagKV(), view(x), n) == list(range(10 - n, 10))


def test_a_channel_without_range_says_nothing() -> None:
    """The next block is constant in one channel. Kills: a division by zero, whose NaN sorts as the highest."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 1, 9, 4, generator=generator)
    x[..., 2] = 1.5
    scores = LagKV(lag=3).scores(view(x), 5)
    assert not torch.isnan(scores).any()
    raw = LagKV(lag=3, across=True).scores(view(x), 5)
    assert not torch.isnan(raw).any() and torch.isfinite(raw[..., :6]).all()


@pytest.mark.parametrize(
    ("room", "lag"), [(1, 1), (2, 1), (3, 1), (7, 1), (8, 2), (41, 10), (511, 127), (512, 128), (9999, 128)]
)
def test_the_default_gives_way_in_a_small_room(room: int, lag: int) -> None:
    assert LagKV().window(room) == lag
    assert 2 * lag - 1 <= room


def test_a_small_room_is_recency() -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(2, 3, 9, 4, generator=generator)
    for n in (1, 2, 3, 7):
        got = LagKV().keep(view(x), n).sort(-1).values
        assert got.tolist() == [[list(range(9 - n, 9))] * 3] * 2


@pytest.mark.parametrize(("lag", "room"), [(2, 2), (128, 254), (5, 1)])
def test_an_explicit_lag_that_cannot_hold(lag: int, room: int) -> None:
    with pytest.raises(PolicyError, match=rf"lag={lag} .*room for {room} .*at most {(room + 1) // 2}"):
        LagKV(lag=lag).window(room)
    assert LagKV(lag=lag).window(2 * lag - 1) == lag


def test_options_can_be_written() -> None:
    assert resolve("lagkv:lag=16,across=true,rotated=false") == LagKV(16, across=True, rotated=False)
    assert resolve("lagkv:lag=16").window(31) == 16
    with pytest.raises(PolicyError, match="at least one"):
        LagKV(lag=0)


def test_raw_keys_on_request() -> None:
    """Kills: reading the other field than the option and `needs` say."""
    generator = torch.Generator().manual_seed(5)
    raw, turned, values = (torch.randn(1, 1, 9, 4, generator=generator) for _ in range(3))
    given = view(turned, values, keys=raw)
    assert LagKV(rotated=False).needs == {"keys", "values"} and LagKV().needs == {"rotated_keys", "values"}
    own = LagKV(lag=3, rotated=False).scores(given, 5)
    assert torch.equal(own, LagKV(lag=3).scores(view(raw, values), 5))
    assert not torch.equal(own, LagKV(lag=3).scores(given, 5))


def plain_scores(x: list[list[float]], lag: int) -> list[float]:
    """One of the two terms, for the entries that have a next block."""
    blocks = [x[i : i + lag] for i in range(0, len(x) // lag * lag, lag)]
    out: list[float] = []
    for block, after in pairwise(blocks):
        low = [min(channel) for channel in zip(*after, strict=True)]
        high = [max(channel) for channel in zip(*after, strict=True)]
        spreads = [
            stdev((v - a) / (b - a) if b > a else 0.0 for v, a, b in zip(entry, low, high, strict=True))
            for entry in block
        ]
        total = sum(math.exp(s - max(spreads)) for s in spreads)
        out += [math.exp(s - max(spreads)) / total for s in spreads]
    return out


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize(
    ("candidates", "lag", "n"), [(7, 2, 3), (13, 3, 7), (20, 5, 11), (29, 4, 28), (9, 1, 5)]
)
def test_the_published_formula(across: bool, candidates: int, lag: int, n: int) -> None:
    generator = torch.Generator().manual_seed(candidates)
    keys = torch.randn(2, 3, candidates, 6, generator=generator)
    values = torch.randn(2, 3, candidates, 4, generator=generator)
    got = LagKV(lag=lag, across=across).keep(view(keys, values), n)
    for row in range(2):
        for head in range(3):
            pair = (plain_scores(x[row, head].tolist(), lag) for x in (keys, values))
            scores = [k + v for k, v in zip(*pair, strict=True)]
            if not across:
                for start in range(0, len(scores), lag):
                    block = range(start, start + lag)
                    order = sorted(block, key=lambda j: (scores[j], j))
                    for place, j in enumerate(order):
                        scores[j] = -100.0 + place  # only the place in the block counts from here on
            tail = list(range(len(scores), candidates))
            ranked = sorted(range(len(scores)), key=lambda j: (scores[j], j), reverse=True)
            assert sorted(got[row, head].tolist()) == sorted(ranked[: n - len(tail)] + tail)
