"""The table at 80 columns and in a pipe, and the sentence: what it says in each case, and what it must not say."""

import dataclasses
import io
import re

import pytest
from rich.console import Console

from sinkpin.evaluate.table import sentence, table

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


def printed(result, *, width: int = 80, terminal: bool = False) -> str:
    out = io.StringIO()
    Console(
        file=out, width=width, force_terminal=terminal, color_system="truecolor" if terminal else "auto"
    ).print(table(result))
    return out.getvalue()


def test_every_number_is_whole_at_80_columns(make):
    text = printed(make(DEMO, scored=3840, first=256))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    (line,) = (line for line in text.splitlines() if line.startswith("streaming-256+4"))
    assert line.split() == [
        "streaming-256+4",
        "256",
        "11.2",
        "4",
        "26.00",
        "1.18",
        "+0.167",
        "90.0",
        "100",
        "3,840",
        "1,234",
    ]
    (line,) = (line for line in text.splitlines() if line.startswith("full"))
    assert line.split() == ["full", "all", "180.0", "-", "22.00", "1.00", "-", "-", "100", "0", "1,234"]


def test_numbers_line_up(make):
    lines = [line for line in printed(make(DEMO)).splitlines() if re.match(r"\w+(-\d+\+\d)? ", line)]
    rows = [line for line in lines if "." in line and not line.startswith(("arm", "top-1", "at "))]
    assert len(rows) == len(DEMO)
    assert len({line.rstrip().rindex(" ") + len(line.rstrip().split()[-1]) for line in rows}) == 1


def test_a_long_name_wraps_and_numbers_stay(make):
    name = "pyramidkv:beta=20,window=32,kernel=7-64+4"
    result = make({"full": 22.0, "window-64+4": 31.0})
    arm = dataclasses.replace(result.arms[1], name=name)
    result = dataclasses.replace(result, arms=[result.arms[0], arm])
    text = printed(result)
    assert max(map(len, text.splitlines())) <= 80
    assert "31.00" in text
    assert name in "".join(line.split(" ")[0] for line in text.splitlines())


def test_no_colour_codes_in_a_pipe(make):
    assert "\x1b" not in printed(make(DEMO))
    assert "\x1b" in printed(make(DEMO), terminal=True)


def test_lost_sinks_are_marked_without_colour(make):
    text = printed(make({"full": 22.0, "window-64+0": 230.0, "streaming-64+4": 31.0, "keydiff-64+0": 30.0}))
    marked = [line.split()[0] for line in text.splitlines() if re.search(r"\+\d !", line)]
    assert marked == ["window-64+0"]
    assert "! no pins" in text
    assert "!" not in printed(make({"full": 22.0, "streaming-64+4": 31.0}))


def test_units_follow_the_smallest_cache(make):
    assert "MiB" in printed(make())
    result = make()
    small = [dataclasses.replace(arm, kv_bytes_steady=arm.kv_bytes_steady // 100) for arm in result.arms]
    assert "KiB" in printed(dataclasses.replace(result, arms=small))


def test_nothing_measured_is_a_dash_not_a_zero(make):
    result = make({"full": 22.0, "window-64+0": 230.0})
    arms = [result.arms[0], dataclasses.replace(result.arms[1], top1_agreement=None)]
    (line,) = (
        line
        for line in printed(dataclasses.replace(result, arms=arms)).splitlines()
        if line.startswith("window")
    )
    assert line.split()[8] == "-"


CASES = {
    "collapse and recovery": (
        DEMO,
        "At 64 entries, window without pins loses the first tokens and has 10.5 times the perplexity of the full "
        "cache (230 against 22.0); pinning them brings it down to 1.41 times (31.0), on 960 tokens of one text.",
    ),
    "one pin": (
        {"full": 22.0, "window-64+0": 230.0, "streaming-64+1": 31.0},
        "At 64 entries, window without pins loses the first tokens and has 10.5 times the perplexity of the full "
        "cache (230 against 22.0); pinning the first token brings it down to 1.41 times (31.0), on 960 tokens of "
        "one text.",
    ),
    "pins make it worse": (
        {"full": 22.0, "window-64+0": 30.0, "streaming-64+4": 60.0},
        "At 64 entries, window without pins loses the first tokens and has 1.36 times the perplexity of the full "
        "cache (30.0 against 22.0); pinning them makes it worse, 2.73 times (60.0), on 960 tokens of one text.",
    ),
    "pins make no difference": (
        {"full": 22.0, "keydiff-64+0": 30.0, "keydiff-64+4": 30.5},
        "At 64 entries, pinning the first 4 tokens makes no difference to keydiff, which held on to the first "
        "tokens by itself, that this run can show: 1.36 times the perplexity of the full cache (30.0 against 22.0) "
        "without pins and 1.39 times (30.5) with them, on 960 tokens of one text.",
    ),
    "another policy is lowest": (
        {"full": 22.0, "window-64+0": 230.0, "streaming-64+4": 31.0, "h2o-64+4": 25.0, "h2o-256+4": 23.0},
        "At 64 entries, window without pins loses the first tokens and has 10.5 times the perplexity of the full "
        "cache (230 against 22.0); pinning them brings it down to 1.41 times (31.0), and h2o-64+4 is lowest at "
        "this budget with 1.14 times, on 960 tokens of one text.",
    ),
    "no arm without pins": (
        {"full": 22.0, "streaming-64+4": 31.0, "h2o-64+4": 33.0},
        "At 64 entries, streaming-64+4 has 1.41 times the perplexity of the full cache (31.0 against 22.0), on 960 "
        "tokens of one text; no arm ran without pins, so this says nothing about what the pins are worth.",
    ),
    "no arm with pins": (
        {"full": 22.0, "window-64+0": 230.0},
        "At 64 entries, window-64+0 has 10.5 times the perplexity of the full cache (230 against 22.0), on 960 "
        "tokens of one text; no arm ran with pins, so this says nothing about what pins would be worth.",
    ),
    "pins at another budget": (
        {"full": 22.0, "window-64+0": 230.0, "streaming-256+4": 26.0},
        "At 64 entries, window-64+0 has 10.5 times the perplexity of the full cache (230 against 22.0), on 960 "
        "tokens of one text; no policy ran both with and without pins at one budget, so this says nothing about "
        "what the pins are worth.",
    ),
    "other options": (
        {"full": 22.0, "random:seed=1-64+0": 230.0, "random:seed=2-64+4": 26.0},
        "At 64 entries, random:seed=2-64+4 has 1.18 times the perplexity of the full cache (26.0 against 22.0), on "
        "960 tokens of one text; no policy ran both with and without pins at one budget, so this says nothing "
        "about what the pins are worth.",
    ),
    "full alone": (
        {"full": 22.0},
        "Only the full cache was run, with perplexity 22.0 on 960 tokens of one text; there is nothing to compare.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_sentence(make, case):
    perplexities, says = CASES[case]
    assert sentence(make(perplexities)) == says


def test_a_difference_below_the_threshold_names_no_winner(make):
    text = sentence(
        make(
            {"full": 22.0, "window-64+0": 31.0, "streaming-64+4": 30.0, "random-64+4": 29.5, "h2o-64+4": 29.0}
        )
    )
    assert "makes no difference" in text
    assert "lowest" not in text
    assert "by itself" not in text  # this window did lose its first tokens


def test_spans_are_pins_too(make):
    """A record has no field for spans, but an arm that pins one is not "without pins"."""
    result = make({"full": 22.0, "window-64+0": 40.0, "streaming-64+4": 31.0})
    arm = dataclasses.replace(result.arms[1], name="window-64+0+5:9", sink_kept=0.0)
    result = dataclasses.replace(result, arms=[result.arms[0], arm, result.arms[2]])
    assert "!" not in printed(result)
    assert "no arm ran without pins" in sentence(result)
