"""What the probes write: lengths to the token, answers where they are said to stand, and the same again from a seed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cli.toys import WORDS
from evaluate.probes.toys import CHATML, pen
from sinkpin.errors import InputError
from sinkpin.evaluate.probes import TABLE, named
from sinkpin.evaluate.probes.numbers import says
from sinkpin.evaluate.probes.repetition import compression, unrepeated
from sinkpin.evaluate.probes.rules import RULES

SMALL = {
    "needle": {"lengths": (600,), "depths": (0.0, 0.5, 1.0), "trials": 2},
    "passkey": {"lengths": (500,), "depths": (0.0, 0.5, 1.0), "trials": 2},
    "names": {"distances": (200,), "trials": 2},
    "streameval": {"tokens": 2500, "trials": 2, "distances": (1, 7)},
    "instructions": {"distances": (200,), "trials": 2},
    "repetition": {"prompt": 100, "trials": 2},
}


def written(name, **more):
    return named(name, **{**SMALL[name], **more}).write(pen(chat_template=CHATML))


def plain(trials):
    """Trials without their functions, which are never equal."""
    return [
        replace(trial, questions=tuple(replace(each, check=len) for each in trial.questions))
        for trial in trials
    ]


@pytest.mark.parametrize("name", TABLE)
def test_a_seed_fixes_the_trials(name):
    again, other = written(name), written(name, seed=1)
    assert plain(written(name)) == plain(again)
    assert plain(again) != plain(other)


@pytest.mark.parametrize("name", TABLE)
def test_answers_stand_where_they_are_said_to(name):
    for trial in written(name):
        assert trial.ids[0] == 0 or name == "instructions", "the tokenizer's BOS, once"
        assert trial.ids.count(0) <= 1
        for question in trial.questions:
            assert question.feed and question.at <= len(trial.ids)
            assert len(set(question.answers)) == len(question.answers) == len(question.answers)
            start, stop = question.holds
            assert 0 <= start < stop <= question.at


def test_questions_are_written_once_for_each_cell_and_the_right_answer_moves():
    trials = written("needle", trials=10)
    cells = {question.cell for trial in trials for question in trial.questions}
    assert len(cells) == 3 * 2
    assert len({question.right for trial in trials for question in trial.questions}) > 4


@pytest.mark.parametrize("name", ["needle", "passkey"])
@pytest.mark.parametrize("style", ["plain", "chat"])
def test_a_buried_number(name, style):
    """Length and place to the token; hidden and visible are one text, cut elsewhere."""
    tool = pen(chat_template=CHATML)
    probe = named(name, **SMALL[name], style=style)
    trials = probe.write(tool)
    for hidden, visible in zip(trials[::2], trials[1::2], strict=True):
        (asked,), (seen,) = hidden.questions, visible.questions
        assert len(hidden.ids) == asked.at == probe.lengths[0]
        assert hidden.ids + asked.feed == visible.ids + seen.feed
        assert asked.twins == (seen.cell,) and not visible.by_index and hidden.group == visible.group
        statement = tool.read(hidden.ids[slice(*asked.holds)])
        number = tool.read(asked.answers[asked.right]).strip()
        assert number in statement and statement.endswith(".")
        assert tool.read(hidden.ids).count(number) == statement.count(number)
        assert all(
            tool.read(other).strip() not in tool.read(hidden.ids)
            for i, other in enumerate(asked.answers)
            if i != asked.right
        )
        depth, place = dict(asked.cell)["depth"], asked.holds[0] / len(hidden.ids)
        assert abs(place - depth) < 0.3 and asked.check(f" {number}.") and not asked.check(f" {number}1")
    first, middle, last = (trials[i].questions[0].holds[0] for i in (0, 4, 8))
    assert first < middle < last
    assert trials[8].questions[0].holds[1] == probe.lengths[0]


def test_the_record_of_streameval():
    tool = pen()
    for trial in written("streameval"):
        lines = tool.read(trial.ids).splitlines()
        assert lines[0] == "Below is a record of lines I want you to remember."
        for number, line in enumerate(lines[1:]):
            assert re.fullmatch(rf"The REGISTER_CONTENT in line {number} is <\d{{5}}>", line)
        assert len(trial.ids) <= 2500
        for question in trial.questions:
            so_far = tool.read(trial.ids[: question.at]).splitlines()[1:]
            assert len(so_far) % 10 == 0 and len(so_far) >= 20
            (_, distance), *_ = question.cell
            line = so_far[-distance]
            assert tool.read(trial.ids[slice(*question.holds)]) == line[-6:]
            assert tool.read(question.answers[question.right]) == line[-6:]
            number = len(so_far) - distance
            assert tool.read(question.feed).endswith(f"\nThe REGISTER_CONTENT in line {number} is <")


def test_alternatives_of_streameval_are_its_neighbours():
    """Held or evicted together: the number of another line is no likelier for standing in the record."""
    tool = pen()
    for trial in written("streameval", score="choice", choices=4):
        for question in trial.questions:
            lines = [line[-6:] for line in tool.read(trial.ids[: question.at]).splitlines()[1:]]
            places = sorted(lines.index(tool.read(answer)) for answer in question.answers)
            right = lines.index(tool.read(question.answers[question.right]))
            assert places[-1] - places[0] == 3 and places[0] <= right <= places[-1]


def test_a_distance_that_no_stream_reaches_is_told():
    with pytest.raises(InputError, match=r"--distances 500: a stream of 2,500 tokens has \d+ lines"):
        written("streameval", distances=(500,))


def test_facts_are_said_once_and_far_enough_away():
    tool = pen()
    for trial in written("names"):
        text = tool.read(trial.ids)
        for question in trial.questions:
            word = tool.read(question.answers[question.right]).strip()
            assert word in tool.read(trial.ids[slice(*question.holds)])
            assert text.count(word) == 1 and question.check(f" {word}.") and not question.check(" no")
            assert question.at - question.holds[1] >= 200
        assert {dict(question.cell)["kind"] for question in trial.questions} == {
            "name", "place", "trade", "colour", "constraint", "appointment",
        }  # fmt: skip


def test_rules_stand_in_the_system_prompt_and_the_question_in_the_last_turn():
    tool = pen(chat_template=CHATML)
    for trial in written("instructions", rules=3):
        text = tool.read(trial.ids)
        assert text.startswith("<system>\nYou keep to these rules. ") and text.endswith("<user>\n")
        assert len(trial.questions) == 3
        for question in trial.questions:
            rule = next(rule for rule in RULES if rule.name == dict(question.cell)["rule"])
            said = tool.read(trial.ids[slice(*question.holds)])
            assert said == f" {rule.variants[question.right].says}" and text.count(said) == 1
            assert tool.read(question.feed).endswith(f"\n<assistant>\n{rule.cue}")
            assert said not in tool.read(question.blank)
            assert len(text[text.index("<user>") :]) > 200


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_kept_by_its_own_answer_only(rule):
    for variant in rule.variants:
        answers = {other: rule.cue + other.keeps for other in rule.variants}
        kept = [other for other, answer in answers.items() if variant.check(answer)]
        assert kept == [variant]


def test_a_template_that_loses_a_system_prompt_is_told():
    lost = "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['content'] }}{% endif %}{% endfor %}"
    with pytest.raises(InputError, match="it cannot be told where they stand"):
        named("instructions").write(pen(chat_template=lost))
    with pytest.raises(InputError, match="no chat template"):
        named("instructions").write(pen())
    with pytest.raises(InputError, match="refuses messages"):
        named("instructions").write(pen(chat_template="{{ raise_exception('no system role') }}"))


def test_repetition_is_counted():
    assert unrepeated(list(range(100))) == 1.0
    assert unrepeated([5] * 103) == pytest.approx(1 / 100)
    assert unrepeated(list(range(100)) * 2) == pytest.approx(0.5, abs=0.02)
    assert compression("word " * 500) < 0.05 < 0.4 < compression("".join(map(chr, range(33, 126))))


def test_a_haystack_is_as_long_as_asked_for_and_no_longer_than_its_text():
    tool = pen()
    import random

    for tokens in (1, 7, 500):
        assert sum(map(len, tool.sentences(random.Random(0), tokens))) == tokens
    with pytest.raises(InputError, match="and a haystack of 100,000 is asked for"):
        tool.sentences(random.Random(0), 100_000)
    assert tool.read(tool.piece(" abc")) == " abc" and WORDS


@pytest.mark.parametrize(
    ("said", "right"), [(" 12345>", True), ("123456", False), ("1234", False), (" <12345", True)]
)
def test_a_number_is_said_whole(said, right):
    assert says(12345)(said) is right


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("needle", {"lengths": (0,)}, "--lengths 0: give a whole number, 1 or more"),
        ("needle", {"lengths": ()}, "--lengths is empty: give each value once"),
        ("needle", {"lengths": (9, 9)}, "--lengths 9,9: give each value once"),
        ("needle", {"depths": (1.5,)}, "--depths 1.5: give shares from 0"),
        ("needle", {"question": ("seen",)}, "--question seen: it is hidden or visible"),
        ("needle", {"style": "loud"}, "--style loud: it is plain or chat"),
        ("needle", {"score": "luck"}, "--score luck: it is choice or exact"),
        ("needle", {"choices": 1}, "--choices 1: give a whole number, 2 or more"),
        ("needle", {"trials": 0}, "--trials 0: give a whole number, 1 or more"),
        ("needle", {"distances": (5,)}, "--distances is no setting of the probe needle"),
        ("names", {"choices": 8}, "the shortest list of words has 7"),
        ("instructions", {"rules": 5}, "--rules 5: there are 4"),
        ("instructions", {"choices": 3}, "each rule has 4 variants"),
        ("repetition", {"temperature": -1}, "--temperature -1: give 0"),
        ("repetition", {"trials": 1}, "--trials 1: give a whole number, 2 or more"),
        ("repetition", {"tokens": 4}, "--tokens 4: give a whole number, 8 or more"),
        ("streameval", {"every": 0}, "--every 0: give a whole number"),
        ("nothing", {}, "no probe is called 'nothing' (there are streameval, needle"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(name, settings, says):
    with pytest.raises(InputError) as error:
        named(name, **settings)
    assert says in str(error.value)


def test_a_length_without_room_is_told():
    with pytest.raises(InputError, match=r"--lengths 100: \d+ tokens of introduction"):
        named("needle", lengths=(100,)).write(pen())
