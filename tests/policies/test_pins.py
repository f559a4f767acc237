"""Pins as index ranges: merging, counting, and what cannot be one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinkpin.errors import InputError
from sinkpin.policies.pins import Pins, met, pinned

CPU = torch.device("cpu")


def test_sinks_and_spans_unite() -> None:
    assert Pins.read(4, [(2, 6), (10, 12), (12, 13)]).rows == (((0, 6), (10, 13)),)
    assert Pins.read(4, [(2, 6), (10, 12)]).most == 8
    assert Pins.read(0).most == 0


def test_one_list_per_row() -> None:
    pins = Pins.read(1, [[(5, 7)], []])
    assert pins.rows == (((0, 1), (5, 7)), ((0, 1),))
    assert pins.most == 3
    assert pins.tensor(2, CPU).tolist() == [[[0, 1], [5, 7]], [[0, 1], [0, 0]]]
    with pytest.raises(InputError, match="2 rows"):
        pins.tensor(3, CPU)


@pytest.mark.parametrize(
    "pins", [[(3, 3)], [(5, 2)], [(-1, 2)], [5], ["ab"], [(0, 1, 2)], [[(0, 1)], 7], [(0.5, 3)]]
)
def test_what_is_no_span(pins: list[object]) -> None:
    with pytest.raises(InputError, match="span"):
        Pins.read(4, pins)


@pytest.mark.parametrize("sinks", [-1, 1.5, True, "4"])
def test_what_is_no_number_of_sinks(sinks: object) -> None:
    with pytest.raises(InputError, match="sinks"):
        Pins.read(sinks)  # type: ignore[arg-type]


@given(
    sinks=st.integers(0, 5),
    spans=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 6)).map(lambda x: (x[0], x[0] + x[1])), max_size=4
    ),
)
def test_counts_equal_a_plain_count(sinks: int, spans: list[tuple[int, int]]) -> None:
    pinned_indices = set(range(sinks)) | {i for start, stop in spans for i in range(start, stop)}
    index = torch.arange(-2, 30)[None]
    tensor = Pins.read(sinks, spans).tensor(1, CPU)
    assert met(tensor, index)[0].tolist() == [sum(p <= i for p in pinned_indices) for i in range(-2, 30)]
    assert pinned(tensor, index)[0].tolist() == [i in pinned_indices for i in range(-2, 30)]
