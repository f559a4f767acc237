"""The result as a table: one line an arm, and what its columns mean.

Reads well at 80 columns: numbers line up and are never cut, a long arm name wraps, and what colour says is also said
by a mark. Not here: what is printed around the table (`text`), and what the numbers say (`sentence`).
"""

from collections.abc import Callable

from rich import box
from rich.table import Table
from rich.text import Text

from sinkpin.evaluate.pairs import pairs, unpinned_twin
from sinkpin.evaluate.record import ArmResult, Comparison

# An arm that holds fewer than this share of the first four tokens at the end has lost its sinks.
LOST = 0.5
_WHOLE = 0.995  # shown as 100 %

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def table(result: Comparison) -> Table:
    """One line per arm, in the order of the record."""
    lines = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    lines.add_column("arm", overflow="fold", min_width=12)
    columns = _columns(result)
    for header in columns:
        lines.add_column(header, justify="right", no_wrap=True)
    for arm in result.arms:
        name = f"{arm.name} !" if dropped_first(arm) else arm.name
        style = "red" if lost_first(arm) else None
        lines.add_row(Text(name), *(cell(arm) for cell in columns.values()), style=style)
    return lines


def _columns(result: Comparison) -> dict[str, Callable[[ArmResult], str]]:
    """Header and cell of each column but the first; a dash where there is nothing to say."""
    full, *others = result.arms
    unit, scale = _unit(min(arm.kv_bytes_steady for arm in result.arms))
    ppl = _decimals(max(arm.ppl for arm in result.arms))
    ratio = _decimals(max(arm.ppl for arm in result.arms) / full.ppl)

    def against_twin(arm: ArmResult) -> str:
        twin = unpinned_twin(arm, others)
        return "-" if twin is None else f"{arm.ppl / twin.ppl:,.2f}"

    def agreement(arm: ArmResult) -> str:
        return "-" if arm is full or arm.top1_agreement is None else f"{100 * arm.top1_agreement:.1f}"

    columns: dict[str, Callable[[ArmResult], str]] = {
        "budget\ntokens": lambda arm: "all" if arm.budget_tokens is None else f"{arm.budget_tokens:,}",
        f"KV\n{unit}": lambda arm: f"{arm.kv_bytes_steady / scale:,.1f}",
        "pins": lambda arm: "-" if arm.budget_tokens is None else f"{arm.pinned_tokens:,}",
        "ppl": lambda arm: f"{arm.ppl:,.{ppl}f}",
        "×\nfull": lambda arm: f"{arm.ppl / full.ppl:,.{ratio}f}",
    }
    if pairs(others):
        columns["× no\npins"] = against_twin
    columns["ΔNLL\nnats"] = lambda arm: "-" if arm is full else f"{arm.delta_nll:+.3f}"
    columns["top-1\n%"] = agreement
    columns["first\n4 %"] = lambda arm: f"{100 * arm.sink_kept:.0f}"
    return columns


def caption(result: Comparison) -> str:
    """What the columns mean."""
    words = ["KV: held at the end.", "× full, × no pins: perplexity over that of the full cache"]
    if pairs(result.arms[1:]):
        words[1] += ", and of the same arm without pins."
    else:
        words[1] = words[1].replace(", × no pins", "") + "."
    words.append("top-1: the same most likely next token as with the full cache.")
    words.append("first 4: of the text's first four tokens, held at the end (mean over layers and KV heads).")
    if any(dropped_first(arm) for arm in result.arms):
        words.append("!: they were not pinned, and dropped.")
    return " ".join(words)


def dropped_first(arm: ArmResult) -> bool:
    """Whether this arm pins no first token and ended without some of them, in some layer and head."""
    return arm.budget_tokens is not None and not arm.sinks and arm.sink_kept < _WHOLE


def lost_first(arm: ArmResult) -> bool:
    """Whether it ended without most of them."""
    return dropped_first(arm) and arm.sink_kept < LOST


def _decimals(largest: float) -> int:
    """As many decimals as leave the widest number of a column at six characters or little more."""
    return 2 if largest < 1000 else 1 if largest < 1e5 else 0


def _unit(smallest: int) -> tuple[str, int]:
    return next(((unit, scale) for unit, scale in _UNITS if smallest >= scale), _UNITS[-1])
