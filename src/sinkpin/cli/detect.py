"""`sinkpin detect`: from a text, a chat or a string to a report, a page and a sink card.

Arguments, the prompt and the output folder are checked before torch is imported and a model is loaded. Not here: the
detection itself (`sinks.detect`), its words (`sinks.text`) and its page (`sinks.page`).
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sinkpin import demo
from sinkpin.card import Card, changed
from sinkpin.cli import load, output, tokens
from sinkpin.cli.progress import waiting
from sinkpin.cli.text import Text, read_text
from sinkpin.errors import InputError, ModelError

if TYPE_CHECKING:
    from sinkpin.sinks.report import Report

TOKENS = 2048
TEXT = 8192
OUT = Path("sinkpin-sinks")  # a comparison has a report.html, too
PAGE, CARD, DOCUMENT = "report.html", "sinks.json", "detect.json"

DESCRIPTION = """\
Find the attention sinks of a prompt: which tokens receive far more attention than their place explains, whether they are
bound to the first place, to the chat template or to nothing of the kind, and, with --ablate, what losing each costs
beside matched controls. Writes report.html (one page, no network), sinks.json (the sink card, which caches and
`sinkpin compare --pins` read) and detect.json (all numbers)."""

EXAMPLES = r"""  sinkpin detect
      the demo model and the beginning of a packaged novel: about a minute
  sinkpin detect MODEL --chat chat.json --ablate
      a list of {"role", "content"} messages: are the template's markers sinks, and what does losing them cost?
  sinkpin detect MODEL --text book.txt --tokens 16384 --out sinks/
  sinkpin detect MODEL --check sinks.json
      a gate: exit status 1 where a new model or template moved the sinks
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        nargs="?",
        help=f"folder or hub name (default: {demo.NAME}, found or fetched)",
    )
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--text",
        metavar="FILE",
        help=f"UTF-8 text, `-` for standard input, whose beginning is the prompt (default: {demo.TEXT_NAME}, packaged)",
    )
    prompt.add_argument(
        "--chat", metavar="FILE.json", help="messages, which the model's chat template makes the prompt of"
    )
    prompt.add_argument("--prompt", metavar="STR", help="the prompt itself")
    add(
        "--tokens",
        metavar="N",
        type=int,
        help=f"length of the prompt taken of a text (default: {TOKENS}, or the card's)",
    )
    add(
        "--ablate",
        action="store_true",
        help="what losing each sink costs, and how many first tokens are enough: up to eight prompts, three ways of losing it and "
        "ten controls, so it takes many times as long as the rest",
    )
    add("--epsilon", metavar="SHARE", type=float, help="mass above which a head counts (default: 0.3)")
    add("--rate", metavar="SHARE", type=float, help="of false discoveries among outliers (default: 0.01)")
    add(
        "--left-out",
        metavar="N",
        type=int,
        help="last tokens that are not judged, since too few queries see them (default: 32)",
    )
    add(
        "--check",
        metavar="CARD",
        type=Path,
        help="detect again, as this sink card was made, and compare: exit status 1 if sinks or rules moved; nothing is "
        "written",
    )
    load.add_options(parser, of="the weights")
    add("--out", metavar="DIR", type=Path, default=OUT, help=f"folder for the result (default: {OUT})")
    add("--plain", action="store_true", help="the report in ASCII, without colour")
    add(
        "--json",
        action="store_true",
        help="one JSON document on standard output, everything else on standard error",
    )


def run(args: argparse.Namespace) -> int:
    if args.tokens is not None and args.tokens < 2:
        raise InputError(
            f"--tokens {args.tokens}: a prompt in which tokens can be sinks has more; give 64 or more"
        )
    for option in ("epsilon", "rate"):
        value = getattr(args, option)
        if value is not None and not 0 < value < 1:
            raise InputError(f"--{option} {value}: a share between 0 and 1")
    if args.left_out is not None and args.left_out < 0:
        raise InputError(f"--left-out {args.left_out}: a number of tokens, 0 or more")
    old = None if args.check is None else Card.read(args.check)
    if old is None:
        output.check_folder(args.out, (PAGE, CARD, DOCUMENT))
    if args.prompt is not None and not args.prompt:
        raise InputError("--prompt is empty: give a text to look for sinks in")
    messages = _messages(args.chat) if args.chat is not None else None
    text = read_text(None if messages is not None or args.prompt is not None else args.text)
    report = _detect(args, messages, text, old)
    return _deliver(args, report) if old is None else _check(args, old, report)


def _messages(path: str) -> "list[dict[str, str]]":
    from sinkpin.sinks.chat import read_chat

    return read_chat(path)


def _detect(
    args: argparse.Namespace, messages: "list[dict[str, str]] | None", text: Text, old: Card | None
) -> "Report":
    with waiting(f"loading {args.model or demo.NAME}"):
        loaded = load.load_model(args.model, dtype=args.dtype, device=args.device)
    import torch

    from sinkpin.sinks.detect import detect
    from sinkpin.sinks.template import render

    made = {} if old is None else old.settings
    length = args.tokens or made.get("tokens", TOKENS)
    if type(length) is not int or length < 1:
        raise InputError(f"{args.check} was made with tokens = {length!r}, which is no length: give --tokens")
    further = tokens.encode(loaded.tokenizer, text, length + TEXT)
    chat = None
    if messages is not None:
        chat = render(loaded.tokenizer, messages)
        ids, name = chat.ids, args.chat
    elif args.prompt is not None:
        ids, name = tokens.encode(loaded.tokenizer, Text(args.prompt, "--prompt"), sys.maxsize), "--prompt"
    else:
        ids, name, further = further[:length], text.name, further[length:]
    given = {
        key: made.get(key) if getattr(args, key) is None else getattr(args, key)
        for key in ("epsilon", "rate", "left_out")
    }
    try:
        with waiting("detecting") as say:
            return detect(
                loaded.model,
                ids,
                tokenizer=loaded.tokenizer,
                chat=chat,
                text=further or None,
                ablation=args.ablate,
                count=args.ablate or (old is not None and old.needed is not None),
                name=loaded.name,
                prompt=name,
                said=say,
                **{key: value for key, value in given.items() if value is not None},
            )
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{loaded.name} runs out of memory on {loaded.model.device} with {len(ids):,} tokens: use fewer --tokens or "
            "--dtype bfloat16"
        ) from error


def _deliver(args: argparse.Namespace, report: "Report") -> int:
    from sinkpin.atomic import write_together
    from sinkpin.sinks.report import as_line

    assert report.card is not None
    line, page, card = as_line(report), report.to_html(), Card.from_json(report.card)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        write_together(
            {
                args.out / PAGE: lambda file: file.write(page.encode()),
                args.out / DOCUMENT: lambda file: file.write(f"{line}\n".encode("utf-8", "backslashreplace")),
                args.out / CARD: lambda file: file.write(card.to_bytes()),
            }
        )
    except OSError as error:
        raise InputError(
            f"cannot write the report into {args.out} ({error.strerror or error}): choose another folder with --out"
        ) from error
    stream = sys.stderr if args.json else sys.stdout
    print(_shown(report, plain=args.plain or not stream.isatty()), file=stream)
    print(f"written: {', '.join(str(args.out / name) for name in (PAGE, CARD, DOCUMENT))}", file=stream)
    if args.json:
        print(line)
    return 0


def _check(args: argparse.Namespace, old: Card, report: "Report") -> int:
    import json

    assert report.card is not None
    found = changed(old, Card.from_json(report.card))
    stream = sys.stderr if args.json else sys.stdout
    for remark in found.remarks:
        print(f"note: {remark}", file=stream)
    for moved in found.moved:
        print(f"moved: {moved}", file=stream)
    if not found.moved:
        print(f"{args.check}: the sinks are where they were", file=stream)
    if args.json:
        print(json.dumps({"moved": found.moved, "remarks": found.remarks, "card": report.card}))
    return int(bool(found.moved))


def _shown(report: "Report", *, plain: bool) -> str:
    from rich.console import Console

    from sinkpin.sinks.text import as_text

    console = Console()
    width = console.width if console.is_terminal or os.environ.get("COLUMNS", "").isdecimal() else output.PIPE
    return as_text(report, width=min(console.width if console.is_terminal else width, 140), plain=plain)
