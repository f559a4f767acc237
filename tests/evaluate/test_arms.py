"""Arms: their names, their product, and what cannot be one."""

import pytest

from sinkpin.errors import BudgetError, PolicyError
from sinkpin.evaluate.arms import Arm, product, with_pins
from sinkpin.policies import resolve


def test_product_starts_with_full_and_names_streaming() -> None:
    names = [arm.name for arm in product(["window", "random:seed=3"], [64, "25%"], [0, 4])]
    assert names == [
        "full",
        "window-64+0",
        "streaming-64+4",
        "window-25%+0",
        "streaming-25%+4",
        "random[seed=3]-64+0",
        "random[seed=3]-64+4",
        "random[seed=3]-25%+0",
        "random[seed=3]-25%+4",
    ]


def test_the_same_arm_is_taken_once_and_full_is_no_second_reference() -> None:
    names = [arm.name for arm in product(["full", "window", "streaming", "window"], [64], [0, 4])]
    assert names == ["full", "window-64+0", "streaming-64+4"]


def test_frames_and_spans_are_part_of_the_name() -> None:
    assert Arm("window", 8, sinks=0, frame="original", pins=((3, 5),)).name == "window-8+0+3:5/original"


def test_where_options_end_and_the_budget_begins() -> None:
    """Kills: `adakv:base=snapkv,base.kernel=5-32+4`, a kernel from 5 to 32."""
    (_, arm) = product(["adakv:base=snapkv,base.kernel=5"], [32], [4])
    assert arm.name == "adakv[base=snapkv,base.kernel=5]-32+4"
    assert Arm("random", 64, options={"seed": 3}, pins=((5, 9),)).name == "random[seed=3]-64+4+5:9"


def test_a_pinned_variant_of_each_setting_behind_those_it_differs_from() -> None:
    arms = product(["window", "random:seed=3"], [64, "25%"], [0, 4], frame="original")
    assert [arm.name.removesuffix("/original") for arm in with_pins(arms, [(0, 2), (5, 9)])] == [
        "full",
        "window-64+0",
        "streaming-64+4",
        "streaming-64+2+5:9",
        "window-25%+0",
        "streaming-25%+4",
        "streaming-25%+2+5:9",
        "random[seed=3]-64+0",
        "random[seed=3]-64+4",
        "random[seed=3]-64+2+5:9",
        "random[seed=3]-25%+0",
        "random[seed=3]-25%+4",
        "random[seed=3]-25%+2+5:9",
    ]


def test_pinned_variants_that_are_there_already_are_not_there_twice() -> None:
    """Kills: first tokens as a span beside the same ones as sinks; streaming without a sink."""
    arms = product(["window", "streaming", "h2o"], [64], [0, 4])
    assert with_pins(arms, [(0, 4)]) == arms
    streaming = product(["streaming"], [64], [4])
    assert [arm.name for arm in with_pins(streaming, [(5, 9)])][1:] == ["streaming-64+4", "window-64+0+5:9"]
    assert with_pins(arms, []) == arms


def test_an_object_is_no_arm_and_the_remedy_is_said() -> None:
    with pytest.raises(PolicyError, match=r"is a name, not .*'sinkpin\.policies'.*BoundedCache") as caught:
        Arm(resolve("random"), 64)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_what_is_no_arm() -> None:
    with pytest.raises(PolicyError, match="did you mean"):
        product(["widow"], [64], [4])
    with pytest.raises(BudgetError, match="nonsense"):
        product(["window"], ["nonsense"], [4])
    with pytest.raises(PolicyError, match="at least one"):
        product(["streaming"], [64], [0])
    with pytest.raises(PolicyError, match="no arm"):
        product(["window"], [], [0])
    with pytest.raises(BudgetError, match="leave it out"):
        Arm("full", 64)
    with pytest.raises(BudgetError, match="no budget"):
        Arm("window")
    with pytest.raises(PolicyError, match="zero or more"):
        Arm("window", 64, sinks=-1)
