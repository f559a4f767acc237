"""The sentence and the warnings: what they say in each case, and what they must not say."""

import dataclasses

import pytest

from evaluate.test_picture import GRID
from evaluate.test_table import DEMO
from sinkpin.evaluate.sentence import sentence, warnings

CASES = {
    "collapse and recovery": (
        DEMO,
        "At 64 entries, window without pins loses the first tokens and has 10.5 times the perplexity of the full "
        "cache (230 against 22.0); pinning the first 4 tokens brings it down to 1.41 times (31.0), and takes random from "
        "40.9 to 2.73 times, on 960 tokens of one text.",
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
        "cache (30.0 against 22.0); pinning the first 4 tokens makes it worse, 2.73 times (60.0), on 960 tokens of one text.",
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
        "cache (230 against 22.0); pinning the first 4 tokens brings it down to 1.41 times (31.0), and h2o-64+4 is lowest at "
        "this budget with 1.14 times, on 960 tokens of one text.",
    ),
    "another policy, paired": (
        {
            "full": 22.0,
            "window-64+0": 230.0,
            "streaming-64+4": 31.0,
            "random-64+0": 300.0,
            "random-64+4": 60.0,
        },
        "At 64 entries, window without pins loses the first tokens and has 10.5 times the perplexity of the full "
        "cache (230 against 22.0); pinning the first 4 tokens brings it down to 1.41 times (31.0), and takes random from "
        "13.6 to 2.73 times, on 960 tokens of one text.",
    ),
    "another policy, paired and worse": (
        {
            "full": 22.0,
            "window-64+0": 230.0,
            "streaming-64+4": 31.0,
            "keydiff-64+0": 25.0,
            "keydiff-64+4": 44.0,
        },
        "At 64 entries, window without pins loses the first tokens and has 10.5 times the perplexity of the full "
        "cache (230 against 22.0); pinning the first 4 tokens brings it down to 1.41 times (31.0), and takes keydiff from "
        "1.14 to 2.00 times, and keydiff-64+0 is lowest at this budget with 1.14 times, on 960 tokens of one text.",
    ),
    "another policy, paired and the same": (
        {
            "full": 22.0,
            "window-64+0": 230.0,
            "streaming-64+4": 31.0,
            "keydiff-64+0": 33.0,
            "keydiff-64+4": 33.5,
        },
        "At 64 entries, window without pins loses the first tokens and has 10.5 times the perplexity of the full "
        "cache (230 against 22.0); pinning the first 4 tokens brings it down to 1.41 times (31.0), and makes no "
        "difference to keydiff (1.50 and 1.52 times), on 960 tokens of one text.",
    ),
    "another policy, neither paired nor lowest": (
        {"full": 22.0, "window-64+0": 230.0, "streaming-64+4": 31.0, "h2o-64+4": 33.0, "tova-64+4": 40.0},
        "At 64 entries, window without pins loses the first tokens and has 10.5 times the perplexity of the full "
        "cache (230 against 22.0); pinning the first 4 tokens brings it down to 1.41 times (31.0), on 960 tokens of "
        "one text; of h2o and tova only the table tells.",
    ),
    "no arm without pins": (
        {"full": 22.0, "streaming-64+4": 31.0, "h2o-64+4": 33.0},
        "At 64 entries, streaming-64+4 is lowest of 2 arms and has 1.41 times the perplexity of the full cache (31.0 "
        "against 22.0), on 960 tokens of one text; no arm ran without pins, so this says nothing about what the pins "
        "are worth.",
    ),
    "no arm without pins, nor a lowest one": (
        {"full": 22.0, "streaming-64+4": 31.0, "h2o-64+4": 31.5, "h2o-256+4": 23.0},
        "At 64 entries, streaming-64+4 has 1.41 times the perplexity of the full cache (31.0 against 22.0), from which "
        "this run cannot tell the next of 2 arms, on 960 tokens of one text; no arm ran without pins, so this says "
        "nothing about what the pins are worth.",
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
        {"full": 22.0, "random[seed=1]-64+0": 230.0, "random[seed=2]-64+4": 26.0},
        "At 64 entries, random[seed=2]-64+4 is lowest of 2 arms and has 1.18 times the perplexity of the full cache "
        "(26.0 against 22.0), on 960 tokens of one text; no policy ran both with and without pins at one budget, so this says nothing "
        "about what the pins are worth.",
    ),
    "several numbers of pins": (
        {"full": 22.0, "window-64+0": 230.0} | {f"streaming-64+{n}": 60.0 - n for n in (1, 2, 4, 8)},
        "At 64 entries, window without pins loses the first tokens and has 10.5 times the perplexity of the full "
        "cache (230 against 22.0); pinning the first 4 tokens brings it down to 2.55 times (56.0), and streaming-64+8 "
        "is lowest at this budget with 2.36 times, on 960 tokens of one text.",
    ),
    "several numbers of pins, not four": (
        {"full": 22.0, "window-64+0": 230.0} | {f"streaming-64+{n}": 60.0 - n for n in (1, 2, 3)},
        "At 64 entries, window without pins loses the first tokens and has 10.5 times the perplexity of the full "
        "cache (230 against 22.0); pinning the first 3 tokens brings it down to 2.59 times (57.0), on 960 tokens of "
        "one text.",
    ),
    "a budget in bytes": (
        {"full": 22.0, "window-64KB+0": 230.0, "streaming-64KB+4": 31.0},
        "At 64KB (124 to 125 entries), window without pins loses the first tokens and has 10.5 times the perplexity of "
        "the full cache (230 against 22.0); pinning the first 4 tokens brings it down to 1.41 times (31.0), on 960 "
        "tokens of one text.",
    ),
    "spans": (
        {"full": 22.0, "window-64+0": 230.0, "window-64+0+5:9": 200.0},
        "At 64 entries, window without pins loses the first tokens and has 10.5 times the perplexity of the full "
        "cache (230 against 22.0); pinning 4 tokens brings it down to 9.09 times (200), on 960 tokens of one text.",
    ),
    "many policies": (
        GRID,
        "Pinning the first 4 tokens multiplies perplexity by 0.75 (window-25%+0) to 0.82 (expected-10%+0), with a "
        "median of 0.79 over 16 pairs of arms that differ by pins only. With the first 4 tokens pinned, at 10% (102 entries) streaming-10%+4 "
        "is lowest with 1.17 times the perplexity of the full cache; at 25% (256 entries) streaming-25%+4 is lowest "
        "with 0.99 times, on 960 tokens of one text.",
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


def test_the_window_stands_beside_the_lowest_policy(make):
    perplexities = {
        "full": 20.0,
        "window-64+0": 90.0,
        "streaming-64+4": 30.0,
        "h2o-64+0": 28.0,
        "h2o-64+4": 25.0,
    }
    perplexities |= {"tova-64+0": 29.0, "tova-64+4": 27.0}
    assert (
        "at 64 entries h2o-64+4 is lowest with 1.25 times the perplexity of the full cache, streaming-64+4 has 1.50, on"
        in sentence(make(perplexities))
    )
    close = sentence(make(perplexities | {"streaming-64+4": 25.5}))
    assert "streaming-64+4 has 1.27, which this run cannot tell apart" in close


def test_policies_are_set_beside_each_other_with_as_many_pins(make):
    perplexities = {"full": 20.0} | {
        f"{p}-64+{n}": 60.0 - n + 5 * i for i, p in enumerate(("h2o", "tova", "random")) for n in (0, 1, 4, 8)
    }
    assert "h2o-64+4 is lowest with 2.80 times" in sentence(make(perplexities))


def test_past_the_trained_length_it_is_extrapolation(make):
    perplexities = {"full": 22.0, "window-64+0": 30.0, "streaming-64+4": 25.0}
    assert "extrapolat" not in sentence(make(perplexities, trained=1024))
    said = sentence(make(perplexities, trained=512))
    assert said.endswith(
        "The full cache reads past the 512 positions this model was trained on: that is extrapolation, and a ratio to it "
        "says what a bounded cache spares the model, not what eviction costs."
    )


def test_dropped_first_tokens_are_warned_of_in_words(make):
    assert warnings(make({"full": 22.0, "streaming-64+4": 31.0, "keydiff-64+0": 30.0})) == []
    result = make({"full": 22.0, "window-64+0": 230.0, "h2o-64+0": 31.0, "h2o-64+0+5:9": 30.0})
    arms = [
        dataclasses.replace(arm, sink_kept=0.62) if arm.name == "h2o-64+0" else arm for arm in result.arms
    ]
    (warning,) = warnings(dataclasses.replace(result, arms=arms))
    assert warning.endswith("dropped by window-64+0 (0% of them left), h2o-64+0 (62%), h2o-64+0+5:9 (0%)")
    (warning,) = warnings(make({"full": 22.0} | {f"window-{n}+0": 30.0 for n in range(64, 80)}))
    assert warning.endswith("and 8 more, marked ! in the table")
