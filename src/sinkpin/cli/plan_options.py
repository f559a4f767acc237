"""The options of `sinkpin plan`, and what is wrong with them before anything is loaded. Not here: what is done with them
(`plan`, `gate`).
"""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sinkpin import demo
from sinkpin.cli import load
from sinkpin.errors import InputError
from sinkpin.policies import names, parse

if TYPE_CHECKING:
    from sinkpin.evaluate.advisor.workloads import Workload

TOKENS = 131_072
CHUNK = 16
MAX_LOSS = "1%"
OUT = Path("sinkpin-out")
FILE = "sinkpin.json"
USES = ("stream", "chat", "rag", "extract")


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        nargs="?",
        help=f"folder or hub name (default: {demo.NAME}, found or fetched; with --check, the model of the file)",
    )
    add(
        "--text",
        metavar="FILE",
        nargs="+",
        action="extend",
        help="UTF-8 texts, each a document; for --workload chat, FILE.json is a chat "
        f"(default: {demo.TEXT_NAME}, packaged; with --check, the certifying part of the promise's own)",
    )
    add(
        "--workload",
        choices=USES,
        help="stream: endless text; chat: turns, the system prompt pinned; rag: a long prompt, then an answer; extract: the same, "
        "and the answer repeats a part of the prompt. Says which settings are tried and what is scored",
    )
    add(
        "--max-loss",
        metavar="P%",
        help=f"limit on the upper bound of the loss (default: {MAX_LOSS}%)",
    )
    add(
        "--policy",
        metavar="NAME[:OPTION=VALUE,...]",
        action="append",
        help=f"try these instead of the workload's: {', '.join(names())}; may be repeated",
    )
    add("--sinks", metavar="LIST", help="first tokens to pin, comma-separated (default: the workload's)")
    add(
        "--budget",
        metavar="LIST",
        help="budgets to try, in tokens (default: a grid up to 3/4 of what is not scored)",
    )
    add(
        "--pins",
        metavar="FILE",
        type=Path,
        help="a sink card (sinks.json): each policy is tried with what it pins, too",
    )
    add(
        "--system",
        metavar="FILE",
        help="for --workload chat: the system prompt put before a plain text's turns",
    )
    add(
        "--length",
        metavar="N",
        type=int,
        help="tokens of a passage, fed from an empty cache (default: 4096; rag and extract, whose last 512 are the answer, 2561)",
    )
    add("--tokens", metavar="N", type=int, help=f"most tokens of text to use (default: {TOKENS:,})")
    add(
        "--chunk",
        metavar="N",
        type=int,
        help=f"tokens fed at a time to policies that choose after each forward; part of their result (default: {CHUNK})",
    )
    add(
        "--check",
        metavar="FILE",
        type=Path,
        help="measure the promise of this sinkpin.json again: exit status 1 if it no longer holds, or model or tokenizer are others; "
        "nothing is written",
    )
    load.add_options(parser)
    add("--out", metavar="DIR", type=Path, default=OUT, help=f"folder for {FILE} (default: {OUT})")
    add(
        "--json",
        action="store_true",
        help="one JSON document on standard output, everything else on standard error",
    )


def share(written: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", written.strip())
    share = float(match[1]) / 100 if match else 0.0
    if not 0 < share < 10:
        raise InputError(
            f"--max-loss {written!r}: write a percentage above zero and below 1000%, like {MAX_LOSS}"
        )
    return share


def numbers(option: str, written: str | None, least: int) -> list[int] | None:
    if written is None:
        return None
    items = [item.strip() for item in written.split(",")]
    if not all(item.isdecimal() and int(item) >= least for item in items):
        raise InputError(f"{option} {written!r}: write whole numbers from {least} up, comma-separated")
    return list(dict.fromkeys(int(item) for item in items))


def suits(policy: str, workload: "Workload") -> None:
    """Raise `InputError` for a policy that has no meaning in the workload. Imports the policy's own file."""
    from sinkpin.policies import resolve

    name, options = parse(policy)
    kind = resolve(name, options).kind
    if name == "full":
        raise InputError(
            "--policy full: it keeps everything, and is what the others are compared with; leave it out"
        )
    if kind == "prompt" and not workload.prompted:
        raise InputError(
            f"--policy {policy} with --workload {workload.name}: it chooses once, when a prompt ends, and this has no one prompt; "
            "use --workload rag or extract"
        )
    if kind != "position" and workload.name == "stream":
        raise InputError(
            f"--policy {policy} with --workload stream: only position policies (window) keep what is seen the same however long the "
            "stream; use --workload chat"
        )
