"""A result as text: title, table, what its columns mean, what it says, warnings. Nothing is wider than the table needs.

What `print(result)` and `sinkpin compare` show, on a terminal and in a pipe. Not here: what each part says (`table`,
`sentence`).
"""

import io
import textwrap
from typing import Literal

from rich.console import Console

from sinkpin.evaluate.record import Comparison
from sinkpin.evaluate.sentence import sentence, warnings
from sinkpin.evaluate.table import caption, table

WIDTH = 80
_NARROWEST = 72  # that words are wrapped to, however narrow the table


def as_text(result: Comparison, *, width: int = WIDTH, colour: bool = False, notes: bool = False) -> str:
    """All of it within `width` columns, without a line break at the end. `notes`: with the record's notes."""
    out = io.StringIO()
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=out, width=width, force_terminal=colour, color_system=system, legacy_windows=False)
    rows = table(result)
    console.print(rows)
    lines = [line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")]
    room = min(width, max(_NARROWEST, console.measure(rows).maximum))
    words = [caption(result), "", sentence(result)]
    if warned := warnings(result):
        words += ["", *(f"warning: {warning}" for warning in warned)]
    if notes:
        words += ["", *(f"note: {note}" for note in result.notes)]
    below = [wrapped(paragraph, room) for paragraph in words]
    return "\n".join([wrapped(_title(result), room), "", *lines, "", *below])


def wrapped(text: str, width: int) -> str:
    """Lines of at most `width`; those of a note are hung below its text. A path or an arm's name stays whole."""
    indent = "  " if text.startswith(("note: ", "warning: ")) else ""
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _title(result: Comparison) -> str:
    scored = f"{result.scored_tokens:,} of {result.tokens:,} tokens scored"
    fed = f", chunk {result.chunk:,}" if any(arm.chunk == result.chunk for arm in result.arms) else ""
    return f"{result.model}: {scored}{fed}"
