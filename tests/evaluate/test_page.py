"""The page of a comparison as text: verdict first, names are no markup, earlier files are enough, nothing outside."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
from typing import Any

import pytest

from evaluate.documents import BLOCKS, FIRST, SIZE, comparison, plain, probe
from sinkpin.evaluate.page import SCRIPTS, render
from sinkpin.evaluate.page.advice import advice, code
from sinkpin.evaluate.page.words import FORGETS, headline, recommended, record

MARKUP = "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 1'>\u202e\x00{{data}}\"'&amp;"


def hostile() -> tuple[dict[str, Any], dict[str, Any]]:
    """A document and a probe with markup wherever they hold text."""
    document, asked = comparison(), probe()
    for key in ("model", "text", "command"):
        document[key] = MARKUP
    document["notes"] = [MARKUP]
    document["versions"] = {MARKUP: MARKUP}
    for arm in document["arms"][1:]:
        arm["name"] += MARKUP
    document["pairs"][0] |= {"arm": MARKUP, "against": MARKUP, "verdict": MARKUP}
    document["factorial"] = {"factors": {MARKUP: [MARKUP]}, "shares": [{"effect": MARKUP, "share": 0.5, "ci95": [0.4, 0.6]}], "notes": [MARKUP]}  # fmt: skip
    for key in ("probe", "model", "sentence", "chance_says"):
        asked[key] = MARKUP
    asked["settings"] = {MARKUP: MARKUP}
    asked["arms"][1] |= {"name": MARKUP, "cells": [{MARKUP: MARKUP, "score": 0.4}]}
    return document, asked


class Elements(html.parser.HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.all and self.all[-1][1].get("type") == "application/json" and not self.data:
            self.data = data


def test_names_and_words_are_never_markup() -> None:
    document, asked = hostile()
    page = render(document, [asked], earlier=[(MARKUP, document)])
    tags = [tag for tag, _ in Elements(page).all]
    assert tags.count("script") == 2 and "img" not in tags
    assert not [name for _, attrs in Elements(page).all for name in attrs if name.startswith("on")]
    assert not set(page) & {"\u202e", "\x00"}
    data = json.loads(Elements(page).data)
    assert "<img" in data["arms"][1]["name"] and not set(Elements(page).data) & set("<>&")


def test_the_policy_allows_the_inline_parts_by_their_hashes_and_nothing_else() -> None:
    page = render(comparison(), [probe()])
    [policy] = [attrs["content"] for _, attrs in Elements(page).all if attrs.get("http-equiv") == "Content-Security-Policy"]  # fmt: skip
    allowed = dict(part.split(" ", 1) for part in str(policy).split("; "))
    for kind, pattern in (
        ("script", r'<script type="module">(.*?)</script>'),
        ("style", r"<style>(.*?)</style>"),
    ):
        [inline] = re.findall(pattern, page, re.DOTALL)
        assert allowed.pop(f"{kind}-src") == f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"  # fmt: skip
    assert allowed == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}


def test_it_refers_to_nothing_outside_and_leaves_no_placeholder() -> None:
    page = render(comparison(), [probe()])
    assert "://" not in page and "@import" not in page and "url(" not in page and "{{" not in page
    assert not [name for _, attrs in Elements(page).all for name in attrs if name in ("src", "href", "style")]
    ids = [attrs["id"] for _, attrs in Elements(page).all if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert SCRIPTS[0] == "arms.js"  # the others use what it names


def test_the_verdict_comes_first() -> None:
    assert (
        headline(comparison()) == "h2o-1024+4 is equivalent to the full cache, with 8.2\u00a0% of its bytes"
    )
    page = render(comparison())
    assert page.index("<h1>h2o-1024+4 is equivalent") < page.index("Of 7 bounded caches: 2 equivalent, 1 inconclusive, 4 worse.")  # fmt: skip
    assert "window-64+0 at token 557" in page and "depart from the full cache for good" in page
    assert FORGETS in page


def judged(*verdicts: str | None, **other: Any) -> dict[str, Any]:
    document = comparison(**other)
    document["arms"] = document["arms"][: len(verdicts) + 1]
    for arm, verdict in zip(document["arms"][1:], verdicts, strict=True):
        arm["verdict"] = verdict
    return document


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (plain(), "No verdict: this run states no intervals"),
        (judged(None, None, blocks={"size": 512, "count": 7, "ends": [1] * 7}), "No verdict: 7 blocks of 512 tokens, and 20 are needed"),
        (judged("worse", "worse"), "All 2 bounded caches are worse than the full one; streaming-64+4 loses least, with 1.34 times its perplexity"),
        (judged("worse"), "The bounded cache is worse than the full one; window-64+0 loses least, with 8.75 times its perplexity"),
        (judged("worse", "inconclusive"), "No bounded cache is shown to be as good as the full one: 1 inconclusive, 1 worse"),
        (judged("worse", "better"), "streaming-64+4 is better than the full cache, with 0.51\u00a0% of its bytes"),
        (judged(), "Only the full cache was run: there is nothing to compare"),
    ],
)  # fmt: skip
def test_every_outcome_has_its_headline(document: dict[str, Any], said: str) -> None:
    assert headline(document) == said
    assert f"<h1>{said}</h1>" in render(document)


def test_of_arms_that_are_as_good_the_smallest_is_recommended() -> None:
    document = comparison()
    assert recommended(document) is document["arms"][6]
    document["arms"][6]["kv_bytes_steady"] = document["arms"][0][
        "kv_bytes_steady"
    ]  # as large as full: no gain
    assert recommended(document) is document["arms"][7]
    document["arms"][7]["kv_bytes_steady"] = document["arms"][0]["kv_bytes_steady"] + 1
    assert recommended(document) is None
    assert code(comparison()) == "cache = sinkpin.BoundedCache(model, budget=1024, policy='h2o', sinks=4, frame='original')"  # fmt: skip
    assert code(plain()) is None


def test_a_new_user_is_told_what_to_do() -> None:
    short = judged(
        None, None, tokens=1500, scored_tokens=1243, blocks={"size": 512, "count": 2, "ends": [768, 1280]}
    )
    assert f"`--tokens {FIRST + 20 * SIZE}` or more" in advice(short, [])[0]
    assert "this run scored 1,243 tokens" in advice(short, [])[0]
    without = advice(plain(), [])  # more text would give no intervals, either
    assert "this run has no intervals" in without[0] and not any("--tokens" in line for line in without)
    [take, certify, settle] = advice(comparison(), [probe()])
    assert take.startswith("Take h2o-1024+4") and "sinkpin plan" in certify
    assert "read about 1.3 times as much text" in settle  # (0.0112 / 0.01) squared
    assert advice(comparison(), [])[-1].startswith(
        "Ask for what perplexity does not see: `sinkpin probe needle`"
    )
    assert "more bytes" in advice(judged("worse", "worse"), [])[0]
    assert "Run the same with pins" in " ".join(advice(judged("worse"), []))


def test_equal_loss_with_other_tokens_is_said() -> None:
    document = comparison()
    document["arms"][6]["top1_agreement"] = 0.86
    assert "in 14\u00a0% of places the most likely next token of h2o-1024+4 is not the full cache’s" in render(document)  # fmt: skip


def test_a_file_of_an_earlier_version_is_enough() -> None:
    page = render(plain())
    for part in ("Arms against each other", "What explains the differences", "What perplexity does not see"):
        assert part not in page
    assert "This file does not hold the loss of each block." in page and "This file states no command" in page
    assert ">KL [95 %]</th>" not in page and ">p, Holm</th>" not in page and "None" not in re.sub("<script.*", "", page, flags=re.S)  # fmt: skip


def test_what_is_there_is_shown() -> None:
    page = render(comparison(), [probe()])
    for part in (
        "−1.873 [−1.980, −1.770]", "61\u00a0%</td>", "[55\u00a0%, 66\u00a0%]", "chance is 10 %", "(one of ten words)", "−75.0 [−87.0, −60.0] points",
        "sinkpin compare --budget 64,256,1024", "data-copy='command-line'", "All 4 cells", ">0\u00a0% !</td>", "+0.0021 [−0.0009, +0.0051]",
    ):  # fmt: skip
        assert part in page, part


def test_a_series_of_another_length_is_not_drawn() -> None:
    document = comparison()
    document["arms"][1]["delta_blocks"] = [0.1] * 3
    data = json.loads(Elements(render(document)).data)
    assert data["arms"][1]["loss"] is None and len(data["arms"][2]["loss"]) == BLOCKS == len(data["ends"])


def test_what_changed_stands_under_the_name_of_the_earlier_run() -> None:
    before = comparison()
    before["arms"][6] |= {"verdict": "inconclusive", "delta_nll": 0.03, "ci95": [0.02, 0.04]}
    before["versions"]["torch"] = "2.12.0"
    page = render(comparison(), earlier=[("january", before)])
    assert "Since january" in page and "torch: 2.12.0 → 2.13.0" in page
    assert (
        page.count("<b>moved</b>") == 1
        and "+0.0300 → +0.0021" in page
        and "inconclusive → equivalent" in page
    )


def test_the_record_of_a_document_has_its_numbers() -> None:
    assert [arm.name for arm in record(comparison()).arms] == [arm["name"] for arm in comparison()["arms"]]
