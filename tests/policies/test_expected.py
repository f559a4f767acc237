"""Expected Attention alone: a view worked out by hand, the formula as a plain loop, and the closed form it rests on."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sinkpin.attention.rope import Rotary
from sinkpin.errors import PolicyError
from sinkpin.policies import resolve
from sinkpin.policies.base import QueryStatistics, View
from sinkpin.policies.expected import Expected

ROWS, KV_HEADS, GROUP, DIM, CANDIDATES = 2, 3, 2, 6, 11


def turner(interleaved: bool = False, rotary_dim: int = DIM) -> Callable[[Tensor, Tensor], Tensor]:
    rotary = Rotary(10.0 ** -torch.arange(rotary_dim // 2).float(), interleaved)
    return lambda x, positions: rotary.rotate(x, rotary.tables(positions))


def unturned(x: Tensor, positions: Tensor) -> Tensor:
    return x


def random_view(rotate: Callable[[Tensor, Tensor], Tensor], seed: int = 0) -> View:
    torch.manual_seed(seed)
    half = torch.randn(ROWS, KV_HEADS * GROUP, DIM, DIM) / 2
    return View(
        layer=0,
        origins=torch.arange(CANDIDATES).expand(ROWS, KV_HEADS, -1),
        seen=CANDIDATES,
        rotated_keys=torch.randn(ROWS, KV_HEADS, CANDIDATES, DIM),
        values=torch.randn(ROWS, KV_HEADS, CANDIDATES, 5),
        queries=QueryStatistics(
            mean=torch.randn(ROWS, KV_HEADS * GROUP, DIM),
            covariance=half @ half.transpose(-1, -2),
            rotate=rotate,
            positions=torch.tensor([[10], [4]]),
            scaling=0.4,
        ),
    )


def plain_scores(given: View, row: int, head: int, future: int, epsilon: float) -> list[float]:
    """The formula for one head: every position by itself, every candidate by itself, in fp64."""
    queries = given.queries
    assert queries is not None and given.rotated_keys is not None and given.values is not None
    keys, values = given.rotated_keys[row, head].double(), given.values[row, head].double()
    now, s = int(queries.positions[row, 0]), queries.scaling
    columns = [torch.zeros(DIM, DIM) for _ in range(future)]
    for step in range(future):
        for c in range(DIM):
            unit = torch.zeros(DIM)
            unit[c] = 1.0
            columns[step][:, c] = queries.rotate(unit, torch.tensor(now + 1 + step))
    R = (sum(columns) / future).double()  # type: ignore[operator]
    total = [0.0] * CANDIDATES
    for member in range(head * GROUP, (head + 1) * GROUP):
        mean = R @ queries.mean[row, member].double()
        covariance = R @ queries.covariance[row, member].double() @ R.T
        powers = [
            math.exp(float(s * mean @ keys[j] + s * s * keys[j] @ covariance @ keys[j] / 2))
            for j in range(CANDIDATES)
        ]
        total = [t + p / sum(powers) / GROUP for t, p in zip(total, powers, strict=True)]
    return [(t + epsilon) * float(values[j].norm()) for j, t in enumerate(total)]


def one_head(keys: list[list[float]], values: list[float], mean: list[float], variance: float) -> View:
    """One row, one query head, no rotation, the same variance in all directions."""
    d = len(mean)
    return View(
        layer=0,
        origins=torch.arange(len(keys))[None, None],
        seen=len(keys),
        rotated_keys=torch.tensor(keys)[None, None],
        values=torch.tensor(values)[None, None, :, None],
        queries=QueryStatistics(
            mean=torch.tensor(mean)[None, None],
            covariance=variance * torch.eye(d)[None, None],
            rotate=unturned,
            positions=torch.tensor([[len(keys) - 1]]),
            scaling=0.5,
        ),
    )


def test_by_hand() -> None:
    """Logits 0.5 · 2 · k + 0.25 · 4 · k² / 2 = k + k²/2 for k = 0, 1, -2: 0, 1.5, 0. Kills: half the covariance
    forgotten (logits 0, 2, 2), or the scaling of it (0, 2, 0 · 4)."""
    given = one_head([[0.0], [1.0], [-2.0]], [1.0, 1.0, 1.0], [2.0], 4.0)
    total = 2 + math.exp(1.5)
    wanted = [1 / total, math.exp(1.5) / total, 1 / total]
    assert Expected().scores(given, 1)[0, 0].exp().tolist() == pytest.approx(wanted)
    assert Expected().keep(given, 2)[0, 0].tolist() == [1, 2]


def test_values_weigh_in_and_epsilon_strengthens_them() -> None:
    """Attention e²:1 of 8.4 for the first; the second's value is four times as long."""
    given = one_head([[2.0], [0.0]], [1.0, -4.0], [2.0], 0.0)
    assert Expected().keep(given, 1).item() == 0
    assert Expected(epsilon=0.2).keep(given, 1).item() == 1
    scores = Expected(epsilon=0.2).scores(given, 1)[0, 0].exp().tolist()
    first = math.exp(2) / (math.exp(2) + 1)
    assert scores == pytest.approx([first + 0.2, (1 - first + 0.2) * 4])


@pytest.mark.parametrize("future", [1, 2, 3, 7, 8, 13])
@pytest.mark.parametrize(
    "rotate",
    [turner(), turner(interleaved=True), turner(rotary_dim=4), unturned],
    ids=["halves", "pairs", "partial", "none"],
)
def test_the_formula(future: int, rotate: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Kills: positions that start at the newest instead of after it, the mean over the group taken of the logits, a
    covariance turned from one side only, one row's position used for all."""
    given = random_view(rotate, seed=future)
    scores = Expected(future=future, epsilon=0.01).scores(given, 4)
    assert scores.dtype == torch.float32 and scores.shape == (ROWS, KV_HEADS, CANDIDATES)
    for row in range(ROWS):
        for head in range(KV_HEADS):
            wanted = plain_scores(given, row, head, future, 0.01)
            assert scores[row, head].exp().tolist() == pytest.approx(wanted, rel=1e-4)
            best = sorted(range(CANDIDATES), key=lambda j: wanted[j], reverse=True)[:4]
            kept = Expected(future=future, epsilon=0.01).keep(given, 4)[row, head].tolist()
            assert sorted(kept) == sorted(best)


def test_512_positions_are_averaged_in_few_rotations() -> None:
    """The default: equal to 512 rotations, for the price of a few dozen."""
    calls = 0
    inner = turner()

    def rotate(x: Tensor, positions: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return inner(x, positions)

    given = random_view(rotate)
    scores = Expected().scores(given, 4)
    assert calls < 40
    assert scores[1, 2].exp().tolist() == pytest.approx(plain_scores(given, 1, 2, 512, 0.0), rel=1e-4)


def test_only_differences_of_positions_count() -> None:
    """Keys and queries moved together score the same, so the cache may count from wherever it likes."""
    rotate = turner()
    near = random_view(rotate)
    assert near.rotated_keys is not None and near.queries is not None
    far = View(
        layer=0,
        origins=near.origins,
        rotated_keys=rotate(near.rotated_keys, torch.tensor(-37)),
        values=near.values,
        queries=QueryStatistics(
            near.queries.mean,
            near.queries.covariance,
            rotate,
            near.queries.positions - 37,
            near.queries.scaling,
        ),
    )
    torch.testing.assert_close(
        Expected().scores(far, 4).exp(), Expected().scores(near, 4).exp(), rtol=1e-4, atol=1e-7
    )


def test_the_closed_form_is_the_expectation() -> None:
    """200,000 queries drawn from the normal distribution, one position: the mean of their exp(s q·k), normalised."""
    given = random_view(turner(), seed=3)
    assert given.queries is not None and given.rotated_keys is not None and given.values is not None
    draw = torch.distributions.MultivariateNormal(
        given.queries.mean[0, 0], given.queries.covariance[0, 0] + 1e-6 * torch.eye(DIM)
    )
    turned = given.queries.rotate(draw.sample((200_000,)), torch.tensor(11))
    paid = (given.queries.scaling * turned @ given.rotated_keys[0, 0].T).exp().mean(0)
    alone = View(
        layer=0,
        origins=given.origins[:1, :1],
        rotated_keys=given.rotated_keys[:1, :1],
        values=torch.ones(1, 1, CANDIDATES, 1),
        queries=QueryStatistics(
            given.queries.mean[:1, :1],
            given.queries.covariance[:1, :1],
            given.queries.rotate,
            given.queries.positions[:1],
            given.queries.scaling,
        ),
    )
    got = Expected(future=1).scores(alone, 4)[0, 0].exp()
    torch.testing.assert_close(got, paid / paid.sum(), rtol=0.1, atol=1e-3)


def test_large_logits_neither_overflow_nor_become_nan() -> None:
    given = one_head([[300.0], [299.0], [-300.0]], [1.0, 1.0, 1.0], [50.0], 9.0)
    scores = Expected().scores(given, 1)
    assert torch.isfinite(scores).all()
    assert Expected().keep(given, 1).item() == 0


@pytest.mark.parametrize(
    ("written", "says"), [("future=0", "at least one position"), ("epsilon=-1", "zero or more")]
)
def test_what_cannot_be(written: str, says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        resolve(f"expected:{written}")


def test_options_can_be_written() -> None:
    assert resolve("expected:future=64,epsilon=0.02") == Expected(future=64, epsilon=0.02)
