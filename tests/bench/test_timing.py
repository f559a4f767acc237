"""Turns and ratios."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from sinkpin.bench.timing import Step, interleave, paired, spread


def test_arms_take_turns_and_every_second_round_goes_backwards():
    ran: list[str] = []
    steps = [Step(name, lambda name=name: ran.append(name)) for name in "abc"]
    interleave(steps, 3, sync=lambda: None)
    assert "".join(ran) == "abccbaabc"


def test_what_comes_before_is_not_timed_and_the_device_is_waited_for(monkeypatch):
    order: list[str] = []
    monkeypatch.setattr("time.perf_counter", lambda: order.append("clock") or 0.0)
    step = Step("a", lambda: order.append("run"), before=lambda: order.append("before"))
    interleave([step], 1, sync=lambda: order.append("sync"))
    assert order == ["before", "sync", "clock", "run", "sync", "clock"]


def test_an_arm_that_is_run_rarely_is_paired_with_its_own_rounds():
    times = interleave(
        [Step("often", lambda: None), Step("rare", lambda: None, every=4)], 9, sync=lambda: None
    )
    assert np.isfinite(times["often"]).all()
    assert np.flatnonzero(np.isfinite(times["rare"])).tolist() == [0, 4, 8]


def test_ratios_are_taken_within_rounds():
    """Kills: the ratio of the medians, which is 4 here: neither median is of the round that was disturbed."""
    assert paired(np.array([2.0, 4.0, 30.0]), np.array([1.0, 1.0, 10.0])) == pytest.approx(3.0)
    assert paired(np.array([np.nan, 6.0, np.nan]), np.array([1.0, 3.0, 1.0])) == pytest.approx(2.0)
    assert paired(np.array([np.nan, 1.0]), np.array([1.0, np.nan])) is None


def test_spread_leaves_out_the_rounds_without_a_turn():
    assert spread(np.array([np.nan, 1.0, 2.0, 3.0])) == pytest.approx((2.0, 1.2, 2.8))


def test_garbage_is_not_collected_meanwhile_and_is_again_afterwards():
    seen: list[bool] = []
    with pytest.raises(ZeroDivisionError):
        interleave(
            [Step("a", lambda: seen.append(gc.isenabled())), Step("b", lambda: 1 / 0)], 1, sync=lambda: None
        )
    assert seen == [False]
    assert gc.isenabled()
