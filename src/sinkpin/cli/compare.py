"""`sinkpin compare`: from arguments to a table, a sentence, and a folder with the result.

Arguments, the text and the output folder are checked before torch is imported and a model is loaded. Not
here: the comparison itself (`evaluate.compare`), its numbers (`evaluate.record`) and how they look
(`evaluate.table`, `evaluate.picture`).
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from sinkpin import demo
from sinkpin.cli import load
from sinkpin.errors import InputError, ModelError

if TYPE_CHECKING:
    from sinkpin.evaluate.arms import Arm
    from sinkpin.evaluate.record import Comparison

Progress = Callable[[str, int, int], None]

BUDGETS = "64,256"
POLICIES = ("window", "random")
SINKS = "0,4"
TOKENS = 4096
CHUNK = 16
OUT = Path("sinkpin-out")
PICTURE = "perplexity.png"

DESCRIPTION = """\
Score one text through several KV caches: the full cache, and each policy at each budget with each number of
pinned sinks. All arms are scored on the same tokens. Prints a table and what it means, and writes
results.json, nll.npz (the loss of every scored token) and perplexity.png."""

EXAMPLES = r"""  sinkpin compare
      the demo model and a packaged novel, with and without sinks: a few minutes
  sinkpin compare MODEL --text book.txt --budget 512,25% --policy window --sinks 0,4 --tokens 8192
      any Hugging Face folder or hub name, any UTF-8 text
  zcat book.gz | sinkpin compare MODEL --text - --budget 64MiB --json > result.json
      text from standard input, budget in bytes; one JSON document on standard output
  sinkpin compare --replace-first "\n" --policy window
      are the first tokens sinks for what they say, or for where they stand?
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        nargs="?",
        help=f"folder or hub name (default: {demo.NAME}, found or fetched)",
    )
    add(
        "--text",
        metavar="FILE",
        help=f"UTF-8 text, `-` for standard input (default: {demo.TEXT_NAME}, packaged)",
    )
    add(
        "--budget",
        metavar="LIST",
        default=BUDGETS,
        help="KV entries a cache may hold, pins included, as tokens (1024), a share (25%%) or bytes (64MiB); "
        f"comma-separated (default: {BUDGETS})",
    )
    add(
        "--policy",
        metavar="NAME[:OPTION=VALUE,...]",
        action="append",
        help=f"which entries stay; may be repeated (default: {' and '.join(POLICIES)})",
    )
    add(
        "--sinks",
        metavar="LIST",
        default=SINKS,
        help=f"first tokens to pin, comma-separated (default: {SINKS})",
    )
    add("--tokens", metavar="N", type=int, default=TOKENS, help=f"length of text to read (default: {TOKENS})")
    add("--prompt", metavar="N", type=int, help="tokens that count as the prompt: fed first, not scored")
    add(
        "--chunk",
        metavar="N",
        type=int,
        default=CHUNK,
        help=f"tokens fed at a time to scored policies ({CHUNK})",
    )
    add("--frame", choices=("slots", "original"), help="positions of kept keys (default: each policy's own)")
    add(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="of the weights and the cache (default: float32 on a CPU, the checkpoint's own on a GPU)",
    )
    add("--device", choices=("cpu", "cuda"), help="where to run (default: the GPU if there is one)")
    add(
        "--replace-first",
        metavar="STR",
        help=f"put this one token (as \\n) in place of the first {load.REPLACED}",
    )
    add("--out", metavar="DIR", type=Path, default=OUT, help=f"folder for the result (default: {OUT})")
    add(
        "--json",
        action="store_true",
        help="one JSON document on standard output, everything else on standard error",
    )


def run(args: argparse.Namespace) -> int:
    for option in ("tokens", "chunk", "prompt"):
        number = getattr(args, option)
        if number is not None and number < 1:
            raise InputError(f"--{option} {number} leaves nothing to run: give 1 or more")
    budgets = [int(item) if item.isdecimal() else item for item in _items("--budget", args.budget)]
    sinks = [_sinks(item) for item in _items("--sinks", args.sinks)]

    from sinkpin.evaluate.arms import product
    from sinkpin.policies import resolve

    arms = product(args.policy or POLICIES, budgets, sinks, args.frame)
    for arm in arms:
        resolve(arm.policy, arm.options)  # for its complaints, before there is anything to wait for
    _check_out(args.out)
    text = load.read_text(args.text)
    result = _compare(args, arms, text)
    _deliver(result, args.out, as_json=args.json)
    return 0


def _items(option: str, written: str) -> list[str]:
    items = [item.strip() for item in written.split(",")]
    if not all(items):
        raise InputError(f"{option} {written!r} has an empty item: write a list like 64,256")
    return list(dict.fromkeys(items))


def _sinks(item: str) -> int:
    if not item.isdecimal():
        raise InputError(
            f"--sinks {item!r} is no number of tokens: write whole numbers from 0 up, like {SINKS}"
        )
    return int(item)


def _check_out(out: Path) -> None:
    """Raise `InputError` unless the result can be written into `out`. Leaves nothing behind."""
    from sinkpin.evaluate.record import LOSSES, RESULTS

    nearest = out.absolute()
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest), tempfile.TemporaryDirectory(dir=nearest):
            pass
    except OSError as error:
        raise InputError(
            f"cannot write into the output folder {out} ({error.strerror or error}): "
            "choose another with --out"
        ) from error
    for name in (RESULTS, LOSSES, PICTURE):
        if (out / name).is_dir():
            raise InputError(
                f"{out / name} is a folder, so no result can be written there: choose another with --out"
            )


def _compare(args: argparse.Namespace, arms: "list[Arm]", text: load.Text) -> "Comparison":
    with _waiting(f"loading {args.model or demo.NAME}"):
        loaded = load.load_model(args.model, dtype=args.dtype, device=args.device)
        ids = load.encode(loaded.tokenizer, text, args.tokens)
    notes = [f"text: {text.name}"]
    if len(ids) < args.tokens:
        notes.append(f"the text has {len(ids)} tokens, fewer than the {args.tokens} asked for: used whole")
    if args.replace_first is not None:
        ids = load.replace_first(loaded.tokenizer, ids, args.replace_first)
        shown = loaded.tokenizer.decode(ids[:1])
        notes.append(f"the first {load.REPLACED} tokens were replaced by {shown!r}")

    import torch

    from sinkpin.evaluate.compare import compare

    try:
        with _progress(len(arms)) as progress:
            result = compare(
                loaded.model,
                torch.tensor(ids),
                arms,
                chunk=args.chunk,
                prompt=args.prompt,
                name=loaded.name,
                progress=progress,
            )
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{loaded.name} runs out of memory on {loaded.model.device} with {len(ids)} tokens: "
            "use fewer --tokens, a smaller --chunk or --dtype bfloat16"
        ) from error
    result.notes.extend(notes)
    return result


def _deliver(result: "Comparison", out: Path, *, as_json: bool) -> None:
    """Write the result, then show it: `sinkpin compare | head` has its files too."""
    from rich.console import Console

    from sinkpin.evaluate import picture, table

    failure: InputError | None = None
    missing: InputError | None = None
    written = ["results.json", "nll.npz", PICTURE]
    try:
        result.save(out)
        picture.draw(result, out / PICTURE)
    except InputError as error:
        if isinstance(error.__cause__, ImportError):
            missing = error  # no matplotlib: the numbers are complete without the picture
            written.remove(PICTURE)
            (out / PICTURE).unlink(missing_ok=True)  # of an earlier run, whose numbers were just replaced
        else:
            failure = error
    stream = sys.stderr if as_json else sys.stdout
    console = Console(file=stream) if stream.isatty() else Console(file=stream, width=120)
    console.print(table.table(result))
    print(f"\n{table.sentence(result)}", file=stream)
    for note in result.notes:
        print(f"note: {note}", file=stream)
    if failure is not None:
        raise failure  # after the table: the run was long, and its numbers are on the screen at least
    print(f"written: {', '.join(str(out / name) for name in written)}", file=stream)
    if missing is not None:
        print(f"sinkpin: {missing}", file=sys.stderr)
    if as_json:
        print(json.dumps(result.to_json(), allow_nan=False))


@contextmanager
def _progress(arms: int) -> Iterator[Progress | None]:
    """A bar over all arms on a terminal's stderr; None where there is none."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    met: dict[str, None] = {}
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def step(arm: str, done: int, of: int) -> None:
            met.setdefault(arm)
            number = len(met)
            text = f"{arm} ({number} of {arms})"
            bar.update(task, description=text, completed=(number - 1) * of + done, total=arms * of)

        yield step


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    """A spinner on a terminal's stderr while nothing else moves there."""
    if not sys.stderr.isatty():
        with nullcontext():
            yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …"):
        yield
