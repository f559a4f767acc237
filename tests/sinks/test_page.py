"""The page as text: nothing of a prompt becomes markup, what was not measured is said, and it asks for nothing outside."""

import base64
import hashlib
import html.parser
import json
import re
import string
from typing import Any

import numpy as np
import pytest

from sinkpin.page.words import number, percent, shown, spans
from sinkpin.sinks.page import SCRIPTS, render
from sinkpin.sinks.page_words import headline
from sinks.reports import effect, report, sink, whole

HOSTILE = [
    "</script><script>window.owned = 1</script>",
    "<img src=x onerror='window.owned = 1'>",
    "<!--",
    "\u2028",
    "\ud800",
    "\x00\x1b[2J",
    "\u202eturned",
    "{{data}}",
    "\"'&amp;",
    " ",
    "\n",
    "",
]


def hostile() -> dict[str, Any]:
    """A document with all of them as tokens, and one or the other wherever a document holds text."""
    document = whole().to_json()
    markup = "".join(HOSTILE)
    document["tokens"]["texts"][: len(HOSTILE)] = HOSTILE
    for name in ("model", "prompt"):
        document[name] = markup
    document["notes"] = [markup]
    document["versions"][markup] = markup
    document["settings"][markup] = markup
    document["card"] = {markup: [markup]}
    for part, fields in {
        "sinks": ("text", "kind"), "experiments": ("name", "says"), "ablations": ("what", "way"), "restored": ("what",)
    }.items():  # fmt: skip
        for one in document[part]:
            one |= dict.fromkeys(fields, markup)
    document["sinks"][0]["norms"] = {markup: 1.0}
    return document


class Elements(html.parser.HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attrs = self.all[-1] if self.all else ("", {})
        self.inside.setdefault(attrs.get("type") or tag, data)


def test_text_of_a_prompt_is_never_markup() -> None:
    page = Elements(render(hostile()))
    plain = Elements(render(whole().to_json()))
    tags = [tag for tag, _ in page.all]
    assert tags.count("script") == 2 and "img" not in tags
    assert set(tags) == {tag for tag, _ in plain.all}
    assert not [name for _, attrs in page.all for name in attrs if name.startswith("on")]


def test_only_what_has_a_shape_is_in_the_page() -> None:
    page = render(hostile())
    page.encode()  # no half surrogate
    assert not set(page) & {"\u2028", "\u202e", "\x00", "\x1b"}
    assert "⟨U+202E⟩turned" in page


def test_the_data_is_whole_json_without_a_tag() -> None:
    document = hostile()
    page = render(document)
    assert page.count('"shown":[') == 1  # not where a token says {{data}}
    said = Elements(page).inside["application/json"]
    assert not set(said) & set("<>&")
    data = json.loads(said)
    assert data["tokens"]["shown"][: len(HOSTILE)] == [shown(text) for text in HOSTILE]
    assert len(data["tokens"]["shown"]) == len(document["tokens"]["texts"])
    assert data["tokens"]["mass"] == document["tokens"]["mass"]
    assert data["tokens"]["mass"][-1] is None


def test_numbers_that_are_none_are_null_in_the_data() -> None:
    document = report().to_json()
    document["cut"], document["sinks"][0]["q"] = float("nan"), float("inf")
    page = render(document)
    assert json.loads(Elements(page).inside["application/json"])["cut"] is None
    assert "<span class='unknown'>not measured</span>" in page


def test_the_policy_allows_the_inline_parts_by_their_hashes_and_nothing_else() -> None:
    page = render(whole().to_json())
    [policy] = [
        a["content"] for tag, a in Elements(page).all if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    for kind, pattern in (
        ("script", r'<script type="module">(.*?)</script>'),
        ("style", r"<style>(.*?)</style>"),
    ):
        [inline] = re.findall(pattern, page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert allowed.pop(f"{kind}-src") == f"'sha256-{digest}'"
    assert allowed == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}


def test_it_refers_to_nothing_outside() -> None:
    page = render(whole().to_json())
    assert "://" not in page and "@import" not in page and "url(" not in page
    assert not [a for _, attrs in Elements(page).all for a in attrs if a in ("src", "href", "style")]


def test_every_script_is_in_the_page_and_no_placeholder_is_left() -> None:
    page = render(whole().to_json())
    assert SCRIPTS[-1] == "page_charts.js"  # it starts the others
    assert all(f"function {name}(" in page for name in ("ladder", "heatMap", "tokenText", "along"))
    assert "{{" not in page


def test_the_headline_names_the_largest_sink() -> None:
    document = whole().to_json()
    document["sinks"].reverse()
    assert headline(document) == "Token 0, “The”, takes 41\u00a0% of all attention"
    page = render(document)
    assert (
        "3 sinks among 400 tokens (1 true, 2 secondary); 1 more listed for its place in the chat template."
        in page
    )
    assert "212 of 270 heads pay token 0 more than ε = 0.3; it is an outlier in 27 of 30 layers." in page
    assert (
        "Losing token 0 (masked) costs 2.71 (2.40 to 3.02) nats per token, losing a matched token 0.012"
        in page
    )
    assert "pinning the first 4 brings the loss from 2.31 (2.11 to 2.51) to 0.050" in page


def test_no_sinks_is_an_answer() -> None:
    page = render(report(sinks=(), cut=None).to_json())
    assert "<h1>No sinks found</h1>" in page
    assert "Among 400 tokens, none stands out by the attention it receives." in page
    assert "No sinks, so there is no mass of theirs to draw" in page
    only_listed = report(sinks=(sink(kind="structural", outlier=False),))
    page = render(only_listed.to_json())
    assert "<h1>No sinks found</h1>" in page
    assert "1 listed for their place in the chat template" in page


def test_what_was_not_run_says_how_to_get_it() -> None:
    assert render(report().to_json()).count("<code>sinkpin detect --ablate</code>") == 2
    assert "detect --ablate" not in render(whole().to_json())


def test_learned_sinks_notes_and_card_are_there_only_if_there_are_any() -> None:
    with_all, without = render(whole().to_json()), render(report().to_json())
    for part in ("<figure id='learned'>", "<h2 id='notes'>", "<h2 id='card'>"):
        assert part in with_all and part not in without


def test_effects_that_are_no_numbers_are_said_so() -> None:
    document = whole().to_json()
    nan = float("nan")
    document["ablations"][0]["effect"] = {"delta_nll": nan, "ci95": (nan, nan), "kl": nan, "agreement": nan}
    page = render(document)
    assert "NaN" not in page and "nan" not in re.sub(r"<script.*", "", page, flags=re.DOTALL)
    assert "Losing token 0 (evicted) costs 2.30" in page  # the worst that was measured


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.4137, "41 %"), (1.0, "100 %"), (0.0996, "10 %"), (0.0413, "4.1 %"), (0.0000413, "0.0041 %"), (0.0, "0 %"),
        (1e-9, "< 0.0001 %"), (None, "not measured"), (float("nan"), "not measured"),
    ],
)  # fmt: skip
def test_shares_have_two_digits_that_count(share: float | None, said: str) -> None:
    assert percent(share).replace("\u00a0", " ") == said


def test_numbers_and_runs_of_numbers() -> None:
    assert [number(x) for x in (48.23, 212.4, -0.04312, 1.3e-9, None)] == [
        "48.2",
        "212",
        "−0.0431",
        "1.3e−09",
        "not measured",
    ]
    assert spans([3, 4, 5, 9, 0]) == "0, 3–5, 9"
    assert spans([]) == ""


def test_tokens_are_shown_with_their_spaces_and_without_what_hides() -> None:
    assert [shown(text) for text in (" the", "\n\n", "\t", "", "é", "\u00a0", "\u200f", "\ud83d")] == [
        "·the", "⏎⏎", "⇥", "∅", "é", "⍽", "⟨U+200F⟩", "⟨U+D83D⟩"
    ]  # fmt: skip
    assert shown(string.punctuation) == string.punctuation


def test_one_layer_and_few_tokens_are_enough() -> None:
    one = report(
        tokens=8, layers=(5,), sink_heat=np.full((1, 9), 0.5, np.float32), sinks=(sink(layers=(5,)),)
    )
    assert "in 1 of 1 layers" in render(one.to_json())


def test_intervals_all_at_zero_can_be_drawn() -> None:
    document = whole().to_json()
    for one in document["ablations"]:
        one["effect"] = one["control"] = {"delta_nll": 0.0, "ci95": (0.0, 0.0), "kl": 0.0, "agreement": 1.0}
    assert effect(0, 0).delta_nll == 0
    assert "class='forest'" in render(document)
