"""Budgets: what can be written, what it means in tokens, and that bytes are exact."""

import pytest

from sinkpin.budget import Budget, Footprint
from sinkpin.errors import BudgetError

ONE = Footprint(per_entry=100, fixed=24)


@pytest.mark.parametrize(
    ("written", "kind", "amount"),
    [
        (64, "tokens", 64),
        ("1024", "tokens", 1024),
        (" 64MiB ", "bytes", 64 * 2**20),
        ("1.5KiB", "bytes", 1536),
        ("2kb", "bytes", 2000),
        ("900 B", "bytes", 900),
    ],
)
def test_reads(written: int | str, kind: str, amount: int) -> None:
    budget = Budget.parse(written)
    assert (budget.kind, budget.amount) == (kind, amount)
    assert Budget.parse(budget) is budget


@pytest.mark.parametrize(
    "written",
    [
        0,
        -4,
        "0",
        "-1",
        "0%",
        "-5%",
        "101%",
        "nonsense",
        "",
        "12.5",
        "64 iB",
        "1e3",
        "64MiBs",
        True,
        None,
        2.0,
    ],
)
def test_refuses(written: object) -> None:
    with pytest.raises(BudgetError) as refusal:
        Budget.parse(written)  # type: ignore[arg-type]
    assert str(refusal.value).count("\n") == 0


def test_a_share_rounds_down_and_gives_way_to_the_pins() -> None:
    assert Budget.parse("25%").tokens(pins=4, footprint=ONE, prompt=103) == (25, None)
    assert Budget.parse("12.5%").tokens(pins=0, footprint=ONE, prompt=80) == (10, None)
    tokens, note = Budget.parse("10%").tokens(pins=4, footprint=ONE, prompt=40)
    assert tokens == 5
    assert note is not None
    assert "40 tokens is 4" in note
    assert "5" in note


def test_bytes_buy_what_they_pay_for_and_no_more() -> None:
    exactly = ONE.bytes_of(10)
    assert Budget.parse(f"{exactly}B").tokens(pins=4, footprint=ONE) == (10, None)
    assert Budget.parse(f"{exactly - 1}B").tokens(pins=4, footprint=ONE) == (9, None)


@pytest.mark.parametrize(("written", "pins"), [(4, 4), ("3", 4), ("424B", 4), ("100B", 0)])
def test_must_hold_more_than_the_pins(written: int | str, pins: int) -> None:
    with pytest.raises(BudgetError, match=r"\d"):
        Budget.parse(written).tokens(pins=pins, footprint=ONE)
