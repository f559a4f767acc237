"""A bar on a terminal, a line per finished arm elsewhere."""

from __future__ import annotations

import io
import sys

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
