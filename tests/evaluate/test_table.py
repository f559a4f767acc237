"""The table at 80 columns and in a pipe: every number whole, nothing wider than the screen, nothing behind a line."""

import dataclasses
import re

import pytest

from sinkpin.evaluate.text import as_text

DEMO = {
    "full": 22.0,
    "window-64+0": 230.0,
    "streaming-64+4": 31.0,
    "window-256+0": 51.0,
    "streaming-256+4": 26.0,
    "random-64+0": 900.0,
    "random-64+4": 60.0,
    "random-256+0": 300.0,
    "random-256+4": 35.0,
}


def line_of(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.split()[:1] == [name])
    return line.split()


def test_every_number_is_whole_at_80_columns(make):
    text = as_text(make(DEMO, scored=3840, first=256))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert line_of(text, "streaming-256+4")[1:] == [
        "256",
        "11.2",
        "4",
        "26.00",
        "1.18",
        "0.51",
        "+0.167",
        "90.0",
        "100",
    ]
    assert line_of(text, "full")[1:] == ["all", "180.0", "-", "22.00", "1.00", "-", "-", "-", "100"]
    assert text.startswith("a model: 3,840 of 4,096 tokens scored, chunk 16\n")


def test_nothing_stands_behind_a_line(make):
    text = as_text(make(DEMO), width=120, notes=True)
    assert not re.search(r"[ \t]$", text, re.MULTILINE)
    assert not text.endswith("\n")


def test_words_are_as_wide_as_the_table(make):
    text = as_text(make(DEMO), width=300, notes=True)
    assert max(map(len, text.splitlines())) <= 80
    assert (
        max(map(len, as_text(make(DEMO), width=60, notes=True).splitlines())) <= 72
    )  # numbers are never cut


def test_the_chunk_is_named_where_it_is_part_of_a_result(make):
    assert "chunk" not in as_text(make()).splitlines()[0]
    assert "chunk 16" in as_text(make({"full": 22.0, "random-64+0": 30.0})).splitlines()[0]


def test_numbers_line_up_and_have_separators(make):
    text = as_text(make({"full": 1022.0, "window-1024+0": 98_765.0, "streaming-1024+4": 3e4}, scored=9000))
    rows = [line for line in text.splitlines() if re.match(r"(full|window|streaming)\S* .*\d$", line)][:3]
    assert len({len(row) for row in rows}) == 1
    assert line_of(text, "streaming-1024+4")[1:5] == ["1,024", "45.0", "4", "30,000.0"]


def test_a_long_name_wraps_and_numbers_stay(make):
    name = "pyramidkv:beta=20,window_size=32,kernel=7-64+4"
    result = make({"full": 22.0, "window-64+4": 31.0})
    arm = dataclasses.replace(result.arms[1], name=name)
    text = as_text(dataclasses.replace(result, arms=[result.arms[0], arm]))
    assert max(map(len, text.splitlines())) <= 80
    assert "31.00" in text
    assert name in "".join(line.split(" ")[0] for line in text.splitlines())


def test_colour_on_a_terminal_only(make):
    assert "\x1b" not in as_text(make(DEMO))
    assert "\x1b" in as_text(make(DEMO), colour=True)


def test_dropped_first_tokens_are_marked_without_colour(make):
    text = as_text(make({"full": 22.0, "window-64+0": 230.0, "streaming-64+4": 31.0, "keydiff-64+0": 30.0}))
    marked = [line.split()[0] for line in text.splitlines() if re.search(r"\+\d !", line)]
    assert marked == ["window-64+0"]
    assert "!: they were not pinned" in " ".join(text.split())
    assert "!" not in as_text(make({"full": 22.0, "streaming-64+4": 31.0}))


def test_pins_are_set_against_the_same_arm_without_them(make):
    """The effect of pins, apart from that of the policy; also where a budget in bytes holds an entry less."""
    text = as_text(make({"full": 20.0, "h2o-64KB+0": 40.0, "h2o-64KB+4": 30.0, "tova-64KB+4": 25.0}))
    assert line_of(text, "h2o-64KB+4")[1:7] == ["124", "5.4", "4", "30.00", "1.50", "0.75"]
    assert line_of(text, "h2o-64KB+0")[2:8] == ["125", "5.5", "0", "40.00", "2.00", "-"]
    assert line_of(text[: text.index("KV: held")], "tova-64KB+4")[6] == "-"
    assert "no pins" not in as_text(make({"full": 20.0, "tova-64+4": 25.0}))


def test_spans_are_pins(make):
    text = as_text(make({"full": 20.0, "window-64+0": 40.0, "window-64+0+5:9": 30.0}))
    assert line_of(text, "window-64+0+5:9")[4] == "4"


def test_units_follow_the_smallest_cache(make):
    assert "MiB" in as_text(make())
    result = make()
    small = [dataclasses.replace(arm, kv_bytes_steady=arm.kv_bytes_steady // 100) for arm in result.arms]
    assert "KiB" in as_text(dataclasses.replace(result, arms=small))


def test_nothing_measured_is_a_dash_not_a_zero(make):
    result = make({"full": 22.0, "window-64+0": 230.0})
    arms = [result.arms[0], dataclasses.replace(result.arms[1], top1_agreement=None)]
    assert line_of(as_text(dataclasses.replace(result, arms=arms)), "window-64+0")[-2:] == ["-", "0"]


@pytest.mark.parametrize("tokens", [1, 2])
def test_a_count_has_its_plural(make, tokens):
    assert f"on {tokens} token{'s' if tokens > 1 else ''} of one text" in " ".join(
        as_text(make(scored=tokens)).split()
    )
