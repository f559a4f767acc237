"""`sinkpin compare`: from arguments to a table, a sentence, and a folder with the result.

Arguments, the text and the output folder are checked before torch is imported and a model is loaded. Not
here: which arms the arguments ask for (`arms`), the comparison itself (`evaluate.compare`), where it goes (`output`),
and what is shown meanwhile (`progress`).
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sinkpin import demo
from sinkpin.card import Card
from sinkpin.cli import load, output, tokens
from sinkpin.cli.arms import BUDGETS, POLICIES, SINKS, asked_for
from sinkpin.cli.pins import pinned_by
from sinkpin.cli.progress import progress, waiting
from sinkpin.cli.text import Text, read_text
from sinkpin.errors import InputError, ModelError
from sinkpin.policies import names

if TYPE_CHECKING:
    from sinkpin.evaluate.arms import Arm
    from sinkpin.evaluate.record import Comparison

TOKENS = 4096
CHUNK = 16
OUT = Path("sinkpin-out")

DESCRIPTION = """\
Score one text through several KV caches: the full cache, and each policy at each budget with each number of
pinned sinks. All arms are scored on the same tokens. Prints a table and what it means, and writes
report.html, results.json, nll.npz (the loss of every scored token) and perplexity.png."""

EXAMPLES = r"""  sinkpin compare
      the demo model and a packaged novel, with and without sinks: a few minutes
  sinkpin compare MODEL --text book.txt --budget 512,25% --policy window --sinks 0,4 --tokens 8192
      any Hugging Face folder or hub name, any UTF-8 text
  sinkpin compare MODEL --policy h2o --policy snapkv:kernel=5 --budget 10% --prompt 2048 --tokens 2560
      policies with options, at a tenth of a prompt; `sinkpin policies` lists them
  zcat book.gz | sinkpin compare MODEL --text - --budget 64MiB --json > result.json
      text from standard input, budget in bytes; one JSON document on standard output
  sinkpin compare MODEL --pins sinks.json --sinks 0
      each policy without pins, and with what the model's sink card says of this text
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
        help="KV entries a cache may hold per layer and KV head, pins included, as tokens (1024), a share (25%%: of "
        f"the text, or of --prompt) or bytes (64MiB); comma-separated (default: {BUDGETS})",
    )
    add(
        "--policy",
        metavar="NAME[:OPTION=VALUE,...]",
        action="append",
        help=f"which entries stay: {', '.join(names())}; may be repeated (default: {' and '.join(POLICIES)}). "
        "`sinkpin policies` lists what each keeps and its options, `sinkpin policies NAME` explains one",
    )
    add(
        "--sinks",
        metavar="LIST",
        default=SINKS,
        help=f"first tokens to pin, comma-separated (default: {SINKS})",
    )
    add(
        "--pins",
        metavar="FILE",
        type=Path,
        help="a sink card (sinks.json): one more arm for each policy and budget, pinned by what its rules say of this "
        "text, beside those of --sinks",
    )
    add("--tokens", metavar="N", type=int, default=TOKENS, help=f"length of text to read (default: {TOKENS})")
    add(
        "--prompt",
        metavar="N",
        type=int,
        help="tokens that count as the prompt: fed first, not scored; policies that choose when it ends need one "
        "(default: none)",
    )
    add(
        "--chunk",
        metavar="N",
        type=int,
        default=CHUNK,
        help="tokens fed at a time to policies that choose after each forward; part of their result "
        f"(default: {CHUNK})",
    )
    add(
        "--frame",
        choices=("slots", "original"),
        help="position of a kept key: its rank in the cache (slots) or its index in the text (original) "
        "(default: each policy's own)",
    )
    load.add_options(parser)
    add(
        "--replace-first",
        metavar="STR",
        help=f"put this one token (as \\n) in place of each of the first {tokens.REPLACED}",
    )
    add("--out", metavar="DIR", type=Path, default=OUT, help=f"folder for the result (default: {OUT})")
    add(
        "--json",
        action="store_true",
        help="one JSON document on standard output, everything else on standard error",
    )


def run(args: argparse.Namespace) -> int:
    if args.tokens < 2:
        raise InputError(
            f"--tokens {args.tokens}: nothing can be predicted in a text of fewer than two tokens; give 2 or more"
        )
    for option, what in (("chunk", "a forward"), ("prompt", "a prompt")):
        number = getattr(args, option)
        if number is not None and number < 1:
            raise InputError(f"--{option} {number}: {what} has at least one token; give 1 or more")
    arms, notes = asked_for(args.policy or POLICIES, args.budget, args.sinks, args.frame, args.prompt)
    card = None if args.pins is None else Card.read(args.pins)
    output.check_folder(args.out)
    text = read_text(args.text)
    result = _compare(args, arms, text, card)
    result.notes.extend(notes)
    output.deliver(result, args.out, as_json=args.json)
    return 0


def _compare(args: argparse.Namespace, arms: "list[Arm]", text: Text, card: Card | None) -> "Comparison":
    with waiting(f"loading {args.model or demo.NAME}"):
        loaded = load.load_model(args.model, dtype=args.dtype, device=args.device)
        ids = tokens.encode(loaded.tokenizer, text, args.tokens)
    notes = [f"text: {text.name}"]
    beforehand: list[str] = []  # told before the work, too
    if len(ids) < args.tokens:
        beforehand.append(
            f"the text has {len(ids):,} tokens, fewer than the {args.tokens:,} asked for: used whole"
        )
        notes += beforehand
    if args.replace_first is not None:
        ids = tokens.replace_first(loaded.tokenizer, ids, args.replace_first)
        shown = loaded.tokenizer.decode(ids[:1])
        notes.append(f"the first {tokens.REPLACED} tokens were replaced by {shown!r}")
    if card is not None:
        arms, of_card = pinned_by(card, args.pins, arms, ids, loaded)
        notes += of_card

    import torch

    from sinkpin.evaluate.compare import compare

    try:
        with progress(len(arms), beforehand) as step:
            result = compare(
                loaded.model,
                torch.tensor(ids),
                arms,
                chunk=args.chunk,
                prompt=args.prompt,
                name=loaded.name,
                progress=step,
            )
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{loaded.name} runs out of memory on {loaded.model.device} with {len(ids):,} tokens: "
            "use fewer --tokens, a smaller --chunk or --dtype bfloat16"
        ) from error
    result.notes.extend(notes)
    return result
