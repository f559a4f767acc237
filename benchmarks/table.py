"""Renders committed results into benchmarks/README.md, between its markers.

    python benchmarks/table.py             rewrite the README from benchmarks/results/*.json and *.jsonl
    python benchmarks/table.py --check     exit 1 if it is not what they say
    python benchmarks/table.py --from benchmarks/results/latest --print    show those of a run that is not kept

A file holds one JSON document a line: of `sinkpin bench` (with the name of its job) or of a peer. Needs sinkpin
installed, for the columns. Not here: what is measured (run.py).
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sinkpin.bench.table import COLUMNS, caption
from sinkpin.bench.trend import sentence

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
MARKS = re.compile(r"(<!-- results -->\n).*?(<!-- /results -->)", re.DOTALL)
NONE_YET = (
    "No results are kept here yet: `make bench` measures, and `make bench-table` shows what was kept.\n"
)

_MANY = 16  # rows that are all shown; of more, the first and the last few
_ENDS = 3
_PEER = {
    "decode ÷ own dense": "decode_ratio",
    "tokens/s": "tokens_per_s",
    "perplexity": "perplexity",
    "sinks held": "sinks_held_after_steps",
    "second turn bounded": "second_turn_bounded",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the README differs")
    parser.add_argument("--print", action="store_true", help="to stdout, not into the README")
    parser.add_argument("--from", dest="folder", type=Path, default=HERE / "results", help="folder (results)")
    arguments = parser.parse_args()
    rendered = render(read(arguments.folder))
    if arguments.print:
        sys.stdout.write(rendered)
        return 0
    before = README.read_text(encoding="utf-8")
    after = put(before, rendered)
    if arguments.check:
        if before != after:
            sys.stderr.write(f"{README} is not what the results say: run python benchmarks/table.py\n")
        return int(before != after)
    new = README.with_name(f".{README.name}.{os.getpid()}.new")
    new.write_text(after, encoding="utf-8")
    os.replace(new, README)
    return 0


def read(folder: Path) -> list[dict[str, Any]]:
    """Every document in the folder's own files, by file name."""
    paths = sorted([*folder.glob("*.json"), *folder.glob("*.jsonl")])
    lines = (line for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    return [json.loads(line) for line in lines if line.strip()]


def put(readme: str, rendered: str) -> str:
    """The README with what is between the markers replaced."""
    if not MARKS.search(readme):
        raise SystemExit(
            f"{README} has no <!-- results --> and <!-- /results -->: put them where the tables go"
        )
    return MARKS.sub(lambda match: f"{match[1]}{rendered}{match[2]}", readme)


def render(documents: Iterable[dict[str, Any]]) -> str:
    """Markdown: one section a job, then one table of all peers."""
    everything = list(documents)
    sections = [section(each) for each in everything if "bench" in each]
    if rows := [each for each in everything if "peer" in each]:
        sections.append(of_peers(rows))
    return "\n".join(sections) if sections else NONE_YET


def section(document: dict[str, Any]) -> str:
    """A heading, what it was measured on, the rows, what was said."""
    versions, hardware = document["versions"], document["hardware"]
    card = hardware["card"]
    on = f"{hardware['card']}" if card else f"{hardware['cpu']}, {document['threads']} threads"
    where = [
        f"{document['model']}, {document['dtype']}; {on}",
        f"torch {versions['torch']}, transformers {versions['transformers']}, sinkpin {versions['sinkpin']}"
        + (f" at {document['commit']}" if document.get("commit") else ""),
        document["date"][:10],
    ]
    rows = document["rows"]
    columns = {header: cell for header, cell in COLUMNS.items() if any(cell(row) for row in rows)}
    shown = rows if len(rows) <= _MANY else [*rows[:_ENDS], None, *rows[-_ENDS:]]
    table = [["arm", *(header.replace("\n", " ") for header in columns)]]
    for row in shown:
        cells = ["…"] * len(columns) if row is None else [cell(row) or "-" for cell in columns.values()]
        table.append(["…" if row is None else row["name"], *cells])
    quick = " (quick: these numbers mean nothing)" if document.get("quick") else ""
    said = [sentence(document["verdict"])] if "verdict" in document else []
    notes = [f"- {note}" for note in [caption(document), *said, *document["notes"]]]
    heading = f"### {document.get('job', document['bench'])}{quick}"
    return "\n".join([heading, "", f"{'; '.join(where)}.", "", *markdown(table), "", *notes, ""])


def of_peers(rows: list[dict[str, Any]]) -> str:
    """One line a peer; peers/README.md says what each field is."""
    table = [["peer", *_PEER]]
    for row in rows:
        failed = row.get("failed")
        cells = [plain(row.get(field)) for field in _PEER.values()]
        table.append([row["peer"], *([f"failed: {failed}", *cells[1:]] if failed else cells)])
    return "\n".join(["### Peers", "", *markdown(table), ""])


def plain(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.3g}" if isinstance(value, float) else str(value)


def markdown(table: list[list[str]]) -> list[str]:
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in table]
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(row)} |" for row in (head, ruler, *body)]


if __name__ == "__main__":
    sys.exit(main())
