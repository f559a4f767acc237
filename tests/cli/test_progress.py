"""A bar on a terminal; elsewhere a line per finished arm, and while one takes long. Notes come before the first."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

from sinkpin.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(step):
    for arm in ("full", "window-16+0"):
        for done in (50, 100):
            step(arm, done, 100)


def test_on_a_terminal_the_bar_names_the_arm_and_counts_over_all_of_them(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress(2) as step:
        run(step)
    assert "window-16+0 (2 of 2)" in terminal.getvalue()


def test_elsewhere_a_finished_arm_is_a_line_and_there_is_no_byte_of_a_bar(capfd):
    with progress(2) as step:
        run(step)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "full: 100 tokens in 0 s (arm 1 of 2)",
        "window-16+0: 100 tokens in 0 s (arm 2 of 2)",
    ]


def test_a_long_arm_shows_every_half_minute_how_far_it_is(monkeypatch, capfd):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("sinkpin.cli.progress.time", SimpleNamespace(perf_counter=lambda: clock.now))
    with progress(2) as step:
        step("full", 0, 9000)
        for done in range(1000, 10_000, 1000):
            clock.now += 10
            step("full", done, 9000)
        step("window-16+0", 0, 9000)
        for done in (3000, 6000, 9000):
            clock.now += 20
            step("window-16+0", done, 9000)
    assert capfd.readouterr().err.splitlines() == [
        "full: 3,000 of 9,000 tokens (arm 1 of 2)",
        "full: 6,000 of 9,000 tokens (arm 1 of 2)",
        "full: 9,000 tokens in 90 s (arm 1 of 2)",
        "window-16+0: 6,000 of 9,000 tokens (arm 2 of 2)",
        "window-16+0: 9,000 tokens in 60 s (arm 2 of 2)",
    ]


def test_notes_are_told_once_when_the_first_arm_begins(monkeypatch, capfd):
    with progress(2, ["the text is short"]) as step:
        assert capfd.readouterr().err == "", "the work may still be refused"
        step("full", 0, 100)
        assert capfd.readouterr().err == "note: the text is short\n"
        run(step)
    assert "note" not in capfd.readouterr().err
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress(2, ["the text is short"]) as step:
        run(step)
    assert terminal.getvalue().count("note: the text is short") == 1
