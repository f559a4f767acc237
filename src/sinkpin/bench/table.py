"""A report as text: title, one line a row, the floor, notes. Columns that a verb does not fill are not there.

Not here: the table of many reports in the repository (`benchmarks/table.py`).
"""

import io
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table

_SCALES = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "µs", 1e6))
_MIB = 2**20


def as_text(document: Mapping[str, Any], *, width: int = 100, colour: bool = False) -> str:
    """All of a report within `width` columns, without a line break at the end."""
    out = io.StringIO()
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=out, width=width, force_terminal=colour, color_system=system, legacy_windows=False)
    console.print(_rows(document["rows"]))
    lines = [each.rstrip() for each in out.getvalue().rstrip("\n").split("\n")]
    words = [caption(document), *_floor(document["floor"])]
    words += [f"note: {note}" for note in document["notes"]]
    below = [textwrap.fill(each, width, subsequent_indent="  ", break_on_hyphens=False) for each in words]
    return "\n".join([textwrap.fill(_title(document), width), "", *lines, "", *below])


def _title(document: Mapping[str, Any]) -> str:
    threads = document["threads"]
    hardware = document["hardware"]
    where = hardware["card"] or f"{hardware['cpu']}, {threads} thread{'s' * (threads != 1)}"
    return f"{document['bench']}: {document['model']}, {document['dtype']}, {where}"


def _rows(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("arm", overflow="fold", min_width=12)
    columns = {header: cell for header, cell in COLUMNS.items() if any(_filled(cell, row) for row in rows)}
    for header in columns:
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["name"], *(cell(row) or "-" for cell in columns.values()))
    return table


def _filled(cell: Callable[[dict[str, Any]], str], row: dict[str, Any]) -> bool:
    return bool(cell(row))


def amount(value: float | None, unit: str) -> str:
    """A number with its unit, three digits of it; empty where there is none."""
    if value is None:
        return ""
    if unit == "bytes":
        return f"{value / _MIB:,.2f} MiB"
    _, name, factor = next(scale for scale in _SCALES if value >= scale[0])
    return f"{value * factor:.3g} {name}"


def _ratio(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: "" if row.get(key) is None else f"{row[key]:,.2f}"


def _mib(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: "" if row.get(key) is None else f"{row[key] / _MIB:,.1f}"


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "median": lambda row: amount(row["median"], row["unit"]),
    "p10": lambda row: amount(row["p10"], row["unit"]),
    "p90": lambda row: amount(row["p90"], row["unit"]),
    "× ref": _ratio("ratio"),
    "× floor": _ratio("times_floor"),
    "tokens/s": lambda row: "" if row.get("tokens_per_s") is None else f"{row['tokens_per_s']:,.1f}",
    "recompute\n÷ this": _ratio("recompute_ratio"),
    "× one\nrow": _ratio("batch_gain"),
    "eager\n÷ this": _ratio("compiled_gain"),
    "recompiles": lambda row: "" if row.get("recompiles") is None else f"{row['recompiles']}",
    "× per token\nshortest": _ratio("growth"),
    "ppl": lambda row: "" if row.get("ppl") is None else f"{row['ppl']:,.3f}",
    "loop\n÷ this": _ratio("faster_than_loop"),
    "plain loop\n÷ this": _ratio("faster_than_plain_loop"),
    "KV\nMiB": _mib("kv_bytes"),
    "allowed\nMiB": _mib("allowed_bytes"),
    "workspace\nMiB": _mib("workspace_bytes"),
    "nbytes\ngrowth": lambda row: "" if row.get("nbytes_growth") is None else f"{row['nbytes_growth']:,}",
    "process\nMiB": _mib("resident_bytes"),
    "cache\nMiB": _mib("nbytes"),
}
"""Header and cell of each column but the first; empty where a row has nothing to say."""


_REFERENCE = {
    "decode": "over DynamicCache in the same rounds, the median of paired ratios",
    "prefill": "over DynamicCache in the same rounds, the median of paired ratios",
    "memory": "over what a DynamicCache would take, computed",
    "perplexity": "over the plain loop (else the token-by-token one) in the same rounds, the median of paired ratios",
    "stream": "over the second block, a ratio of medians",
}


def caption(document: Mapping[str, Any]) -> str:
    """What the columns mean."""
    rows, bench = document["rows"], document["bench"]
    words = [f"median, p10, p90: {rows[0]['unit']}."]
    if bench == "memory":
        words.append("Of growth, the last reading, and the spread of all.")
    if any(row["ratio"] is not None for row in rows):
        words.append(f"× ref: {_REFERENCE[bench]}.")
    if any(row["times_floor"] is not None for row in rows):
        best = "budget and chunk" if bench == "memory" else "what this machine could do at best"
        words.append(f"× floor: over {best}.")
    return " ".join(words)


def _floor(floor: Mapping[str, Any]) -> list[str]:
    if "bandwidth_bytes_per_s" not in floor:
        return []
    said = (
        f"floor: {floor['weight_bytes'] / _MIB:,.1f} MiB of weights a forward and {floor['entry_bytes']:,} bytes an "
        f"entry, at {floor['bandwidth_bytes_per_s'] / 1e9:,.1f} GB/s; {floor['weight_operations'] / 1e6:,.1f} "
        f"MFLOP a token, {floor['head_operations'] / 1e6:,.1f} for its logits, and attention, at {floor['rate_flop_per_s'] / 1e9:,.1f} GFLOP/s"
    )
    return [said]
