"""What the scripts of the page draw: each arm with its numbers, and what is said of it when it is chosen.

Arms that are drawn in colour are few, so that they can be told apart: those of the front first, then those that lose
least. All others are grey lines, and any can be chosen. Not here: drawing (bytes.js, place.js).
"""

from collections.abc import Sequence
from typing import Any

from sinkpin.evaluate.documents import Document
from sinkpin.evaluate.front import front
from sinkpin.evaluate.page.words import recommended, signed, size, times
from sinkpin.page.words import number, percent, plain

COLOURS = 6  # in page.css


def drawn(document: Document) -> dict[str, Any]:
    """The data of the page, in the order of the document's arms."""
    arms = document["arms"]
    full, *others = arms
    best = front(arms)
    ranked = sorted(others, key=lambda arm: (arm["name"] not in best, arm["delta_nll"]))
    colours = {arm["name"]: place for place, arm in enumerate(ranked[:COLOURS])}
    blocks = document.get("blocks")
    opening = recommended(document) or next((arm for arm in ranked if arm["name"] in best), full)
    return {
        "opening": arms.index(opening),
        "first": document["tokens"] - document["scored_tokens"],
        "ends": blocks["ends"] if blocks else [],
        "margin": document.get("margin"),
        "arms": [
            {
                "name": plain(arm["name"]),
                "full": arm is full,
                "bytes": arm["kv_bytes_steady"],
                "size": size(arm["kv_bytes_steady"]),
                "delta": arm["delta_nll"],
                "ci95": arm["ci95"],
                "front": arm["name"] in best,
                "pinned": bool(arm["sinks"] or arm.get("pins")),
                "colour": colours.get(arm["name"]),
                "departs": arm.get("departs"),
                "loss": _series(arm.get("delta_blocks"), blocks),
                "kl": _series(arm.get("kl_blocks"), blocks),
                "says": plain(said(arm, full)),
            }
            for arm in arms
        ],
    }


def said(arm: dict[str, Any], full: dict[str, Any]) -> str:
    """An arm in one line."""
    held = size(arm["kv_bytes_steady"])
    if arm is full:
        return f"{arm['name']}: {held}, the reference"
    interval = "" if arm["ci95"] is None else " [{}, {}]".format(*(signed(end) for end in arm["ci95"]))
    parts = [
        f"Δ {signed(arm['delta_nll'])}{interval} nats",
        f"{times(arm['delta_nll'])} the perplexity of the full cache",
        f"{held}, {percent(arm['kv_bytes_steady'] / full['kv_bytes_steady'])} of its bytes",
    ]
    if arm.get("kl") is not None:
        parts.append(f"KL {number(arm['kl'])}")
    if arm.get("verdict"):
        parts.append(arm["verdict"])
    if arm.get("departs") is not None:
        parts.append(f"departs for good at token {arm['departs']:,}")
    return f"{arm['name']}: {', '.join(parts)}"


def _series(values: Sequence[float] | None, blocks: dict[str, Any] | None) -> list[float] | None:
    """One value a block, or nothing: a series of another length has no places."""
    return list(values) if values and blocks and len(values) == len(blocks["ends"]) else None
