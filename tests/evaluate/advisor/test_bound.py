"""The bound: what it says of a loss, how often it lies below the truth, and how much text would tighten it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from evaluate.advisor.drawn import SMALL
from sinkpin.evaluate.advisor.bound import Bound, bound
from sinkpin.statistics import mean_interval


def test_it_is_never_below_either_of_its_two_bounds():
    rng = np.random.default_rng(0)
    for drawn in (rng.normal(0.01, 0.02, 20), rng.gamma(1, 0.02, 20), -rng.gamma(1, 0.02, 25)):
        found = bound(drawn)
        reach = stats.t.ppf(0.95, len(drawn) - 1) * stats.sem(drawn)
        low, high = mean_interval(drawn, 0.90)
        assert found.high == pytest.approx(max(high, drawn.mean() + reach))
        assert found.low == pytest.approx(min(low, drawn.mean() - reach))
        assert found.nll == pytest.approx(drawn.mean())


def test_a_loss_is_by_how_much_perplexity_grows():
    found = Bound(20, math.log(1.02), math.log(1.01), math.log(1.05))
    assert found.loss == pytest.approx(0.02)
    assert found.at_most == pytest.approx(0.05)
    assert found.within(0.0501)
    assert not found.within(0.0499)
    assert found.beyond(0.0099)
    assert not found.beyond(0.0101)


@pytest.mark.parametrize("blocks", [20, 40])
def test_it_lies_below_the_truth_about_as_often_as_stated(blocks):
    rng = np.random.default_rng(5)
    below = [bound(rng.normal(0.01, 0.02, blocks), SMALL).high < 0.01 for _ in range(1000)]
    assert 0.03 <= np.mean(below) <= 0.065  # 0.05 ± 2 standard errors of 1,000 draws


def test_as_many_blocks_as_it_asks_for_are_enough_and_half_of_them_are_not():
    rng = np.random.default_rng(3)
    limit, mean, spread = 0.01, 0.006, 0.02
    asked = bound(rng.normal(mean, spread, 30)).blocks_needed(limit)
    assert asked is not None
    # What the normal formula says of the true mean and spread.
    true = (1.645 * spread / (math.log1p(limit) - mean)) ** 2
    assert true / 3 < asked < 3 * true
    exact = Bound(30, mean, 0, mean + 1.645 * spread / 30**0.5).blocks_needed(limit)
    assert exact == math.floor(true) + 1


def test_no_text_helps_where_the_loss_itself_is_above():
    assert Bound(30, 0.02, 0.01, 0.03).blocks_needed(0.01) is None


def test_a_loss_beyond_numbers_is_infinite_and_not_within():
    assert bound([800.0, 900.0, 1000.0]).at_most == math.inf
    assert not bound([800.0, 900.0, 1000.0]).within(1e9)
