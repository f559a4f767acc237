"""Intervals of shares: SciPy's where answers are independent, wider where they are not, and never of no width."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sinkpin.evaluate.probes.intervals import difference_interval, effective, share_interval


@pytest.mark.parametrize(("right", "n"), [(0, 5), (3, 8), (24, 24)])
def test_independent_answers_have_wilsons_interval(right, n):
    values = [1.0] * right + [0.0] * (n - right)
    z, p = stats.norm.ppf(0.975), right / n
    middle, half = (p + z * z / (2 * n)), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    expected = (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
    assert share_interval(values, list(range(n))) == pytest.approx(expected, abs=1e-9)


def test_answers_of_one_text_count_as_fewer():
    """Ten texts of five answers: where a text is right or wrong as a whole there are ten answers, not fifty."""
    groups = [text for text in range(10) for _ in range(5)]
    together = [float(text < 5) for text in groups]
    apart = [float(number % 2) for number in range(50)]
    low, high = share_interval(together, groups)
    few = share_interval([float(text < 5) for text in range(10)], list(range(10)))
    assert low < few[0] and high > few[1]
    assert effective(np.array(together), groups) <= 10
    assert 10 < effective(np.array(apart), groups) <= 50
    low, high = share_interval([1.0] * 50, groups)
    assert high == 1.0 and low == pytest.approx(stats.beta.ppf(0.025, 10, 1))


def test_one_text_says_next_to_nothing():
    low, high = share_interval([1.0, 1.0, 1.0, 0.0], [0, 0, 0, 0])
    assert low < 0.1 and high > 0.95


@pytest.mark.parametrize("each", [1, 4])
def test_intervals_hold_the_truth_as_often_as_they_say(each):
    """Texts differ in how hard they are; 24 of them, 500 times."""
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(24), each)
    held = paired = 0
    for _ in range(500):
        hard = rng.beta(2, 1, 24)
        full = (rng.random(24 * each) < hard[groups]).astype(float)
        arm = (rng.random(24 * each) < 0.6 * hard[groups]).astype(float)
        low, high = share_interval(full, groups)
        held += low <= 2 / 3 <= high
        low, high = difference_interval(arm, full, groups)
        paired += low <= -0.4 * 2 / 3 <= high
    assert 0.92 <= held / 500 <= 0.995
    assert 0.92 <= paired / 500 <= 0.995


def test_equal_answers_are_no_proof_of_equality():
    """No question told the arms apart, of few: the interval covers zero and has a width."""
    answers = [1.0, 0.0] * 6
    low, high = difference_interval(answers, answers, list(range(12)))
    assert low < -0.05 and high > 0.05
    low, high = difference_interval([1.0] * 12, [1.0] * 12, list(range(12)))
    assert low < -0.1 and high > 0.1


def test_answers_that_go_together_tell_more_than_those_that_do_not():
    full = [1.0] * 30 + [0.0] * 30
    arm = [1.0] * 20 + [0.0] * 40
    against = [0.0] * 40 + [1.0] * 20
    low, high = difference_interval(arm, full, list(range(60)))
    wide_low, wide_high = difference_interval(against, full, list(range(60)))
    assert high - low < wide_high - wide_low
    assert low <= -10 / 60 <= high < 0
