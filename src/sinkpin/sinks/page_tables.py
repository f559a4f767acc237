"""The page's tables, as HTML: sinks, experiments, ablations, pinning, the ε curve's numbers.

Whatever comes from the document passes `text` and nothing else. Not here: what a table looks like (`page.markup`), the
words (`page_words`), and what is drawn by script.
"""

import html
import math
from typing import Any

from sinkpin.page.markup import table, text, value
from sinkpin.page.words import measured, number, percent, short, spans
from sinkpin.sinks.page_words import nats

_KINDS = (
    "<b>True</b>: bound to the first place, whatever token stands there. <b>Structural</b>: a marker of the chat template. "
    "<b>Secondary</b>: neither. "
)
_HOW = "<p class='empty'>Not measured here. <code>sinkpin detect --ablate</code> {}.</p>"


def sinks(document: dict[str, Any]) -> str:
    """One row a sink."""
    if not document["sinks"]:
        return "<p class='empty'>No token stands out. That is an answer too: this prompt’s attention is not dumped on any one token.</p>"
    norms = list(dict.fromkeys(name for sink in document["sinks"] for name in sink["norms"]))
    heads = document["heads"] * len(document["layers"])
    rows = [
        [
            f"<button type='button' data-token='{int(sink['index'])}'>{int(sink['index'])}</button> {_code(sink['text'])}",
            text(sink["kind"]) + ("" if sink["outlier"] else " <span class='hint'>no outlier</span>"),
            value(percent(sink["mass"])),
            value(percent(sink["most"])),
            f"{int(sink['heads']):,}",
            value(number(sink["z"])),
            value(number(sink["q"])),
            _strip(sink["layers"], document["layers"]),
            *(value(number(sink["norms"].get(name))) for name in norms),
            value(percent(sink["payload"])),
        ]
        for sink in document["sinks"]
    ]
    names = [
        "token",
        "kind",
        "mass",
        "largest head",
        f"heads over ε, of {heads:,}",
        "z",
        "q",
        "outlier in layers",
    ]
    caption = (
        f"{_KINDS}z: how far its log mass is from that of its neighbours; q: the false-discovery rate at which it would just "
        "be called an outlier. Norms: of its hidden state, key and value, as multiples of the median token’s. Payload: its share of what attention writes; a dump has "
        "far less than its mass."
    )
    return table(
        "sinks",
        "Sinks",
        caption,
        [*names, *(f"{text(name)} norm" for name in norms), "payload"],
        rows,
        words=(0, 1, 7),
    )


def experiments(document: dict[str, Any]) -> str:
    """One row a changed prompt."""
    if not document["experiments"]:
        return _HOW.format(
            "changes the prompt and says whether the mass stays with the place or goes with the token"
        )
    rows = [
        [
            text(one["name"]),
            value(percent(one["first"])) if one["first"] is not None else "–",
            value(percent(one["token"])) if one["token"] is not None else "–",
            f"{int(one['runs'])}",
            text(one["says"]),
        ]
        for one in document["experiments"]
    ]
    names = [
        "changed prompt",
        "mass of the first position",
        "mass of the sink’s token",
        "runs",
        "what follows",
    ]
    return table(
        "experiments",
        "Changed prompts",
        "Prompts that were changed. –: there is no such token.",
        names,
        rows,
        words=(0, 4),
    )


def ablations(document: dict[str, Any]) -> str:
    """One row a loss, beside its control, on one scale."""
    if not document["ablations"]:
        return _HOW.format("masks and evicts the sinks, and as many matched tokens, and compares the loss")
    scale = _scale([one[part] for one in document["ablations"] for part in ("effect", "control")])
    rows = [
        [
            text(one["what"]) + _indices(one["what"], one["indices"]),
            text(one["way"]),
            value(nats(one["effect"])),
            value(nats(one["control"])) + f" <span class='hint'>× {int(one['controls'])}</span>",
            _forest(one["effect"], one["control"], scale),
            value(number(one["effect"]["kl"])),
            value(percent(one["effect"]["agreement"])),
            f"{int(one['scored']):,}",
        ]
        for one in document["ablations"]
    ]
    names = [
        "lost",
        "how",
        "Δ nats per token [95 %]",
        "matched tokens",
        "side by side",
        "KL, nats",
        "same top token",
        "scored",
    ]
    caption = (
        "Loss against the run in which nothing was lost. In the pictures, orange circle: the sinks, grey square: matched tokens, "
        f"bars: 95 % intervals; from {number(scale[0])} to {number(scale[1])} nats."
    )
    return table("ablations", "What losing tokens costs", caption, names, rows, words=(0, 1, 4))


def restored(document: dict[str, Any]) -> str:
    """One row a budget: what pinning gives back."""
    if not document["restored"]:
        return ""
    rows = [
        [
            text(one["what"]),
            f"{int(one['budget']):,}",
            value(nats(one["without"])),
            value(nats(one["pinned"])),
            value(percent(one["pinned"]["agreement"])),
            f"{int(one['scored']):,}",
        ]
        for one in document["restored"]
    ]
    names = [
        "pinned",
        "tokens kept",
        "not pinned: Δ nats [95 %]",
        "pinned: Δ nats [95 %]",
        "same top token, pinned",
        "scored",
    ]
    return "<h3>What pinning gives back</h3>" + table(
        "restored",
        "What pinning gives back",
        "A bounded cache against the full one, nats per token.",
        names,
        rows,
        words=(0,),
    )


def curve(document: dict[str, Any]) -> str:
    """The ε curve's numbers, folded."""
    rows = [[value(number(epsilon)), value(percent(share))] for epsilon, share in document["curve"]]
    made = table(
        "curve", "The ε curve", "Share of heads over each ε.", ["ε", "share of heads"], rows, words=()
    )
    return f"<details><summary>The numbers</summary>{made}</details>"


def _code(token: str) -> str:
    return f"<code><bdi>{html.escape(short(token))}</bdi></code>"


def _indices(what: str, indices: list[int]) -> str:
    """Which tokens, unless `what` says so."""
    if what.startswith("token"):
        return ""
    said = spans(list(indices))
    return f" <span class='hint'>({said if len(said) <= 40 else f'{len(indices)} tokens'})</span>"


def _strip(over: list[int], layers: list[int]) -> str:
    """Which layers, as a strip of all of them and in words."""
    there = set(over)
    cells = "".join(
        f"<rect x='{place}' width='0.8' height='1' class='{'on' if layer in there else 'off'}'/>"
        for place, layer in enumerate(layers)
    )
    picture = f"<svg class='strip' viewBox='0 0 {len(layers)} 1' preserveAspectRatio='none' aria-hidden='true'>{cells}</svg>"
    return f"{picture}<span class='hint'>{spans(list(over)) or 'none'}</span>"


def _scale(effects: list[dict[str, Any]]) -> tuple[float, float]:
    """The least and the most nats that are drawn; zero is always among them."""
    ends = [0.0, *(x for one in effects for x in (*one["ci95"], one["delta_nll"]) if measured(x))]
    return min(ends), max(*ends, min(ends) + 1e-9)


def _forest(effect: dict[str, Any], control: dict[str, Any], scale: tuple[float, float]) -> str:
    """Two intervals, one under the other; zero is the upright line."""
    low, high = scale
    inner = [f"<path class='zero' d='M{_place(0.0, low, high)} 1v22'/>"]
    for kind, y, one in (("sink", 8, effect), ("control", 17, control)):
        if not all(math.isfinite(x) for x in (*one["ci95"], one["delta_nll"])):
            continue
        left, right, middle = (_place(x, low, high) for x in (*one["ci95"], one["delta_nll"]))
        mark = (
            f"<circle cx='{middle}' cy='{y}' r='3.5'/>"
            if kind == "sink"
            else f"<rect x='{middle - 3}' y='{y - 3}' width='6' height='6'/>"
        )
        inner.append(f"<g class='{kind}'><path d='M{left} {y}H{right}'/>{mark}</g>")
    return f"<svg class='forest' viewBox='0 0 160 24' aria-hidden='true'>{''.join(inner)}</svg>"


def _place(x: float, low: float, high: float) -> float:
    return round(6 + 148 * (x - low) / (high - low), 1)
