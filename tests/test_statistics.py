"""Intervals hold what they say on simulated data; the rest against hand examples and plain loops."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkpin.errors import InputError
from sinkpin.statistics import adjusted, jaccard, mean_interval, robust_z, stability

NAN = float("nan")


def coverage(draw, truth: float, trials: int = 400) -> float:
    """Share of the intervals of simulated blocks that hold the true mean."""
    rng = np.random.default_rng(2026)
    intervals = [mean_interval(draw(rng), resamples=1000, seed=trial) for trial in range(trials)]
    return float(np.mean([low <= truth <= high for low, high in intervals]))


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    """Standard error of 400 trials: 1.3 points. Measured: 92.3 %."""
    assert 0.90 <= coverage(lambda rng: rng.normal(0.3, 1.0, 30), 0.3) <= 0.98


def test_the_interval_holds_the_mean_of_skewed_blocks() -> None:
    """A few blocks carry most of the loss; the interval reaches further to their side. Measured: 92.5 %."""
    assert 0.90 <= coverage(lambda rng: rng.exponential(1.0, 40), 1.0) <= 0.98
    rng = np.random.default_rng(1)
    blocks = rng.exponential(1.0, 40)
    plain = np.quantile(rng.choice(blocks, (20_000, 40)).mean(axis=1), [0.025, 0.975])
    low, high = np.subtract(mean_interval(blocks), plain)
    assert low > 0.01 and high > 0.01


def test_the_interval_is_that_of_the_textbook_where_there_is_one() -> None:
    blocks = np.random.default_rng(3).normal(0, 1, 400)
    error = blocks.std(ddof=1) / math.sqrt(400)
    for level, z in ((0.95, 1.96), (0.5, 0.6745)):
        low, high = mean_interval(blocks, level)
        assert (low, high) == pytest.approx(
            (blocks.mean() - z * error, blocks.mean() + z * error), abs=0.1 * error
        )


def test_the_interval_is_the_same_for_the_same_seed_and_moves_with_the_blocks() -> None:
    blocks = np.random.default_rng(4).normal(0, 1, 12)
    assert (
        mean_interval(blocks, seed=5) == mean_interval(list(blocks), seed=5) != mean_interval(blocks, seed=6)
    )
    moved = np.subtract(mean_interval(blocks + 2, seed=5), mean_interval(blocks, seed=5))
    assert moved == pytest.approx([2, 2])


@pytest.mark.filterwarnings("error")
def test_the_degenerate_intervals() -> None:
    assert mean_interval([0.1] * 7) == (0.1, 0.1)
    low, high = mean_interval([0.0, 1.0])
    assert 0 <= low < 0.5 < high <= 1
    low, high = mean_interval([1.0, 2.0, 4.0], resamples=1)  # BCa has no answer: one resample is on one side
    assert low == high and 1 <= low <= 4


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], "0 blocks: at least 2"),
        ([1.0], "1 block: at least 2"),
        ([1.0, NAN, NAN], "2 of 3 blocks are NaN"),
        ([[1.0, 2.0]], r"\[1, 2\]"),
    ],
)
def test_no_interval_is_invented(values, says: str) -> None:
    with pytest.raises(InputError, match=says):
        mean_interval(values)


@pytest.mark.parametrize("options", [{"level": 1.0}, {"level": 95}, {"resamples": 0}])
def test_an_interval_needs_a_level_and_resamples(options) -> None:
    for function, data in ((mean_interval, [1.0, 2.0]), (stability, [{1}, {2}, {3}])):
        with pytest.raises(InputError, match="level between 0 and 1"):
            function(data, **options)


def test_adjusted_p_by_hand() -> None:
    """m = 5. p·m/rank: 0.05, 0.05, 0.065, 0.05125 and 0.6; then no larger than what a larger p got."""
    p = np.array([0.041, 0.01, 0.6, 0.039, 0.02])
    assert adjusted(p) == pytest.approx([0.05125, 0.05, 0.6, 0.05125, 0.05])


def naive_adjusted(p: list[float]) -> list[float]:
    """The least rate q at which the step-up rule would call it: some rank k at or above with p_(k) <= k q / m."""
    ranked = sorted(p)
    return [
        min(1.0, *(ranked[k - 1] * len(p) / k for k in range(1, len(p) + 1) if ranked[k - 1] >= x)) for x in p
    ]


@given(st.lists(st.floats(0, 1), max_size=12))
def test_adjusted_p_against_the_definition(p: list[float]) -> None:
    assert adjusted(p) == pytest.approx(naive_adjusted(p), abs=1e-12)


def test_what_was_not_tested_does_not_count() -> None:
    found = adjusted([[0.01, NAN], [0.04, 0.03]])
    assert found.shape == (2, 2) and math.isnan(found[0, 1])
    assert found[[0, 1, 1], [0, 0, 1]] == pytest.approx(adjusted([0.01, 0.04, 0.03]))
    assert np.isnan(adjusted([NAN])).all() and adjusted([]).size == 0
    with pytest.raises(InputError, match=r"1 of 2 p-values lie outside \[0, 1\], the first is 1.5"):
        adjusted([0.5, 1.5])


def test_false_discoveries_stay_below_the_rate() -> None:
    """80 of 100 tests have no effect; called at 10 %, at most 10 % of what is called is wrong. Measured: 7.7 %."""
    from scipy.stats import norm

    rng, wrong = np.random.default_rng(7), []
    for _ in range(300):
        z = rng.normal(0, 1, 100)
        z[:20] += 3
        called = adjusted(norm.sf(z)) <= 0.1
        wrong.append(called[20:].sum() / max(called.sum(), 1))
    assert 0.05 < np.mean(wrong) <= 0.1


def test_robust_z_by_hand() -> None:
    z, how = robust_z([1, 2, 3, 4, 100])  # median 3, distances 2 1 0 1 97, their median 1
    assert how == "MAD"
    assert z == pytest.approx(0.6745 * np.array([-2, -1, 0, 1, 97]))


def test_robust_z_is_a_z_where_values_are_normal() -> None:
    x = np.random.default_rng(0).normal(5, 3, 20_001)
    z, _ = robust_z(x)
    assert z.std() == pytest.approx(1, abs=0.02)
    assert np.sign(z).sum() == 0


def test_robust_z_where_more_than_half_are_equal() -> None:
    z, how = robust_z([5, 5, 5, 5, 5, 5, 5, 1, 9, 25])  # distances 4 + 4 + 20 = 28, mean 2.8
    assert how == "mean AD"
    assert z == pytest.approx(np.array([0] * 7 + [-4, 4, 20]) / (1.2533 * 2.8))


def test_robust_z_where_all_are_equal() -> None:
    z, how = robust_z([0.1, NAN, 0.1])
    assert how == "constant"
    assert np.array_equal(z, [0, NAN, 0], equal_nan=True)


def test_robust_z_passes_over_what_was_not_measured() -> None:
    z, how = robust_z([NAN, 1, 2, NAN, 3, 4, 100])
    assert how == "MAD"
    assert np.isnan(z[[0, 3]]).all()
    assert z[[1, 2, 4, 5, 6]] == pytest.approx(robust_z([1, 2, 3, 4, 100])[0])


@pytest.mark.parametrize(
    ("values", "says"),
    [([], "no number among 0"), ([NAN], "no number among 1"), ([1, -np.inf, 2], "1 infinite among 3")],
)
def test_robust_z_needs_numbers(values, says: str) -> None:
    with pytest.raises(InputError, match=says):
        robust_z(values)


def test_jaccard_by_hand() -> None:
    assert jaccard({1, 2, 3}, {2, 3, 4}) == 0.5
    assert jaccard({1}, {2}) == jaccard(set(), {1}) == 0
    assert jaccard(set(), set()) == jaccard({(0, 1)}, frozenset({(0, 1)})) == 1


def naive_stability(sets, resamples: int, seed: int) -> list[float]:
    """Means of resampled prompts, pair by pair, without pairs of one prompt with itself."""
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(resamples):
        drawn = rng.integers(len(sets), size=len(sets))
        pairs = [jaccard(sets[i], sets[j]) for i, j in combinations(drawn, 2) if i != j]
        if pairs:
            means.append(sum(pairs) / len(pairs))
    return means


def some_sets(rng, n: int) -> list[set[int]]:
    """Each prompt finds token 0, and others with a chance that differs between prompts."""
    return [{0} | set(np.flatnonzero(rng.random(6) < rng.uniform(0.1, 0.9)) + 1) for _ in range(n)]


def test_stability_against_plain_loops() -> None:
    sets = some_sets(np.random.default_rng(8), 9)
    mean, interval = stability(sets, resamples=20_000)
    assert mean == pytest.approx(np.mean([jaccard(a, b) for a, b in combinations(sets, 2)]))
    wanted = np.quantile(naive_stability(sets, 5000, seed=1), [0.025, 0.975])
    assert interval == pytest.approx(wanted, abs=0.01)


def test_a_prompt_drawn_twice_does_not_agree_with_itself() -> None:
    assert stability([{1}, {2}, {3}, {4}]) == (0.0, (0.0, 0.0))
    assert stability([set(), set(), set()]) == (1.0, (1.0, 1.0))


def test_stability_holds_what_it_says() -> None:
    """25 prompts. Standard error of 300 trials: 1.7 points. Measured: 90.7 %."""
    rng = np.random.default_rng(9)
    many = some_sets(rng, 600)
    truth = np.mean([jaccard(a, b) for a, b in combinations(many, 2)])
    held = []
    for trial in range(300):
        _, (low, high) = stability(some_sets(rng, 25), resamples=1000, seed=trial)
        held.append(low <= truth <= high)
    assert 0.88 <= np.mean(held) <= 0.98


def test_stability_of_few_prompts() -> None:
    mean, interval = stability([{1, 2}, {2}])
    assert mean == 0.5 and all(map(math.isnan, interval))
    for sets in ([], [{1}]):
        with pytest.raises(InputError, match="at least 2 prompts"):
            stability(sets)
