"""`sinkpin plan`: from texts and a limit to a setting whose loss is promised, or what stands in the way; and the gate.

Arguments, texts and the output folder are checked before torch is imported and a model is loaded. Not here: the options
(`plan_options`), `--check` (`gate`), texts as passages (`passages`), the answer and its words (`evaluate.advisor`).
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sinkpin import demo
from sinkpin.card import Card
from sinkpin.cli import load, output, passages
from sinkpin.cli.gate import check
from sinkpin.cli.plan_options import CHUNK, FILE, MAX_LOSS, TOKENS, USES, numbers, share, suits
from sinkpin.cli.plan_options import configure as configure  # what every verb has
from sinkpin.cli.progress import waiting
from sinkpin.cli.subject import identity, memory_told
from sinkpin.errors import InputError
from sinkpin.spans import count

if TYPE_CHECKING:
    from sinkpin.evaluate.advisor.advice import Advice
    from sinkpin.evaluate.advisor.passages import Passage
    from sinkpin.evaluate.advisor.workloads import Workload

DESCRIPTION = """\
Find the fewest bytes of KV cache whose loss is promised to stay below a limit. Settings (policy, budget, pins) are chosen on
one part of the text and certified on another; the loss is exp(ΔNLL) - 1, how much perplexity grows over the full cache, and
the limit is on its upper 95 % confidence bound. Prints the answer and its evidence, and writes sinkpin.json.
Exit status 1 where nothing is promised, or, with --check, where a promise no longer holds."""

EXAMPLES = r"""  sinkpin plan MODEL --text book.txt other.txt --max-loss 1% --workload stream
      endless text: sinks and window, positions by rank
  sinkpin plan MODEL --text chat1.json chat2.json --workload chat
  sinkpin plan MODEL --text book.txt --workload chat --system prompt.txt
      the system prompt is pinned; a plain text is put into turns
  sinkpin plan MODEL --text docs.txt --max-loss 2% --workload rag --length 4609 --policy snapkv --policy h2o
      a prompt of 4,096 tokens, then an answer of 512
  sinkpin plan --check sinkpin-out/sinkpin.json --text new.txt
      a gate: measured again, here on a text that it has not seen; exit status 1 where it no longer holds
"""


def run(args: argparse.Namespace) -> int:
    for option, least in (("length", 2), ("tokens", 2), ("chunk", 1)):
        number = getattr(args, option)
        if number is not None and number < least:
            raise InputError(f"--{option} {number}: give a number of tokens, {least} or more")
    return _plan(args) if args.check is None else check(args, TOKENS)


def _plan(args: argparse.Namespace) -> int:
    from sinkpin.evaluate.advisor.workloads import WORKLOADS

    if args.workload is None:
        raise InputError(
            f"--workload is missing: what is promised depends on the use; give one of {', '.join(USES)}"
        )
    workload, limit = WORKLOADS[args.workload], share(args.max_loss or MAX_LOSS)
    sinks, budgets = numbers("--sinks", args.sinks, 0), numbers("--budget", args.budget, 1)
    for written in args.policy or ():
        suits(written, workload)
    if args.system is not None and workload.name != "chat":
        raise InputError(f"--system with --workload {workload.name}: only a chat has a system prompt")
    workload.warm(args.length or workload.length)  # complains of a passage that is too short
    card = None if args.pins is None else Card.read(args.pins)
    output.check_folder(args.out, (FILE,))
    documents, system = passages.read(args.text, workload.name), passages.system_prompt(args.system)

    with waiting(f"loading {args.model or demo.NAME}"):
        loaded = load.load_model(args.model, dtype=args.dtype, device=args.device)
    from sinkpin.evaluate.advisor.advise import advise
    from sinkpin.evaluate.advisor.measure import Measurer
    from sinkpin.evaluate.advisor.passages import split
    from sinkpin.evaluate.advisor.workloads import lines

    length, notes = _length(args.length, workload, loaded)
    tokens, chunk = args.tokens or TOKENS, args.chunk or CHUNK
    found, texts, said = passages.passages_of(
        loaded.tokenizer, documents, workload, length, tokens, system, card
    )
    notes += said
    parts = split(found)
    pinned = max((count(spans) for passage in found for spans in passage.spans.values()), default=0)
    tried = lines(
        workload, workload.warm(length), args.policy, sinks, budgets, card=card is not None, pinned=pinned
    )
    with memory_told(loaded, length), waiting(f"planning for {loaded.name}") as say:
        measurer = Measurer(
            loaded.model, chunk, lambda what, done, of: say(f"{what}, passage {done} of {of}")
        )
        if found:
            tried, refused = measurer.possible(tried, found, asked=args.policy is not None)
            notes += refused
        advice = advise(
            tried,
            parts,
            limit,
            measurer,
            lambda setting: measurer.bytes_of(setting, found),
            about={
                "workload": workload.name,
                "length": length,
                "first": workload.warm(length),
                "chunk": chunk,
                "about": identity(loaded)
                | {
                    "texts": texts,
                    "tokens": tokens,
                    "system": system,
                    "card": None if args.pins is None else str(args.pins),
                },
                "notes": tuple(notes),
            },
            memory_of=lambda setting: measurer.memory_of(setting, found),
            emit=lambda setting: {
                "python": setting.as_python(_longest(found, setting.pins), str(args.pins)),
                "serve": setting.as_flags(str(args.pins)),
            },
        )
    return _deliver(args, advice)


def _deliver(args: argparse.Namespace, advice: "Advice") -> int:
    from sinkpin.evaluate.advisor import promise
    from sinkpin.evaluate.advisor.words import as_text

    stream, place = (sys.stderr if args.json else sys.stdout), args.out / FILE
    print(as_text(advice, width=_width()), file=stream)
    document: Mapping[str, Any] = advice.to_json()
    if advice.promised is not None:
        promise.write(document, place)
        print(f"written: {place}", file=stream)
    elif place.exists():
        print(f"note: {place} is of an earlier run, and was left as it is", file=stream)
    if args.json:
        print(json.dumps(document, allow_nan=False))
    return 0 if advice.promised is not None else 1


def _length(asked: int | None, workload: "Workload", loaded: load.Loaded) -> tuple[int, list[str]]:
    """Of a passage: what was asked for, or the workload's, or as many as the model was trained on, and a note."""
    from sinkpin.evaluate.advisor.measure import trained_length

    trained = trained_length(loaded.model)
    length = asked or workload.length
    if trained is None or length <= trained:
        return length, []
    if asked is not None:
        raise InputError(
            f"--length {asked}: {loaded.name} was trained on {trained} positions, past which the full cache is no reference; give "
            f"at most {trained}"
        )
    workload.warm(trained)
    return trained, [
        f"passages have {trained:,} tokens instead of {length:,}: the model was trained on no more positions"
    ]


def _longest(found: "list[Passage]", kind: str | None) -> tuple[tuple[int, int], ...]:
    """The spans of the passage that pins most."""
    spans = [passage.spans.get(kind or "", ()) for passage in found]
    return max(spans, key=count, default=())


def _width() -> int:
    from rich.console import Console

    console = Console()
    if console.is_terminal or os.environ.get("COLUMNS", "").isdecimal():
        return min(console.width, 120)
    return output.PIPE
