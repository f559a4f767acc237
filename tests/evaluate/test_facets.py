"""Which arms share a panel, and that nothing is left out in silence."""

from __future__ import annotations

from evaluate.test_picture import GRID, MANY, POLICIES
from sinkpin.evaluate.facets import panels


def names(make, perplexities):
    rows, left_out = panels(make(perplexities).arms)
    for row in rows:
        assert all(panel.arms[0].name == "full" for panel in row)
    return [[[arm.name for arm in panel.arms[1:]] for panel in row] for row in rows], left_out


def test_few_arms_share_one_panel(make):
    perplexities = {"full": 22.0, "window-64+0": 30.0, "streaming-64+4": 25.0}
    assert names(make, perplexities) == ([[["window-64+0", "streaming-64+4"]]], "")


def test_more_arms_are_parted_by_budget(make):
    perplexities = {"full": 22.0} | {
        f"h2o-{budget}+{sinks}": 30.0 for budget in (64, 32) for sinks in range(5)
    }
    drawn, left_out = names(make, perplexities)
    assert drawn == [[[f"h2o-{budget}+{sinks}" for sinks in range(5)]] for budget in (32, 64)]
    assert left_out == ""


def test_many_arms_are_parted_by_pins_too(make):
    drawn, left_out = names(make, GRID)
    assert [[len(panel) for panel in row] for row in drawn] == [[len(POLICIES)] * 2] * 2
    assert drawn[0][0] == [f"{policy}-10%+0" for policy in POLICIES]
    assert drawn[1][1][:2] == ["streaming-25%+4", "h2o-25%+4"]
    assert left_out == ""


def test_what_is_left_out_is_said(make):
    _, left_out = names(make, MANY)
    assert "the smallest 4 of 29 budgets" in left_out
    ablation = {"full": 22.0} | {
        f"{p}-64+{n}": 30.0 for p in ("h2o", "tova", "random") for n in (0, 1, 2, 4, 8)
    }
    drawn, left_out = names(make, ablation)
    assert drawn == [[[f"{p}-64+{n}" for p in ("h2o", "tova", "random")] for n in (0, 4)]]
    assert "0 and 4 pins of 5 numbers" in left_out
    seeds = {"full": 22.0} | {f"random:seed={i}-64+0": 30.0 + i for i in range(20)}
    drawn, left_out = names(make, seeds)
    assert drawn == [[[f"random:seed={i}-64+0" for i in range(12)]]]
    assert "the 12 lowest of 20 arms" in left_out
