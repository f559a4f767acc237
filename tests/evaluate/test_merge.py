"""Runs of one text become one document; anything else is refused in one line. Runs over time are told apart."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from evaluate.documents import FIRST, comparison, plain
from sinkpin.errors import InputError
from sinkpin.evaluate.changes import changes
from sinkpin.evaluate.front import front
from sinkpin.evaluate.merge import merged
from sinkpin.evaluate.schema import checked


def halves() -> tuple[dict[str, Any], dict[str, Any]]:
    one, other = comparison(), comparison()
    one["arms"], other["arms"] = one["arms"][:4], [other["arms"][0], *other["arms"][4:]]
    one["pairs"], other["pairs"] = one["pairs"][:1], one["pairs"][1:]
    other["command"] = "sinkpin compare --policy h2o"
    return one, other


def test_two_runs_of_one_text_are_one_document() -> None:
    together = merged(halves(), ["a", "b"])
    assert [arm["name"] for arm in together["arms"]] == [arm["name"] for arm in comparison()["arms"]]
    assert together["pairs"] == comparison()["pairs"] and together["command"].count("\n") == 1
    assert "merged from 2 runs" in together["notes"][-1]
    assert together["notes"].count("text: pride_and_prejudice.txt") == 1
    checked(together, None)  # type: ignore[arg-type]


def test_one_run_stays_as_it_is() -> None:
    document = comparison()
    assert merged([document], ["a"]) is document


def test_versions_that_differ_are_all_stated() -> None:
    one, other = halves()
    other["versions"] = other["versions"] | {"torch": "2.14.0"}
    together = merged([one, other], ["a", "b"])
    assert together["versions"]["torch"] == "2.13.0 and 2.14.0" and together["versions"]["sinkpin"] == "0.2.0"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "another"}, "model"), ({"tokens": 9000}, "tokens"), ({"scored_tokens": 5}, "scored_tokens"), ({"margin": 0.02}, "margin"),
        ({"blocks": {"size": 512, "count": 1, "ends": [FIRST]}}, "blocks end"),
    ],
)  # fmt: skip
def test_runs_of_other_texts_are_refused(change: dict[str, Any], said: str) -> None:
    one, other = halves()
    with pytest.raises(InputError, match=said) as refused:
        merged([one, other | change], ["a.json", "b.json"])
    assert "a.json and b.json" in str(refused.value) and "\n" not in str(refused.value)


def test_another_reference_loss_is_another_text() -> None:
    one, other = halves()
    other["arms"][0] = other["arms"][0] | {"nll": other["arms"][0]["nll"] + 0.01}
    with pytest.raises(InputError, match=r"full cache’s loss is 2\.92 and 2\.93"):
        merged([one, other], ["a", "b"])


def test_one_name_with_two_losses_is_refused() -> None:
    one, other = comparison(), comparison()
    other["arms"][2] = other["arms"][2] | {"nll": 3.9}
    with pytest.raises(InputError, match=r"streaming-64\+4 has a loss of 3.216 nats in a and 3.9 in b"):
        merged([one, other], ["a", "b"])


def test_an_earlier_file_joins_and_the_judged_arm_is_kept() -> None:
    together = merged([plain(), comparison()], ["a", "b"])
    assert [arm["verdict"] for arm in together["arms"]] == [arm["verdict"] for arm in comparison()["arms"]]
    assert together["blocks"] == comparison()["blocks"] and together["margin"] == 0.01


def test_what_moved_is_told_by_verdicts_and_by_intervals() -> None:
    before, after = comparison(), copy.deepcopy(comparison())
    lines = {arm["name"]: arm for arm in after["arms"]}
    lines["h2o-1024+4"]["verdict"] = "worse"
    lines["streaming-64+4"] |= {"delta_nll": 0.4, "ci95": [0.37, 0.43]}  # was [0.266, 0.326]
    lines["window-256+0"] |= {"delta_nll": 0.75, "ci95": [0.69, 0.81]}  # overlaps
    lines["streaming-256+4"] |= {"delta_nll": 0.09, "ci95": [0.08, 0.1]}  # was [0.104, 0.128]
    lines["window-64+0"] |= {"ci95": None, "verdict": None}
    after["arms"] = [arm for arm in after["arms"] if arm["name"] != "snapkv-1024+4"]
    after["versions"]["torch"] = "2.14.0"
    found = changes(before, after)
    moved = {arm["name"]: arm["moved"] for arm in found["arms"]}
    assert moved == {
        "window-64+0": None, "streaming-64+4": True, "window-256+0": False, "streaming-256+4": True, "h2o-256+4": False,
        "h2o-1024+4": True,
    }  # fmt: skip
    assert found["gone"] == ["snapkv-1024+4"] and found["new"] == []
    assert found["differs"] == ["torch: 2.13.0 → 2.14.0"]
    assert found["arms"][1]["delta_nll"] == [0.296, 0.4]


def test_the_front_is_what_no_other_arm_beats_in_both() -> None:
    lines = comparison()["arms"]
    beaten = {
        one["name"]
        for one in lines
        for other in lines
        if other is not one
        and other["kv_bytes_steady"] <= one["kv_bytes_steady"]
        and other["delta_nll"] <= one["delta_nll"]
    }
    assert set(front(lines)) == {arm["name"] for arm in lines} - beaten
    assert front(lines)[0] == "window-64+0" and "full" not in front(lines)
