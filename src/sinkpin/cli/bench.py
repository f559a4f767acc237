"""`sinkpin bench`: from arguments to a table and one line of JSON.

Exit 1, with one line and no number, where something computes the wrong thing. Not here: the options of
each verb (`bench_options`), and what is measured (`sinkpin.bench`).
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkpin import demo
from sinkpin.bench.settings import VERBS, Settings, Stream
from sinkpin.cli import bench_options as options
from sinkpin.cli import load
from sinkpin.cli.progress import Progress, waiting
from sinkpin.cli.text import read_text
from sinkpin.errors import InputError, ModelError

if TYPE_CHECKING:
    from sinkpin.bench.report import Report
    from sinkpin.bench.subject import Subject

RED = 1
"""Exit code where the gate is red."""

DESCRIPTION = """\
Measure on this machine, in one process and in turns with transformers' DynamicCache: a decode step, a prompt, memory,
exact perplexity, or an endless stream. Prints a table and, as its last line, one JSON document. Nothing is timed before
it has been checked to compute the right thing."""

EXAMPLES = """  sinkpin bench decode
      the demo model with 1,024 entries held: streaming, H2O in both frames and TOVA beside DynamicCache
  sinkpin bench decode MODEL --entries 512 --batch 1,8 --no-recompute
      what a batch gains
  sinkpin bench decode MODEL --policy streaming --compile --repeats 2000
      compiled too, with recompiles counted
  sinkpin bench prefill MODEL --tokens 4096,32768 --policy streaming --policy snapkv
      cost of a token of a prompt, at several lengths
  sinkpin bench memory MODEL --json > memory.json
      what grows, and what a long prompt takes; one JSON document on standard output
  sinkpin bench stream --tokens 1000000 --text more.txt --out run
      hours; `--resume` continues a run that was stopped
"""

_WIDEST = 120


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("verb", metavar="VERB", choices=tuple(VERBS), help=f"what to measure: {', '.join(VERBS)}")
    add(
        "model",
        metavar="MODEL",
        nargs="?",
        help=f"folder or hub name (default: {demo.NAME}, found or fetched)",
    )
    add(
        "--text",
        metavar="FILE",
        action="append",
        default=[],
        help=f"a further UTF-8 text, read after {demo.TEXT_NAME}; may be repeated, and all are read again when they end",
    )
    add("--no-novel", action="store_true", help="read the files of --text alone")
    load.add_options(parser, of="the weights and all caches")
    add("--threads", metavar="N", type=int, help="of torch on a CPU (default: torch's own)")
    add(
        "--json",
        action="store_true",
        help="only the JSON document on standard output, everything else on standard error",
    )
    options.add(parser)


def run(args: argparse.Namespace) -> int:
    if args.threads is not None and args.threads < 1:
        raise InputError(f"--threads {args.threads}: give 1 or more")
    if args.no_novel and not args.text:
        raise InputError("--no-novel without --text: there is nothing to read; name a text")
    settings = options.settings_of(args)
    if isinstance(settings, Stream) and Path(settings.out).exists() and not Path(settings.out).is_dir():
        raise InputError(f"--out {settings.out} is a file: name a folder")
    texts = [read_text(source) for source in ([] if args.no_novel else [None]) + args.text]

    from sinkpin.cli import tokens

    with waiting(f"loading {args.model or demo.NAME}"):
        loaded = load.load_model(args.model, dtype=args.dtype, device=args.device)
        ids = [each for text in texts for each in tokens.encode(loaded.tokenizer, text, sys.maxsize)]

    import torch

    from sinkpin.bench.gate import GateError
    from sinkpin.bench.subject import Subject

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    subject = Subject(loaded.model, ids, loaded.name)
    try:
        report = _measured(args, subject, settings)
    except GateError as error:
        print(f"sinkpin: {' '.join(str(error).split())}", file=sys.stderr)
        return RED
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{loaded.name} runs out of memory on {subject.device}: give fewer --entries, a shorter --tokens, a smaller "
            "--chunk or --dtype bfloat16"
        ) from error
    report.notes.append(f"text: {', '.join(text.name for text in texts)}; {len(ids):,} tokens, repeated")
    _deliver(report, settings, as_json=args.json)
    return 0


def _measured(args: argparse.Namespace, subject: "Subject", settings: Settings) -> "Report":
    verb = import_module(f"sinkpin.bench.{args.verb}")
    if isinstance(settings, Stream):  # its lines are its progress
        stream = sys.stderr if args.json else sys.stdout

        def say(line: str) -> None:
            print(line, file=stream, flush=True)

        report: Report = verb.run(subject, settings, say=say)
    else:
        with _rounds() as step:
            report = verb.run(subject, settings, step)
    return report


@contextmanager
def _rounds() -> Iterator[Progress]:
    """A bar on a terminal, one for each part of the run, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda what, done, of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    parts: dict[str, TaskID] = {}
    # Drawn when a round is over and not beside one: a thread that draws would be timed with the model.
    with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:

        def step(what: str, done: int, of: int) -> None:
            if what not in parts:
                parts[what] = bar.add_task(what, total=of)
            bar.update(parts[what], completed=done, refresh=True)

        yield step


def _deliver(report: "Report", settings: Settings, *, as_json: bool) -> None:
    from rich.console import Console

    from sinkpin.bench.table import as_text

    document = report.to_json()
    stream = sys.stderr if as_json else sys.stdout
    console = Console(file=stream)
    width = min(console.width, _WIDEST) if stream.isatty() else _WIDEST
    print(as_text(document, width=width), file=stream)
    if isinstance(settings, Stream):
        _draw(document, Path(settings.out))
    print(json.dumps(document, allow_nan=False))


def _draw(document: dict[str, Any], out: Path) -> None:
    """The picture, or one line that says why there is none: the numbers are complete without it."""
    from sinkpin.bench.stream_picture import PICTURE, draw

    try:
        draw(document, out / PICTURE)
    except InputError as error:
        print(f"sinkpin: {error}", file=sys.stderr)
