"""SnapKV's choice alone: small views worked out by hand, and the published formula as a plain loop."""

import pytest
import torch
from torch import Tensor

from sinkpin.errors import PolicyError
from sinkpin.policies import resolve
from sinkpin.policies.base import View
from sinkpin.policies.snapkv import SnapKV


def view(recent: list[list[float]]) -> View:
    """One row, one head; `recent` is what each of the last queries paid to each candidate."""
    return View(
        layer=0,
        origins=torch.arange(len(recent[0]))[None, None],
        seen=len(recent[0]),
        recent=torch.tensor(recent)[None, None],
    )


def kept(policy: SnapKV, given: View, n: int) -> list[int]:
    return sorted(policy.keep(given, n)[0, 0].tolist())


def plain_scores(recent: Tensor, kernel: int, pool: str) -> list[float]:
    """The formula for one head, `recent [w, candidates]`: sum over queries, pool over those neighbours there are."""
    w, candidates = recent.shape
    older = candidates - w
    received = [sum(recent[i, j].item() for i in range(w)) for j in range(older)]
    scores = []
    for j in range(older):
        near = [received[i] for i in range(j - kernel // 2, j + kernel // 2 + 1) if 0 <= i < older]
        scores.append(max(near) if pool == "max" else sum(near) / len(near))
    return scores + [float("inf")] * w


def test_the_window_stays_and_the_rest_is_summed_over_its_queries() -> None:
    """Two queries: sums 0.5, 0.7, 0.6 of the older. Kills: the last query alone (0), or a maximum over queries (0)."""
    given = view([[0.1, 0.35, 0.4, 0.15, 0.0], [0.4, 0.35, 0.2, 0.02, 0.03]])
    assert kept(SnapKV(kernel=1), given, 3) == [1, 3, 4]
    assert kept(SnapKV(kernel=1), given, 4) == [1, 2, 3, 4]


def test_neighbours_of_a_peak_stay_with_max_pooling() -> None:
    """Peak at 4: with kernel 3, 3 and 5 share its score; of equal scores the newer stay."""
    given = view([[0.1, 0.0, 0.0, 0.0, 0.7, 0.0, 0.0, 0.05, 0.05, 0.1]])
    assert kept(SnapKV(kernel=3), given, 4) == [3, 4, 5, 9]
    assert kept(SnapKV(kernel=3), given, 3) == [4, 5, 9]
    assert kept(SnapKV(kernel=1), given, 3) == [0, 4, 9]


def test_pooling_does_not_reach_into_the_window() -> None:
    """The entry before the window must not inherit what the window's own entries received."""
    given = view([[0.2, 0.0, 0.1, 0.0, 0.7]])
    assert SnapKV(kernel=3).scores(given, 2)[0, 0, :4].tolist() == pytest.approx([0.2, 0.2, 0.1, 0.1])


def test_average_pooling_divides_by_the_neighbours_there_are() -> None:
    """Equal attention everywhere must give equal scores. Kills: zero padding, which makes the ends 3/5 and 4/5."""
    given = view([[0.1] * 10])
    scores = SnapKV(kernel=5, pool="avg").scores(given, 4)[0, 0]
    assert scores[:9].tolist() == pytest.approx([0.1] * 9)
    assert scores[9] == torch.inf


@pytest.mark.parametrize("pool", ["max", "avg"])
@pytest.mark.parametrize(
    ("kernel", "w", "candidates"), [(7, 5, 23), (5, 3, 17), (1, 4, 9), (9, 2, 4), (3, 1, 3)]
)
def test_the_formula(pool: str, kernel: int, w: int, candidates: int) -> None:
    """Rows and heads differ, sizes are odd, the kernel may be longer than what it pools over."""
    torch.manual_seed(kernel)
    recent = torch.rand(2, 3, w, candidates)
    origins = torch.arange(candidates).expand(2, 3, -1)
    policy = SnapKV(window_size=w, kernel=kernel, pool=pool)
    given = View(layer=0, origins=origins, seen=candidates, recent=recent)
    scores = policy.scores(given, candidates - 1)
    assert scores.dtype == torch.float32
    for row in range(2):
        for head in range(3):
            wanted = plain_scores(recent[row, head], kernel, pool)
            assert scores[row, head].tolist() == pytest.approx(wanted, rel=1e-5)
            n = w + (candidates - w) // 2
            best = sorted(range(candidates), key=lambda j: (round(wanted[j], 5), j), reverse=True)[:n]
            assert sorted(policy.keep(given, n)[row, head].tolist()) == sorted(best)


@pytest.mark.parametrize(
    ("room", "wanted"), [(1, 1), (2, 1), (3, 1), (4, 2), (63, 31), (64, 32), (65, 32), (4096, 32)]
)
def test_the_default_window_gives_way(room: int, wanted: int) -> None:
    assert SnapKV().window(room) == wanted


def test_a_window_that_was_asked_for_does_not() -> None:
    assert SnapKV(window_size=8).window(9) == 8
    with pytest.raises(PolicyError, match=r"window_size=8 .* room for 8 "):
        SnapKV(window_size=8).window(8)


def test_half_precision_is_summed_in_fp32() -> None:
    """In bf16 1 + 1/512 is 1: both sums would tie, and the newer would win."""
    given = view([[1.0, 1.0, 0.0], [1 / 512, 0.0, 0.0]])
    half = View(layer=0, origins=torch.tensor([[[0, 1, 2, 3]]]), recent=torch.zeros(1, 1, 2, 4).bfloat16())
    half.recent[0, 0, :, :3] = given.recent[0, 0].bfloat16()  # type: ignore[index]
    assert kept(SnapKV(kernel=1), half, 3) == [0, 2, 3]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"window_size": 0}, "at least one query"),
        ({"kernel": 4}, "no middle"),
        ({"kernel": 0}, "no middle"),
        ({"pool": "mean"}, "neither 'max' nor 'avg'"),
    ],
)
def test_what_cannot_be(options: dict[str, object], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        resolve("snapkv", options)


def test_options_can_be_written() -> None:
    assert resolve("snapkv:window_size=8,kernel=5,pool=avg") == SnapKV(window_size=8, kernel=5, pool="avg")
