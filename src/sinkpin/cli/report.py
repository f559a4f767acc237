"""`sinkpin report`: results and probes, read from their files, as one page. No model, no torch.

Not here: what the page says (`evaluate.page`), and which runs may stand in one table (`evaluate.merge`).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkpin.cli import output
from sinkpin.errors import InputError

if TYPE_CHECKING:
    from sinkpin.evaluate.documents import Document

FOLDER = Path("sinkpin-out")
OUT = Path("report.html")

DESCRIPTION = """\
Make one page of what `sinkpin compare` and `sinkpin probe` wrote: the verdict in words, loss against bytes and against
position, every arm, the probes, and the command that makes it again. Opens from disk, asks for nothing. Runs of one
model and one text become one page with all their arms; with --compare, runs over time are told apart, oldest first.
Needs neither a model nor torch."""

EXAMPLES = r"""  sinkpin report
      what the last `sinkpin compare` left in sinkpin-out
  sinkpin report window.json h2o.json --out both.html
      two runs on one text: one table
  sinkpin report results.json probe-needle.json
      with a probe from elsewhere; those beside a result are found by themselves
  sinkpin report january/ june/ --compare
      what changed since: loss, verdict, divergence and bytes of each arm, and which versions
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "results",
        metavar="RESULT",
        nargs="*",
        type=Path,
        help=f"results.json, a probe's file, or a folder with both (default: {FOLDER})",
    )
    add(
        "--compare",
        action="store_true",
        help="the results are runs over time, oldest first: the page is of the last, and says what changed since the others",
    )
    add("--out", metavar="FILE", type=Path, default=OUT, help=f"the page (default: {OUT})")
    add(
        "--json",
        action="store_true",
        help="one JSON document on standard output: the result, its `probes`, and with --compare `changes`",
    )


def run(args: argparse.Namespace) -> int:
    from sinkpin.evaluate.changes import changes
    from sinkpin.evaluate.merge import merged
    from sinkpin.evaluate.page import render
    from sinkpin.evaluate.page.words import headline

    _check(args.out)
    names, runs, probes, remarks = _read(args.results or [FOLDER])
    earlier: list[tuple[str, Document]] = []
    if args.compare:
        if len(runs) < 2:
            raise InputError(
                f"--compare was given {len(runs)} result: name two or more, oldest first, to see what changed"
            )
        document = runs[-1]
        earlier = list(zip(names[:-1], runs[:-1], strict=True))
        _check_arms(earlier, names[-1], document)
    else:
        document = merged(runs, names)
    if other := next((probe for probe in probes if probe["model"] != document["model"]), None):
        raise InputError(
            f"the probe {other['probe']} is of {other['model']} and the result of {document['model']}: report them apart"
        )
    since = [{"since": name, **changes(before, document)} for name, before in earlier]
    output.write_page(args.out, render(document, probes, earlier=earlier))

    stream = sys.stderr if args.json else sys.stdout
    for remark in remarks:
        print(f"note: {remark}", file=stream)
    print(headline(document), file=stream)
    for one in since:
        print(_told(one), file=stream)
    print(f"written: {args.out}", file=stream)
    if args.json:
        print(json.dumps({**document, "probes": probes} | ({"changes": since} if since else {})))
    return 0


def _read(paths: list[Path]) -> "tuple[list[str], list[Document], list[Document], list[str]]":
    """Results by name and in order, probes each once, and remarks."""
    from sinkpin.evaluate.documents import is_probe, probes_beside, read

    names: list[str] = []
    runs: list[Document] = []
    probes: list[Document] = []
    remarks: list[str] = []
    for path in paths:
        document = read(path)
        beside: list[Document] = []
        if is_probe(document):
            beside = [document]
        else:
            names.append(str(path))
            beside = document.pop("probes", [])  # what --json wrote holds its own
            runs.append(document)
            found, said = probes_beside(path, document["model"])
            beside += found
            remarks += said
        probes += [probe for probe in beside if probe not in probes]
    if not runs:
        raise InputError("no result among the files, only probes: name a results.json too, or its folder")
    return names, runs, probes, remarks


def _check_arms(earlier: "list[tuple[str, Document]]", last: str, document: "Document") -> None:
    now = {arm["name"] for arm in document["arms"] if arm["policy"] != "full"}
    for name, before in earlier:
        if not now & {arm["name"] for arm in before["arms"]}:
            raise InputError(
                f"{name} and {last} have no arm in common but full, so nothing can be said to have changed: without "
                "--compare they are merged into one table"
            )


def _told(one: dict[str, Any]) -> str:
    """What changed, one line for each arm that moved."""
    moved = [arm for arm in one["arms"] if arm["moved"]]
    unknown = sum(arm["moved"] is None for arm in one["arms"])
    lines = [f"since {one['since']}: {len(moved)} of {len(one['arms'])} arms moved"]
    if unknown:
        lines[0] += f", {unknown} cannot be judged without intervals"
    for arm in moved:
        old, new = arm["delta_nll"]
        before, after = (verdict or "no verdict" for verdict in arm["verdict"])
        lines.append(f"  {arm['name']}: ΔNLL {old:+.4f} -> {new:+.4f}, {before} -> {after}")
    return "\n".join([*lines, *(f"  {difference}" for difference in one["differs"])])


def _check(out: Path) -> None:
    if out.is_dir():
        raise InputError(f"{out} is a folder: give --out the name of a file, such as {out / OUT}")
    output.check_folder(out.parent, names=())
