"""The sink card: rules resolved for one prompt, a document read strictly and written whole, and what moved."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sinkpin.card import Card, changed
from sinkpin.card.rules import RULES, Rule, first, indices, opening
from sinkpin.errors import InputError

RULE_OF_EACH = (first(4), opening([1, 7, 3]), indices([0, 17], [1, 99]))


def card(*rules: Rule, **more: Any) -> Card:
    given: dict[str, Any] = {
        "model": "toy",
        "model_hash": "ab" * 32,
        "tokenizer_hash": None,
        "template_hash": None,
        "settings": {"epsilon": 0.3, "prompts": 8},
        "rules": rules,
        "needed": 1,
        "stability": {"jaccard": 0.9, "ci95": [0.8, 1.0], "prompts": 8},
        "sinks": ({"index": 0, "text": "<s>", "kind": "true", "mass": 0.6},),
        "versions": {"sinkpin": "0.1.0"},
        "notes": ("one",),
    }
    return Card(**{**given, **more})


def prompt(length: int = 30, **at: int) -> list[int]:
    """Distinct ids from 200 on, with those of `at` (`i3=7`: 7 at index 3) put in."""
    ids = list(range(200, 200 + length))
    for key, value in at.items():
        ids[int(key[1:])] = value
    return ids


# rules


def test_first_pins_whatever_stands_there() -> None:
    assert card(first(4)).resolve(prompt()) == ([(0, 4)], [])
    assert card(first(0)).resolve(prompt()) == ([], [])
    assert card(first(4)).resolve([5]) == ([(0, 4)], [])


def test_an_opening_pins_where_all_of_it_stands_and_else_nothing() -> None:
    opened = card(opening([1, 7, 3]))
    assert opened.resolve([1, 7, 3, 50]) == ([(0, 3)], [])
    assert opened.resolve([1, 7, 3]) == ([(0, 3)], [])
    for ids, said in (
        ([1, 7, 4, 50], "token 2 is 4, not 3"),
        ([9, 1, 7, 3], "token 0 is 9, not 1"),
        ([1, 7], "the prompt has 2 tokens, and token 2 should be 3"),
        ([], "the prompt has 0 tokens, and token 0 should be 1"),
    ):
        spans, notes = opened.resolve(ids)
        assert spans == []
        assert len(notes) == 1
        assert "rule opening" in notes[0] and said in notes[0]


def test_indices_pin_where_all_their_tokens_stand() -> None:
    one = card(indices([0, 17, 18], [1, 99, 98]))
    assert one.resolve(prompt(i0=1, i17=99, i18=98)) == ([(0, 1), (17, 19)], [])
    spans, notes = one.resolve(prompt(i0=1, i17=99))
    assert spans == []
    assert "rule indices" in notes[0] and "token 18 is 218, not 98" in notes[0]
    assert one.resolve(prompt(10, i0=1))[0] == []


def test_rules_unite() -> None:
    """Kills: spans that overlap or touch and are not merged; a rule that fails taking the others with it."""
    both = card(first(2), opening([1, 7, 3]), indices([3, 9], [8, 9]))
    assert both.resolve(prompt(i0=1, i1=7, i2=3, i3=8, i9=9)) == ([(0, 4), (9, 10)], [])
    spans, notes = both.resolve(prompt(i3=8, i9=9))
    assert spans == [(0, 2), (3, 4), (9, 10)]
    assert len(notes) == 1


def test_what_a_card_can_pin_is_known_before_any_prompt() -> None:
    whole = card(*RULE_OF_EACH)
    assert whole.spans == [(0, 4), (17, 18)]
    assert whole.most == 5
    assert whole.reads == 18
    assert (card(first(4)).most, card(first(4)).reads) == (4, 0)
    assert (card().most, card().spans, card().resolve([1, 2])) == (0, [], ([], []))


@pytest.mark.parametrize(("ids", "wanted"), [([1, 7], True), ([], True), ([1, 8], False), ([1, 7, 3], False)])
def test_whether_more_tokens_could_still_decide(ids: list[int], wanted: bool) -> None:
    """Kills: asking for more of a prompt that has already differed."""
    assert opening([1, 7, 3]).undecided(ids) is wanted
    assert not first(9).undecided(ids)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: first(-1), "count"),
        (lambda: first(True), "count"),
        (lambda: first(1.0), "count"),
        (lambda: opening([]), "ids"),
        (lambda: opening([1, -2]), "ids"),
        (lambda: opening("12"), "ids"),
        (lambda: opening(3), "ids"),
        (lambda: indices([], []), "indices"),
        (lambda: indices([0, 0], [1, 1]), "ascending"),
        (lambda: indices([3, 1], [1, 1]), "ascending"),
        (lambda: indices([-1], [1]), "indices"),
        (lambda: indices([0, 1], [1]), "2 indices and 1 ids"),
    ],
)
def test_what_is_no_rule(make: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_rule_is_written_as_it_is_read() -> None:
    assert [rule.to_json() for rule in RULE_OF_EACH] == [
        {"rule": "first", "count": 4},
        {"rule": "opening", "ids": [1, 7, 3]},
        {"rule": "indices", "indices": [0, 17], "ids": [1, 99]},
    ]
    assert set(RULES) == {rule.kind for rule in RULE_OF_EACH}


# the document


def test_a_card_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "sinks.json"
    for whole in (
        card(*RULE_OF_EACH),
        card(needed=None, stability=None, sinks=(), notes=(), tokenizer_hash="cd" * 32, template_hash="é"),
        card(stability={"jaccard": 1.0, "ci95": None, "prompts": 1}, settings={"on": "öß\ud800", "x": None}),
    ):
        whole.write(path)
        assert Card.read(path) == Card.read(str(path)) == whole
        assert json.loads(path.read_text())["schema"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["sinks.json"]
    assert Card.from_json(whole.to_json()) == whole


def document(**more: Any) -> dict[str, Any]:
    return {**card(*RULE_OF_EACH).to_json(), **more}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"schema": 2}, "schema 2"),
        ({"schema": "1"}, "schema '1'"),
        ({"schema": True}, "schema True"),
        ({"colour": 1}, "'colour'"),
        ({"model": None}, "model"),
        ({"model_hash": None}, "model_hash"),
        ({"model_hash": ""}, "model_hash"),
        ({"tokenizer_hash": 5}, "tokenizer_hash"),
        ({"settings": []}, "settings"),
        ({"settings": {"a": [1]}}, "settings"),
        ({"settings": {"a": {"b": 1}}}, "settings"),
        ({"rules": {}}, "rules"),
        ({"rules": ["first"]}, "rule"),
        ({"rules": [{"count": 4}]}, "rule None"),
        ({"rules": [{"rule": "frist", "count": 4}]}, "'frist'.*first, opening, indices"),
        ({"rules": [{"rule": ["first"], "count": 4}]}, r"\['first'\]"),
        ({"rules": [{"rule": "first", "count": -4}]}, "count -4"),
        ({"rules": [{"rule": "first", "count": 4.0}]}, "count 4.0"),
        ({"rules": [{"rule": "first", "count": "4"}]}, "count '4'"),
        ({"rules": [{"rule": "first"}]}, "count"),
        ({"rules": [{"rule": "first", "count": 4, "ids": [1]}]}, "ids"),
        ({"rules": [{"rule": "opening", "ids": [1, 2.5]}]}, "ids"),
        ({"rules": [{"rule": "opening", "ids": [1, True]}]}, "ids"),
        ({"needed": -1}, "needed"),
        ({"needed": 1.5}, "needed"),
        ({"stability": {"jaccard": 0.5}}, "stability"),
        ({"stability": {"jaccard": 1.5, "ci95": None, "prompts": 3}}, "jaccard"),
        ({"stability": {"jaccard": 0.5, "ci95": [0.9, 0.1], "prompts": 3}}, "ci95"),
        ({"stability": {"jaccard": 0.5, "ci95": [0.1], "prompts": 3}}, "ci95"),
        ({"stability": {"jaccard": 0.5, "ci95": None, "prompts": 0}}, "prompts"),
        ({"sinks": [{"index": 0}]}, "sinks"),
        ({"sinks": [{"index": -1, "text": "a", "kind": "true", "mass": 0.1}]}, "sinks"),
        ({"sinks": [{"index": 0, "text": "a", "kind": "true", "mass": 2}]}, "sinks"),
        ({"versions": {"torch": 2}}, "versions"),
        ({"notes": "one"}, "notes"),
        ({"notes": [1]}, "notes"),
    ],
)
def test_a_document_of_another_kind_is_one_line(more: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = tmp_path / "sinks.json"
    path.write_text(json.dumps(document(**more)))
    with pytest.raises(InputError, match=says) as caught:
        Card.read(path)
    assert str(path) in str(caught.value)
    assert "sinkpin detect" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", sorted(card().to_json()))
def test_no_key_may_be_missing(key: str, tmp_path: Path) -> None:
    path = tmp_path / "sinks.json"
    path.write_text(json.dumps({k: v for k, v in document().items() if k != key}))
    with pytest.raises(InputError, match=key):
        Card.read(path)


WHOLE = json.dumps(document())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (WHOLE[: len(WHOLE) // 2], "not whole JSON"),
        ("", "not whole JSON"),
        ("[1, 2]", "not an object"),
        ("null", "not an object"),
        (WHOLE.replace('"jaccard": 0.9', '"jaccard": NaN'), "NaN"),
        (WHOLE.replace('"mass": 0.6', '"mass": -Infinity'), "Infinity"),
        (WHOLE.replace('"mass": 0.6', '"mass": 1e999'), "sinks"),
        (WHOLE.replace('"needed": 1', '"needed": 1, "needed": 2'), "'needed' twice"),
        (WHOLE.replace('"count": 4', '"count": 4, "count": 5'), "'count' twice"),
        ("[" * 100_000, "not whole JSON"),
        (" " * (1 << 20) + WHOLE, "1 MiB"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_card_is_one_line(content: str | bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "sinks.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=says) as caught:
        Card.read(path)
    assert str(path) in str(caught.value)
    assert "sinkpin detect" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        Card.read(tmp_path / "sinks.json")
    with pytest.raises(InputError, match="is a folder"):
        Card.read(tmp_path)
    with pytest.raises(InputError, match="is a folder"):
        card().write(tmp_path)
    with pytest.raises(InputError, match=r"cannot write the card to .*missing/sinks\.json") as caught:
        card().write(tmp_path / "missing" / "sinks.json")
    assert ".new" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_that_could_not_be_read(tmp_path: Path) -> None:
    """Kills: a NaN that reaches the file, and an older card lost to it."""
    path = tmp_path / "sinks.json"
    card().write(path)
    before = path.read_bytes()
    for wrong in (card(settings={"a": float("nan")}), card(needed=-1), card(model_hash="")):
        with pytest.raises(InputError, match="card is not written"):
            wrong.write(path)
    assert path.read_bytes() == before


def test_a_card_needs_no_torch() -> None:
    code = "import sys, sinkpin.card; sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# what moved


def test_nothing_moved() -> None:
    same = changed(card(*RULE_OF_EACH), card(*RULE_OF_EACH))
    assert (same.moved, same.remarks) == ([], [])


OLD = card(first(4), opening([1, 7, 3]))


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (card(first(1), opening([1, 7, 3])), "rule first: 4 -> 1"),
        (card(first(4)), "rule opening: 3 tokens -> none"),
        (
            card(first(4), opening([1, 7, 9])),
            "the template's opening changed: 3 tokens -> 3, from token 2 on",
        ),
        (
            card(first(4), opening([1, 7, 3, 4])),
            "the template's opening changed: 3 tokens -> 4, from token 3 on",
        ),
        (card(*OLD.rules, indices([2], [5])), "rule indices: none -> token 5 at 2"),
        (card(*OLD.rules, opening([5])), "rules opening: 1 -> 2"),
        (card(*OLD.rules, needed=2), "needed: 1 -> 2"),
        (card(*OLD.rules, sinks=()), "true sinks at: 0 -> none"),
    ],
)
def test_what_moved_is_said(new: Card, says: str) -> None:
    both = changed(OLD, new)
    assert both.moved == [says]
    assert both.remarks == []
    assert changed(new, OLD).moved


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"model_hash": "cd" * 32}, "the model's hash differs, and the sinks are where they were"),
        ({"tokenizer_hash": "cd" * 32}, "the tokenizer's hash differs, and the sinks are where they were"),
        ({"template_hash": "cd" * 32}, "the template's hash differs, and the sinks are where they were"),
        ({"model": "other"}, "model: toy -> other"),
        ({"settings": {"epsilon": 0.2, "prompts": 8}}, "setting epsilon: 0.3 -> 0.2"),
        ({"needed": None}, "needed: 1 -> not measured"),
        ({"stability": None}, "stability: 0.90 -> not measured"),
        ({"stability": {"jaccard": 0.7, "ci95": None, "prompts": 8}}, "stability: 0.90 -> 0.70"),
        (
            {"sinks": (*OLD.sinks, {"index": 9, "text": "a", "kind": "secondary", "mass": 0.1})},
            "secondary sinks at: none -> 9",
        ),
    ],
)
def test_what_moves_nothing_is_a_remark(more: dict[str, Any], says: str) -> None:
    """Kills: a gate that closes on a hash alone."""
    both = changed(OLD, replace(OLD, **more))
    assert both.moved == []
    assert len(both.remarks) == 1 and both.remarks[0].startswith(says)


def test_a_hash_that_differs_where_sinks_moved_says_only_that() -> None:
    both = changed(OLD, replace(OLD, model_hash="cd" * 32, needed=3))
    assert both.moved == ["needed: 1 -> 3"]
    assert both.remarks == ["the model's hash differs"]


def test_what_is_not_compared() -> None:
    new = replace(
        OLD, versions={"sinkpin": "9"}, notes=(), sinks=({**OLD.sinks[0], "mass": 0.2, "text": "x"},)
    )
    assert changed(OLD, new) == changed(OLD, OLD)
