"""Choosing: the smallest setting is found with few runs, and what cannot win is not run."""

from __future__ import annotations

import math

import pytest

from evaluate.advisor.drawn import SMALL, Drawn, bytes_of, line, passages
from sinkpin.evaluate.advisor.search import best, search

BUDGETS = (32, 64, 96, 128, 192, 256, 384, 512)


def falls(scale):
    """Loss falls with the budget: `scale[policy] / budget` nats."""
    return lambda setting: scale[setting.arm.policy] / setting.budget


@pytest.mark.parametrize("h2o", [0.2, 0.9, 2.5, 4.0])
def test_it_finds_what_trying_everything_finds(h2o):
    lines, part = [line("h2o", BUDGETS), line("tova", BUDGETS)], passages(24)
    truth, limit = falls({"h2o": h2o, "tova": 1.5}), 0.01
    tried = search(lines, limit, part, Drawn(truth, spread=1e-4), bytes_of, SMALL)
    passing = [s for each in lines for s in each if truth(s) < math.log1p(limit)]
    chosen = best(tried)
    assert chosen is not None
    assert chosen.setting == min(passing, key=bytes_of)


def test_it_runs_far_fewer_than_all_and_each_setting_once():
    lines = [line(policy, BUDGETS) for policy in ("h2o", "tova", "keydiff", "snapkv")]
    scale = {"h2o": 0.9, "tova": 1.5, "keydiff": 9.0, "snapkv": 2.0}
    tried = search(lines, 0.01, passages(24), Drawn(falls(scale), 1e-4), bytes_of, SMALL)
    names = [trial.setting.name for trial in tried]
    assert len(set(names)) == len(names) <= 4 * 4
    # A line is left once all of it that could pass has more bytes than what passed already.
    assert sum(name.startswith("snapkv") for name in names) == 1


def test_what_is_clearly_above_is_given_up_after_the_first_passages():
    measure = Drawn(falls({"h2o": 0.1, "tova": 1000.0}), 1e-3)
    tried = search(
        [line("h2o", BUDGETS), line("tova", BUDGETS)], 0.01, passages(24), measure, bytes_of, SMALL
    )
    assert {t.bound.blocks for t in tried if t.setting.arm.policy == "tova"} == {5}
    assert {t.bound.blocks for t in tried if t.setting.arm.policy == "h2o"} == {24}


def test_where_nothing_passes_the_largest_budgets_are_tried_and_nothing_is_chosen():
    tried = search([line("h2o", BUDGETS)], 0.01, passages(24), Drawn(lambda s: 0.5, 1e-3), bytes_of, SMALL)
    assert tried[-1].setting.budget == max(BUDGETS)
    assert not any(trial.within for trial in tried)
    assert best(tried) is None


def test_a_bound_above_the_limit_does_not_pass_though_the_mean_is_below():
    tried = search([line("h2o", (64,))], 0.01, passages(24), Drawn(lambda s: 0.008, 0.05), bytes_of, SMALL)
    assert [trial.within for trial in tried] == [False]
