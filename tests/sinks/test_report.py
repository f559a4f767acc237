"""The report's own arithmetic, its document, and its text."""

import json
import math

import numpy as np
import pytest

from sinkpin.card.advice import advice
from sinks import reports


def test_a_share_of_all_attention_counts_only_queries_that_come_later():
    report = reports.report(tokens=401)
    assert report.share([reports.sink(index=0, mass=0.4)]) == pytest.approx(0.4)
    assert report.share([reports.sink(index=200, mass=0.4)]) == pytest.approx(0.2)
    assert report.share(
        [reports.sink(index=0, mass=0.4), reports.sink(index=300, mass=0.4)]
    ) == pytest.approx(0.5)


def test_what_was_not_measured_is_null_and_never_nan():
    report = reports.whole()
    text = json.dumps(report.to_json(), allow_nan=False)
    tokens = json.loads(text)["tokens"]
    assert [x is None for x in tokens["mass"]] == [math.isnan(x) for x in report.mass.tolist()]
    measured = np.array([x for x in tokens["mass"] if x is not None])
    assert np.allclose(measured, report.mass[~np.isnan(report.mass)], rtol=1e-5)


@pytest.mark.parametrize("plain", [True, False])
def test_the_text_fits_and_says_what_was_found(plain):
    from sinkpin.sinks.text import as_text

    text = as_text(reports.whole(), width=100, plain=plain)
    if plain:
        assert text.isascii() and all(len(line) <= 100 for line in text.splitlines())
    assert "What losing it costs" in text and "What pinning gives back" in text


def test_the_advice_says_what_the_card_pins_and_that_secondary_sinks_are_not_pinned():
    card = {"rules": [{"rule": "first", "count": 1}, {"rule": "opening", "ids": [1, 9, 4]}]}
    assert advice(card, 0) == (
        "To pin: the first token of each prompt (sinks=1) and the chat template's opening (3 tokens), where a prompt begins "
        "with it."
    )
    assert advice(card, 2).endswith(
        "The 2 secondary sinks stand elsewhere in another prompt, so no rule pins them."
    )
    assert advice({"rules": []}, 1).startswith("To pin: nothing that was found here.")
    assert (
        advice({"rules": [{"rule": "first", "count": 4}]}, 0)
        == "To pin: the first 4 tokens of each prompt (sinks=4)."
    )
