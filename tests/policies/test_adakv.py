"""Ada-KV's joint choice alone: small views worked out by hand, its promises, and heads of different length."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from sinkpin.errors import PolicyError
from sinkpin.policies import resolve
from sinkpin.policies.adakv import AdaKV
from sinkpin.policies.base import Need, Policy, QueryStatistics, View, highest
from sinkpin.policies.h2o import H2O
from sinkpin.policies.pyramidkv import PyramidKV
from sinkpin.policies.snapkv import SnapKV


@dataclass(frozen=True)
class Plain(Policy):
    """A base whose scores are the mass itself."""

    name: ClassVar[str] = "plain"
    needs: ClassVar[frozenset[Need]] = frozenset({"mass"})

    def window(self, room: int) -> int:
        return 3

    def scores(self, view: View, n: int) -> Tensor:
        assert view.mass is not None and (view.origins >= 0).all(), "a base saw a missing candidate"
        return view.mass

    def keep(self, view: View, n: int) -> Tensor:
        return highest(self.scores(view, n), n)


def view(mass: list[list[float]], origins: list[list[int]] | None = None) -> View:
    """One row; `mass` of each head."""
    index = [list(range(len(head))) for head in mass] if origins is None else origins
    return View(layer=0, origins=torch.tensor([index]), seen=99, mass=torch.tensor([mass]))


def shared(policy: AdaKV, given: View, n: int) -> list[list[int]]:
    """Which candidates each head of the one row keeps."""
    return [head.nonzero()[:, 0].tolist() for head in policy.share(given, n)[0]]


def plain_share(scores: list[list[float]], origins: list[list[int]], n: int, alpha: float) -> list[list[int]]:
    """The rule, one entry at a time: floors first, then the best of what is left, whatever its head."""
    floor = math.ceil(round(alpha * n, 9))
    free = [
        (score, origins[head][j], -head, head, j)
        for head, row in enumerate(scores)
        for j, score in enumerate(row)
        if origins[head][j] >= 0
    ]
    kept: list[list[int]] = []
    for head in range(len(scores)):
        kept.append([j for *_, h, j in sorted(free, reverse=True) if h == head][:floor])
    left = [x for x in sorted(free, reverse=True) if x[4] not in kept[x[3]]]
    for *_, head, j in left[: len(scores) * n - sum(map(len, kept))]:
        kept[head].append(j)
    return [sorted(head) for head in kept]


def test_the_best_of_all_heads_stay() -> None:
    """Kills: an even share of 2 each."""
    given = view([[0.9, 0.8, 0.7, 0.6], [0.1, 0.65, 0.2, 0.3]])
    assert shared(AdaKV(Plain(), alpha=0.0), given, 2) == [[0, 1, 2], [1]]


def test_every_head_keeps_its_floor() -> None:
    """Of n = 4, alpha 0.2 is one entry and 0.5 two, though the second head has nothing of worth."""
    given = view([[9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0], [0.5, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0]])
    assert shared(AdaKV(Plain(), alpha=0.0), given, 4) == [[0, 1, 2, 3, 4, 5, 6, 7], []]
    assert shared(AdaKV(Plain()), given, 4) == [[0, 1, 2, 3, 4, 5, 6], [0]]
    assert shared(AdaKV(Plain(), alpha=0.5), given, 4) == [[0, 1, 2, 3, 4, 5], [0, 1]]
    assert shared(AdaKV(Plain(), alpha=1.0), given, 4) == [[0, 1, 2, 3], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("alpha", "n", "wanted"),
    [(0.2, 5, 1), (0.2, 6, 2), (0.07, 100, 7), (0.2, 15, 3), (0.0, 9, 0), (1.0, 9, 9), (0.3, 1, 1)],
)
def test_floors_are_not_lost_to_rounding(alpha: float, n: int, wanted: int) -> None:
    assert AdaKV(Plain(), alpha=alpha).floor(n) == wanted


def test_of_equal_scores_the_newer_and_then_the_lower_head_stay() -> None:
    given = view([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert shared(AdaKV(Plain(), alpha=0.0), given, 1) == [[2], [2]]
    given = view([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], origins=[[0, 2, 5], [1, 5, 7]])
    assert shared(AdaKV(Plain(), alpha=0.0), given, 1) == [[2], [2]]
    three = view([[1.0, 1.0]] * 3, origins=[[0, 4], [0, 9], [3, 4]])
    assert shared(AdaKV(Plain(), alpha=0.0), three, 1) == [[1], [1], [1]]
    uneven = view([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], origins=[[5, 6, 7], [0, 1, 5]])
    assert shared(AdaKV(Plain(), alpha=0.0), uneven, 2) == [[0, 1, 2], [2]]
    assert shared(AdaKV(Plain(), alpha=0.0), view([[1.0] * 3] * 2, [[4, 5, 6], [4, 5, 6]]), 1) == [[2], [2]]


def test_what_the_base_keeps_in_any_case_stays_in_every_head() -> None:
    """H2O's recent half of n = 4 is the last two, in both heads; the other four places are contested."""
    given = view([[5.0, 4.0, 3.0, 2.0, 0.0, 0.0], [0.1, 0.2, 0.0, 0.0, 0.0, 0.0]])
    assert shared(AdaKV(), given, 4) == [[0, 1, 2, 3, 4, 5], [4, 5]]
    assert shared(AdaKV(alpha=0.75), given, 4) == [[0, 1, 2, 4, 5], [1, 4, 5]]


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_the_rule(alpha: float, n: int) -> None:
    """Exact totals, floors and the choice itself, for rows that differ and scores with ties."""
    torch.manual_seed(n)
    mass = torch.randint(0, 12, (3, 4, 13)).float() ** 2
    origins = torch.arange(13).expand(3, 4, -1)
    policy = AdaKV(Plain(), alpha=alpha)
    out = policy.share(View(layer=0, origins=origins, mass=mass), n)
    assert out.dtype == torch.bool and out.shape == mass.shape
    assert (out.flatten(1).sum(-1) == 4 * n).all()
    assert (out.sum(-1) >= policy.floor(n)).all()
    for row in range(3):
        wanted = plain_share(mass[row].tolist(), origins[row].tolist(), n, alpha)
        assert [head.nonzero()[:, 0].tolist() for head in out[row]] == wanted


def test_heads_of_different_length() -> None:
    """The second head holds 2 entries, the third 5: missing ones come first and never stay, however high their mass."""
    given = view(
        [[0.5, 0.1, 0.2, 0.9, 0.4], [99.0, 99.0, 99.0, 0.3, 0.6], [0.7, 0.8, 0.05, 0.06, 0.07]],
        origins=[[0, 3, 5, 8, 9], [-1, -1, -1, 8, 9], [2, 4, 6, 8, 9]],
    )
    assert shared(AdaKV(Plain(), alpha=0.0), given, 2) == [[0, 3, 4], [4], [0, 1]]
    assert shared(AdaKV(Plain(), alpha=1.0), given, 2) == [[0, 3], [3, 4], [0, 1]]
    given = view([[9.0, 8.0, 7.0, 6.0], [0.0, 0.0, 0.0, 0.1]], origins=[[0, 1, 2, 3], [-1, -1, -1, 3]])
    assert shared(AdaKV(Plain(), alpha=1.0), given, 2) == [[0, 1, 2], [3]]
    few = view([[9.0, 8.0, 7.0], [5.0, 5.0, 0.1]], origins=[[-1, 1, 2], [-1, -1, 3]])
    assert shared(AdaKV(Plain()), few, 2) == [[1, 2], [2]], (
        "fewer than there is room for: all, and nothing else"
    )


@pytest.mark.parametrize(
    "base", ["h2o", "snapkv:window_size=2", "keydiff", "expected:future=3", "lagkv:lag=2"]
)
def test_a_base_sees_each_short_head_as_if_it_were_alone(base: str) -> None:
    """What lies where candidates are missing must not matter: filled with NaN, the choice is the same as that of plain
    views without it. Kills: a cut at the wrong candidate, another head's queries."""
    torch.manual_seed(1)
    rows, heads, group, most, d, n = 2, 3, 2, 9, 4, 5
    holes = torch.tensor([[0, 3, 2], [1, 0, 4]])
    origins = torch.arange(most).expand(rows, heads, -1).clone()
    full = {
        "mass": torch.rand(rows, heads, most),
        "recent": torch.rand(rows, heads, 2, most),
        "keys": torch.randn(rows, heads, most, d),
        "rotated_keys": torch.randn(rows, heads, most, d),
        "values": torch.randn(rows, heads, most, d),
    }
    queries = QueryStatistics(
        mean=torch.randn(rows, heads * group, d),
        covariance=torch.eye(d).expand(rows, heads * group, -1, -1) * torch.rand(rows, heads * group, 1, 1),
        rotate=lambda x, positions: x + positions[..., None] if positions.ndim else x,
        positions=torch.tensor([[8], [3]]).expand(rows, heads * group),
        scaling=0.5,
    )
    policy = AdaKV(base)
    expected = torch.full((rows, heads, most), -torch.inf)
    for row in range(rows):
        for head in range(heads):
            first = int(holes[row, head])
            mine = slice(head * group, (head + 1) * group)
            alone = View(
                layer=0,
                origins=origins[row, head, first:].clone()[None, None],
                seen=most,
                mass=full["mass"][row, head, first:][None, None],
                recent=full["recent"][row, head, :, first:][None, None],
                keys=full["keys"][row, head, first:][None, None],
                rotated_keys=full["rotated_keys"][row, head, first:][None, None],
                values=full["values"][row, head, first:][None, None],
                queries=QueryStatistics(
                    queries.mean[row, mine][None],
                    queries.covariance[row, mine][None],
                    queries.rotate,
                    queries.positions[row, mine][None],
                    queries.scaling,
                ),
            )
            expected[row, head, first:] = policy.base.scores(alone, n)[0, 0]
            origins[row, head, :first] = -1
            for name, x in full.items():
                x[row, head].narrow(1 if name == "recent" else 0, 0, first).fill_(torch.nan)
    out = policy.share(View(layer=0, origins=origins, seen=most, queries=queries, **full), n)
    for row in range(rows):
        wanted = plain_share(expected[row].tolist(), origins[row].tolist(), n, 0.2)
        assert [head.nonzero()[:, 0].tolist() for head in out[row]] == wanted


def test_what_it_takes_from_its_base() -> None:
    over = AdaKV(SnapKV(window_size=7))
    assert (over.kind, over.frame, over.needs, over.min_sinks) == ("prompt", "original", SnapKV.needs, 0)
    assert over.window(40) == 7
    assert over.layer_budget(0, 4, 40, 4) == 40
    pyramid = AdaKV(PyramidKV())
    assert [pyramid.layer_budget(i, 4, 40, 4) for i in range(4)] == [
        PyramidKV().layer_budget(i, 4, 40, 4) for i in range(4)
    ]
    assert AdaKV(Plain()).window(9) == 3
    assert AdaKV().base == H2O()
    assert AdaKV("h2o") == AdaKV(H2O()) and hash(AdaKV()) == hash(AdaKV("h2o"))


def test_with_one_head_there_is_nothing_to_share() -> None:
    given = view([[0.3, 0.9, 0.1, 0.2]])
    assert (
        sorted(AdaKV(Plain()).keep(given, 2)[0, 0].tolist()) == [0, 1] == shared(AdaKV(Plain()), given, 2)[0]
    )
    with pytest.raises(PolicyError, match="ask share"):
        AdaKV(Plain()).keep(view([[1.0, 2.0], [1.0, 2.0]]), 1)


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("adakv", AdaKV(H2O())),
        ("adakv:base=snapkv", AdaKV(SnapKV())),
        (
            "adakv:base=snapkv,base.kernel=5,base.pool=avg,alpha=0.5",
            AdaKV(SnapKV(kernel=5, pool="avg"), alpha=0.5),
        ),
        ("adakv:base.normalize=true", AdaKV(H2O(normalize=True))),
        ("adakv:alpha=0", AdaKV(H2O(), alpha=0.0)),
    ],
)
def test_options_can_be_written(written: str, made: AdaKV) -> None:
    assert resolve(written) == made


def test_options_can_be_given() -> None:
    assert resolve("adakv", {"base": "snapkv", "base.kernel": 5}) == AdaKV(SnapKV(kernel=5))
    assert resolve("adakv:base=snapkv", {"base.kernel": 5}) == AdaKV(SnapKV(kernel=5))
    assert resolve("adakv", {"base": SnapKV(kernel=5)}) == AdaKV(SnapKV(kernel=5))


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("adakv:base=h20", "did you mean 'h2o'"),
        ("adakv:base=tova", "one set for all heads"),
        ("adakv:base=window", "no scores"),
        ("adakv:base=random,base.seed=3", "no scores"),
        ("adakv:base=adakv", "no scores"),
        ("adakv:base=snapkv,base.kernl=3", "policy 'snapkv' has no option 'kernl'"),
        ("adakv:base=snapkv,base.kernel=4", "no middle"),
        ("adakv:alpha=1.5", "from 0 to 1"),
        ("h2o:base.seed=3", "policy 'h2o' has no option 'base.seed'"),
    ],
)
def test_what_cannot_be(written: str, says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        resolve(written)


def test_options_for_a_base_that_is_an_object() -> None:
    with pytest.raises(PolicyError, match="on the object"):
        resolve("adakv", {"base": SnapKV(), "base.kernel": 5})
