"""H2O's choice alone: small views worked out by hand, and the published formula as a plain loop."""

import pytest
import torch

from sinkpin.errors import PolicyError
from sinkpin.policies import resolve
from sinkpin.policies.base import View
from sinkpin.policies.h2o import H2O


def view(mass: list[float], origins: list[int] | None = None, seen: int | None = None) -> View:
    """One row, one head."""
    index = list(range(len(mass))) if origins is None else origins
    return View(
        layer=0,
        origins=torch.tensor([[index]]),
        seen=index[-1] + 1 if seen is None else seen,
        mass=torch.tensor([[mass]]),
    )


def kept(policy: H2O, given: View, n: int) -> list[int]:
    return sorted(policy.keep(given, n)[0, 0].tolist())


def test_half_heavy_half_recent() -> None:
    """Kills: heavy ones chosen among the recent, which would leave the recent half empty."""
    assert kept(H2O(), view([0.1, 3.0, 0.2, 2.0, 0.3, 9.0, 8.0]), 4) == [1, 3, 5, 6]


@pytest.mark.parametrize(
    ("n", "wanted"), [(1, [6]), (2, [1, 6]), (3, [1, 5, 6]), (5, [1, 3, 4, 5, 6]), (6, [1, 2, 3, 4, 5, 6])]
)
def test_an_odd_room_is_more_recent_than_heavy(n: int, wanted: list[int]) -> None:
    assert kept(H2O(), view([0.1, 3.0, 0.2, 2.0, 0.1, 0.0, 0.0]), n) == wanted


def test_equal_masses_keep_the_newer() -> None:
    assert kept(H2O(), view([1.0, 1.0, 1.0, 1.0, 0.0, 0.0]), 4) == [2, 3, 4, 5]


def test_raw_sums_favour_the_old_and_normalize_divides() -> None:
    """Origins 0, 4, 8 of 10 tokens were seen by 10, 6 and 2 queries: 5/10, 4/6, 2/2.

    Kills: division by seen alone (no change), or by the origin.
    """
    given = view([5.0, 4.0, 2.0, 0.0], origins=[0, 4, 8, 9], seen=10)
    assert kept(H2O(recent=0.0), given, 1) == [0]
    assert kept(H2O(recent=0.0, normalize=True), given, 1) == [2]
    assert kept(H2O(recent=0.0, normalize=True), given, 2) == [1, 2]
    scores = H2O(recent=0.0, normalize=True).scores(given, 1)[0, 0, :3]
    assert scores.tolist() == pytest.approx([0.5, 4 / 6, 1.0])


@pytest.mark.parametrize(
    ("recent", "room", "heavy"),
    [(0.5, 7, 3), (0.0, 7, 7), (1.0, 7, 0), (0.9, 10, 1), (0.55, 100, 45), (0.3, 10, 7)],
)
def test_shares_are_not_lost_to_rounding(recent: float, room: int, heavy: int) -> None:
    assert H2O(recent=recent).heavy(room) == heavy


def test_nothing_given_is_changed() -> None:
    """Kills: writing +inf into the cache's own sums."""
    given = view([0.5, 0.25, 0.125])
    H2O().keep(given, 2)
    H2O(normalize=True).keep(given, 2)
    assert given.mass is not None and given.mass.tolist() == [[[0.5, 0.25, 0.125]]]


@pytest.mark.parametrize("recent", [-0.1, 1.5])
def test_what_is_no_share(recent: float) -> None:
    with pytest.raises(PolicyError, match="share of the room"):
        H2O(recent=recent)


def test_options_can_be_written() -> None:
    assert resolve("h2o:normalize=true,recent=0.25") == H2O(normalize=True, recent=0.25)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7, 12])
def test_the_published_formula(normalize: bool, n: int) -> None:
    """Sum the columns of random attention, rows of queries one by one; two rows, three heads, two heads a group."""
    generator = torch.Generator().manual_seed(n)
    tokens, rows, heads, group = 13, 2, 3, 2
    raw = torch.randn(rows, heads, group, tokens, tokens, generator=generator)
    attention = raw.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf).softmax(-1)
    mass = attention.mean(2).sum(-2)
    given = View(layer=0, origins=torch.arange(tokens).expand(rows, heads, -1), seen=tokens, mass=mass)
    got = H2O(normalize=normalize).keep(given, n)
    for row in range(rows):
        for head in range(heads):
            total = [0.0] * tokens
            for query in range(tokens):
                for key in range(query + 1):
                    paid = [attention[row, head, g, query, key].item() for g in range(group)]
                    total[key] += sum(paid) / group
            if normalize:
                total = [total[key] / (tokens - key) for key in range(tokens)]
            heavy = n // 2
            recent = list(range(tokens - (n - heavy), tokens))
            older = sorted(range(tokens - len(recent)), key=lambda key: (total[key], key), reverse=True)
            assert sorted(got[row, head].tolist()) == sorted(older[:heavy] + recent)
