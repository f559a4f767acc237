"""`sinkpin probe`: from arguments to a table, a sentence, and `probe-NAME.json`.

Arguments, the text and the output folder are checked before torch is imported and a model is loaded. A setting's default is
the probe's own. Not here: the probes (`evaluate.probes`), and which arms the arguments ask for (`arms`).
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sinkpin import demo
from sinkpin.cli import load, output
from sinkpin.cli.arms import asked_for
from sinkpin.cli.probe_options import POLICIES, SETTINGS
from sinkpin.cli.probe_options import configure as configure
from sinkpin.cli.progress import progress, waiting
from sinkpin.cli.text import Text, read_text
from sinkpin.errors import InputError, ModelError

if TYPE_CHECKING:
    from sinkpin.evaluate.arms import Arm
    from sinkpin.evaluate.probes.base import Probe
    from sinkpin.evaluate.probes.record import ProbeResult

DESCRIPTION = """\
Ask a model what it was told, after its cache has evicted: the full cache, and each policy at each budget with each number of
pinned sinks. What stands before a question is fed and evicted first; that something was is made sure. Says what chance is,
and where the full cache does not beat it, that the model cannot do the task. Writes probe-NAME.json.

probes (NAME):
  streameval    lines of a record, asked for a number of lines later, streamed through one cache
  needle        a number hidden in a novel, by length and depth, the question visible or not
  passkey       a pass key among repeated lines, by length and depth, the question visible or not
  names         facts and constraints said early and asked for later, by kind and distance
  repetition    loops in long generation: repeated 4-grams and how far the text compresses
  instructions  several rules of a system prompt kept at once over a chat, by rule and distance"""

EXAMPLES = r"""  sinkpin probe passkey
      the demo model and the default grid: some minutes
  sinkpin probe needle MODEL --lengths 2048,8192 --depths 0,0.25,0.5,0.75,1 --policy snapkv --policy h2o --budget 10%
  sinkpin probe streameval MODEL --tokens 120000 --distances 20,100,1000 --policy window --budget 2048
  sinkpin probe names MODEL --text book.txt --distances 500,4000 --style chat --json > names.json
"""


def run(args: argparse.Namespace) -> int:
    from sinkpin.evaluate.probes import named
    from sinkpin.evaluate.probes.record import file_of

    given = {name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None}
    asked = named(args.name, **given)
    if args.chunk is not None and args.chunk < 1:
        raise InputError(f"--chunk {args.chunk}: a forward has at least one token; give 1 or more")
    # What stands before a question is a prompt, so that every policy has one.
    arms, notes = asked_for(args.policy or POLICIES, args.budget, args.sinks, args.frame, prompt=1)
    output.check_folder(args.out, (file_of(asked.name),))
    text = read_text(args.text)
    result = _probe(args, asked, arms, text)
    result.notes.extend(notes)
    _deliver(result, args.out, as_json=args.json)
    return 0


def _probe(args: argparse.Namespace, asked: "Probe", arms: "list[Arm]", text: Text) -> "ProbeResult":
    with waiting(f"loading {args.model or demo.NAME}"):
        loaded = load.load_model(args.model, dtype=args.dtype, device=args.device)
    import torch

    from sinkpin.evaluate.probes.run import probe

    try:
        with progress(len(arms)) as step:
            return probe(
                loaded.model,
                loaded.tokenizer,
                asked,
                arms,
                text=text.content,
                text_name=text.name,
                chunk=args.chunk,
                name=loaded.name,
                progress=step,
            )
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{loaded.name} runs out of memory on {loaded.model.device}: use shorter trials, a --chunk or --dtype bfloat16"
        ) from error


def _deliver(result: "ProbeResult", out: Path, *, as_json: bool) -> None:
    """Write the result, then show it: `sinkpin probe … | head` has its file too."""
    from rich.console import Console

    from sinkpin.evaluate.probes.text import as_text

    failure: InputError | None = None
    try:
        path = result.save(out)
    except InputError as error:
        failure = error
    stream = sys.stderr if as_json else sys.stdout
    told = stream.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    width = min(Console().width if told else output.PIPE, output.PIPE)
    print(as_text(result, width=width, notes=True), file=stream)
    if failure is not None:
        raise failure  # after the table: the run was long, and its numbers are on the screen at least
    print(f"written: {path}", file=stream)
    if as_json:
        print(json.dumps(result.to_json(), allow_nan=False))
