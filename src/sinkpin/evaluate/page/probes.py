"""The probes on the page: what each says in a sentence, its arms beside chance, and its cells, folded.

A probe's document is its own (`evaluate.probes.record`). Not here: what a probe measures, and whether it says anything,
which its sentence says.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sinkpin.evaluate.documents import Document
from sinkpin.evaluate.page.tables import nats
from sinkpin.page.markup import folded, interval, scale, table, text, value
from sinkpin.page.words import number, percent

_STEPS = 8  # the darkest in page.css


def probes(found: Sequence[Document]) -> str:
    """All of them, one under the other."""
    return "".join(_probe(place, one) for place, one in enumerate(found))


def _probe(place: int, probe: Document) -> str:
    lines = probe["arms"]
    full, chance = lines[0], probe["chance"]
    shares = all(0 <= arm["score"] <= 1 for arm in lines)
    say: Callable[[float | None], str] = percent if shares else number
    ends = (0.0, 1.0) if shares else scale([(chance, None), *((arm["score"], arm["ci95"]) for arm in lines)])
    rows = [
        [
            text(arm["name"]),
            value(say(arm["score"])) + _between(arm["ci95"], say),
            interval(arm["score"], arm["ci95"], ends, line=chance),
            "–" if arm["delta"] is None or arm is full else _delta(arm, shares),
            f"{int(arm['n']):,}",
        ]
        for arm in lines
    ]
    caption = (
        f"The upright line is chance, {say(chance)}{_because(probe)}; the picture goes from {say(ends[0])} to {say(ends[1])}. "
        "Δ: less the full cache, over what both answered."
    )
    name = f"probe-{place}"
    heads = ["arm", "score [95 %]", "chance", "Δ to full [95 %]", "n"]
    made = {key: probe[key] for key in ("settings", "versions", "notes") if probe.get(key)}
    return (
        f"<h3>{text(probe['probe'])}</h3><p class='said'>{text(probe['sentence'])}</p>"
        + table(name, f"Probe {place + 1}", caption, heads, rows, words=(0, 2))
        + _cells(name, probe)
        + folded("Settings and versions", made)
    )


def _because(probe: Document) -> str:
    return f" ({text(probe['chance_says'])})" if probe.get("chance_says") else ""


def _delta(arm: dict[str, Any], shares: bool) -> str:
    if not shares:
        return nats(arm["delta"], arm.get("delta_ci95"))

    def points(share: float) -> str:
        return f"{100 * share:+.1f}".replace("-", "−")

    between = arm.get("delta_ci95")
    held = "" if between is None else f" [{points(between[0])}, {points(between[1])}]"
    return text(f"{points(arm['delta'])}{held} points")


def _between(ci95: Sequence[float] | None, say: Callable[[float | None], str]) -> str:
    return "" if ci95 is None else f" [{text(say(ci95[0]))}, {text(say(ci95[1]))}]"


def _cells(name: str, probe: Document) -> str:
    """The cells of all arms, where they are a list of flat objects; a score is shaded."""
    lines = [{"arm": arm["name"], **cell} for arm in probe["arms"] for cell in arm["cells"]]
    if not lines:
        return ""
    columns = list(
        dict.fromkeys(key for line in lines for key, one in line.items() if not isinstance(one, dict))
    )
    rows = [[_cell(column, line.get(column)) for column in columns] for line in lines]
    inner = table(
        f"{name}-cells", "Cells", "Each cell of the probe.", [text(one) for one in columns], rows, words=(0,)
    )
    return f"<details><summary>All {len(lines):,} cells</summary>{inner}</details>"


def _cell(column: str, held: object) -> str:
    if isinstance(held, list):
        return text(f"[{', '.join(number(one) if isinstance(one, float) else str(one) for one in held)}]")
    if column == "score" and isinstance(held, int | float) and 0 <= held <= 1:
        return f"<span class='shaded l{round(_STEPS * held)}'>{text(percent(held))}</span>"
    if isinstance(held, float):
        return text(number(held))
    return "–" if held is None else text(held)
