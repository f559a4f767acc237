"""The comparison's page in a headless Chromium: it opens from disk without a word or a request, keys move, it fits.

Not here: what it looks like, which was looked at, and other browsers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluate.documents import BLOCKS, FIRST, SIZE, comparison, plain, probe
from evaluate.test_page import hostile
from sinkpin.evaluate.page import render
from sinks.test_page_in_a_browser import READABLE, Opened, chromium, contrast, luminance

__all__ = ["chromium"]  # a fixture


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a document in a tab; at the end, nothing was complained of and nothing asked for."""
    tabs: list[Opened] = []

    def open_(document: dict[str, Any], *probes: dict[str, Any], **context: Any) -> Opened:
        path = tmp_path / f"{len(tabs)}.html"
        path.write_text(render(document, probes), encoding="utf-8")
        tabs.append(Opened(chromium, path, **context))
        return tabs[-1]

    yield open_
    for one in tabs:
        one.context.close()
        assert one.said == []
        assert one.asked == [one.url] * len(one.asked)


def test_it_opens_from_disk_with_everything_drawn(opened: Any) -> None:
    page = opened(comparison(), probe())
    assert page.text("h1") == "h2o-1024+4 is equivalent to the full cache, with 8.2 % of its bytes"
    assert page.tab.locator("#bytes [role=option]").count() == 8
    assert page.tab.locator("#bytes .arm path").count() == 7  # intervals
    assert page.tab.locator("#bytes .margin").count() == 1
    assert page.tab.locator("#bytes .best").count() == 5
    for name in ("loss", "kl"):
        lines = page.tab.locator(f"#{name} .series")
        assert lines.count() == 7
        assert all(lines.nth(i).get_attribute("d").count("L") == BLOCKS - 1 for i in range(7))
    assert page.tab.locator(".lines button").count() == 6
    assert page.text(".about").startswith("h2o-1024+4: Δ +0.0021")  # the recommended arm


def test_a_circle_stands_where_an_arm_departs(opened: Any) -> None:
    page = opened(comparison())
    circle = page.tab.locator("#loss circle.departs")
    assert circle.count() == 2  # of the arms in colour
    width = page.tab.locator("#loss svg").evaluate("svg => svg.viewBox.baseVal.width")
    # streaming-64+4, the later of the two; the axis goes from the first scored token to the last.
    share = (1657 - FIRST) / (BLOCKS * SIZE - 1)
    at = max(float(circle.nth(i).get_attribute("cx")) for i in range(2))
    assert at == pytest.approx(58 + share * (width - 72), abs=0.1)


def test_files_of_earlier_versions_and_full_alone_open_too(opened: Any) -> None:
    page = opened(plain())
    assert page.tab.locator("#bytes [role=option]").count() == 8 and page.tab.locator("#loss").count() == 0
    only = plain()
    only["arms"] = only["arms"][:1]
    page = opened(only)
    assert page.text(".about") == "full: 551 MiB, the reference"


def test_hostile_names_are_text(opened: Any) -> None:
    document, asked = hostile()
    page = opened(document, asked)
    assert page.tab.evaluate("window.owned") is None
    assert page.tab.locator("img").count() == 0
    assert "<img src=x" in page.text("th [data-arm='1']")


def test_arrow_keys_move_from_arm_to_arm(opened: Any) -> None:
    page = opened(comparison())
    page.tab.locator("#bytes [tabindex='0']").focus()
    seen = [page.focused().split(":")[0]]
    for key in ("Home", "ArrowRight", "ArrowRight", "End", "ArrowRight", "ArrowDown", "ArrowUp", "ArrowUp"):
        page.tab.keyboard.press(key)
        seen.append(page.focused().split(":")[0])
        assert page.text("#bytes .about") == " ".join(page.focused().split())
        assert page.tab.locator("tr.chosen button").inner_text() == seen[-1]
    # By bytes the policies' names make the order: h2o's arms are a few bytes smaller in these documents.
    assert seen == [
        "h2o-1024+4", "window-64+0", "streaming-64+4", "h2o-256+4", "full", "full", "snapkv-1024+4", "full", "h2o-1024+4",
    ]  # fmt: skip
    assert page.tab.locator("#bytes [role=option][tabindex='0']").count() == 1
    assert page.tab.locator("#bytes [role=option][aria-selected=true]").count() == 1


def test_pointer_and_buttons_choose_an_arm(opened: Any) -> None:
    page = opened(comparison())
    page.tab.locator("th [data-arm='3']").click()
    assert page.text(".about").startswith("window-256+0: ")
    assert page.tab.locator("#loss .series.chosen").count() == 1
    page.tab.locator(".lines button", has_text="streaming-64+4").focus()
    page.tab.keyboard.press("Enter")
    assert page.text(".about").startswith("streaming-64+4: ")
    svg = page.tab.locator("#loss svg")
    svg.hover(position={"x": 600, "y": 8})
    assert page.text(".about").startswith("window-64+0: ")  # the highest line
    page.tab.locator("#bytes .arm").first.scroll_into_view_if_needed()
    place = page.tab.locator("#bytes .arm.full .mark").bounding_box()
    page.tab.mouse.move(place["x"] + 4, place["y"] + 4)
    assert page.text(".about").startswith("full: ")


def test_a_button_copies_the_command(opened: Any) -> None:
    page = opened(comparison(), permissions=["clipboard-read", "clipboard-write"])
    page.tab.locator("[data-copy='command-line']").click()
    page.wait_until("document.querySelector('#again ~ .copied [role=status]').textContent !== ''")
    assert page.text("#again ~ .copied [role=status]") == "Copied."
    page.tab.evaluate("() => { navigator.clipboard.readText().then((text) => { window.read = text; }); }")
    page.wait_until("window.read !== undefined")
    assert page.tab.evaluate("window.read") == comparison()["command"]


def test_where_the_clipboard_is_closed_the_command_is_selected(opened: Any) -> None:
    page = opened(comparison())
    page.tab.evaluate("""() => {
        navigator.clipboard.writeText = () => Promise.reject(new Error("closed"));
        document.execCommand = () => false;
    }""")
    page.tab.locator("[data-copy='command-line']").click()
    page.wait_until("document.querySelector('#again ~ .copied [role=status]').textContent !== ''")
    assert page.text("#again ~ .copied [role=status]") == "Selected: copy it with your keyboard."
    assert page.tab.evaluate("getSelection().toString()") == comparison()["command"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_can_be_read_on(opened: Any, scheme: str) -> None:
    page = opened(comparison(), probe(), color_scheme=scheme)
    pairs = page.tab.evaluate("""() => [
        ".hint", ".verdict.worse", ".verdict.equivalent", ".verdict.inconclusive", "th button", ".lines button", "tr.chosen button", "pre code",
    ].map((one) => {
        let ground = document.querySelector(one);
        const ink = getComputedStyle(ground).color;
        while (ground !== document.body && getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
        return [ink, getComputedStyle(ground).backgroundColor];
    })""")
    for ink, ground in pairs:
        assert contrast(ink, ground) >= READABLE, (ink, ground)
    paper = pairs[0][1]
    assert luminance(paper) > 0.9 if scheme == "light" else luminance(paper) < 0.02
    lines = page.tab.evaluate("[0, 1, 2, 3, 4, 5].map((i) => getComputedStyle(document.querySelector(`.lines .c${i}`)).stroke)")  # fmt: skip
    assert len(set(lines)) == 6
    assert all(contrast(line, paper) >= 3 for line in lines)  # WCAG: graphics


@pytest.mark.parametrize("made", ["whole", "hostile"])
def test_it_fits_400_pixels(opened: Any, made: str) -> None:
    document, asked = (comparison(), probe()) if made == "whole" else hostile()
    page = opened(document, asked, viewport={"width": 400, "height": 800})
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= 400
    assert 300 < page.tab.locator("#bytes > svg").bounding_box()["width"] <= 400
    page.tab.set_viewport_size({"width": 600, "height": 800})
    page.wait_until("document.querySelector('#bytes > svg').viewBox.baseVal.width > 500")


def test_it_prints_on_few_pages_in_light_colours(opened: Any) -> None:
    page = opened(comparison(), probe(), color_scheme="dark")
    printed = page.tab.pdf(format="A4")
    assert 3 <= printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 7
    assert (
        page.tab.locator("#bytes > svg").evaluate("svg => svg.viewBox.baseVal.width") > 1000
    )  # back on the screen
    page.tab.emulate_media(media="print")
    assert luminance(page.tab.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.9
    assert not page.tab.locator("[data-copy]").first.is_visible()


def test_without_scripts_words_and_tables_are_there(opened: Any) -> None:
    page = opened(comparison(), probe(), java_script_enabled=False)
    assert page.text("h1").startswith("h2o-1024+4")
    assert page.tab.locator("table").count() >= 4
    assert "streaming-64+4" in page.text("#table ~ .scroll")
