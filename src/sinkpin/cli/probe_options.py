"""The options of `sinkpin probe`: which arms, and the settings of every probe, whose defaults are its own.

Not here: which probe has which setting (`evaluate.probes`), and what is done with them (`probe`).
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sinkpin import demo
from sinkpin.cli import load
from sinkpin.policies import names

BUDGET = "128"
POLICIES = ("window", "h2o")
SINKS = "4"
OUT = Path("sinkpin-out")


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="which probe: see above")
    add(
        "model",
        metavar="MODEL",
        nargs="?",
        help=f"folder or hub name (default: {demo.NAME}, found or fetched)",
    )
    _configure_arms(parser)
    _configure_probe(parser)
    add(
        "--text",
        metavar="FILE",
        help=f"UTF-8 text that haystacks are made of, `-` for standard input (default: {demo.TEXT_NAME}, packaged)",
    )
    load.add_options(parser)
    add("--out", metavar="DIR", type=Path, default=OUT, help=f"folder for the result (default: {OUT})")
    add(
        "--json",
        action="store_true",
        help="one JSON document on standard output, everything else on standard error",
    )


def _configure_arms(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--budget",
        metavar="LIST",
        default=BUDGET,
        help="KV entries a cache may hold per layer and KV head, pins included, as tokens (1024), a share (25%%: of what "
        f"stands before the first question) or bytes (64MiB); comma-separated (default: {BUDGET})",
    )
    add(
        "--policy",
        metavar="NAME[:OPTION=VALUE,...]",
        action="append",
        help=f"which entries stay: {', '.join(names())}; may be repeated (default: {' and '.join(POLICIES)})",
    )
    add(
        "--sinks",
        metavar="LIST",
        default=SINKS,
        help=f"first tokens to pin, comma-separated (default: {SINKS})",
    )
    add(
        "--frame",
        choices=("slots", "original"),
        help="position of a kept key: its rank in the cache (slots) or its index in the text (original) "
        "(default: each policy's own)",
    )
    add(
        "--chunk",
        metavar="N",
        type=int,
        help="tokens fed at a time to policies that choose after each forward; part of their result (default: all that "
        "stands before the question; 16 for streameval)",
    )


def _configure_probe(parser: argparse.ArgumentParser) -> None:
    probe = parser.add_argument_group("settings of a probe (defaults: docs/probe.md)")

    def add(name: str, metavar: str, kind: Callable[[str], Any], helps: str) -> None:
        probe.add_argument(f"--{name}", metavar=metavar, type=kind, help=helps)

    add("trials", "N", int, "streams, texts, or texts for each cell of the grid")
    add("seed", "N", int, "of everything that is drawn (default: 0)")
    add("score", "HOW", str, "choice: the right alternative is the likeliest; exact: the model writes it")
    add("choices", "N", int, "alternatives to choose from")
    add("lengths", "LIST", _whole_numbers, "needle, passkey: tokens before the question")
    add("depths", "LIST", _numbers, "needle, passkey: where it is hidden, 0 to 1")
    add("question", "LIST", _words, "needle, passkey: hidden or visible when the cache chooses, or both")
    add(
        "distances",
        "LIST",
        _whole_numbers,
        "streameval: in lines; names, instructions: in tokens",
    )
    add("tokens", "N", int, "streameval: of each stream; repetition: written")
    add("every", "N", int, "streameval: lines from question to question")
    add("rules", "N", int, "instructions: at once")
    add("prompt", "N", int, "repetition: tokens read before the model writes")
    add("temperature", "T", float, "repetition: 0 writes the likeliest token")
    add("style", "HOW", str, "needle, passkey, names: plain, or chat in the model's own template")


SETTINGS = (
    "trials",
    "seed",
    "score",
    "choices",
    "lengths",
    "depths",
    "question",
    "distances",
    "tokens",
    "every",
    "rules",
    "prompt",
    "temperature",
    "style",
)


def _words(written: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in written.split(","))


def _whole_numbers(written: str) -> tuple[int, ...]:
    return tuple(int(item) for item in _words(written))


def _numbers(written: str) -> tuple[float, ...]:
    return tuple(float(item) for item in _words(written))


_whole_numbers.__name__, _numbers.__name__ = (
    "list of whole numbers",
    "list of numbers",
)  # what argparse calls them
