"""The page's tables and lists, as HTML: sinks, experiments, ablations, pinning, the ε curve's numbers, settings.

Whatever comes from the document passes `text` and nothing else: it is the border between a prompt and the page. Not
here: the words (`page_words`), and what is drawn by script.
"""

import html
import json
import math
from typing import Any

from sinkpin.sinks.page_words import (
    NOT_MEASURED,
    measured,
    nats,
    number,
    percent,
    plain,
    short,
    spans,
)

_KINDS = (
    "<b>True</b>: bound to the first place, whatever token stands there. <b>Structural</b>: a marker of the chat template. "
    "<b>Secondary</b>: neither. "
)
_HOW = "<p class='empty'>Not measured here. <code>sinkpin detect --ablate</code> {}.</p>"


def text(words: object) -> str:
    """`words` for the page: nothing in them is markup, and nothing is hidden."""
    return html.escape(plain(str(words)))


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
            _value(percent(sink["mass"])),
            _value(percent(sink["most"])),
            f"{int(sink['heads']):,}",
            _value(number(sink["z"])),
            _value(number(sink["q"])),
            _strip(sink["layers"], document["layers"]),
            *(_value(number(sink["norms"].get(name))) for name in norms),
            _value(percent(sink["payload"])),
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
        "layers over ε",
    ]
    caption = (
        f"{_KINDS}z: how far its log mass is from that of its neighbours; q: the false-discovery rate at which it would just "
        "be called an outlier. Norms: of its hidden state, key and value, as multiples of the median token’s. Payload: its share of what attention writes; a dump has "
        "far less than its mass."
    )
    return _table(
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
            _value(percent(one["first"])) if one["first"] is not None else "–",
            _value(percent(one["token"])) if one["token"] is not None else "–",
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
    return _table(
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
            _value(nats(one["effect"])),
            _value(nats(one["control"])) + f" <span class='hint'>× {int(one['controls'])}</span>",
            _forest(one["effect"], one["control"], scale),
            _value(number(one["effect"]["kl"])),
            _value(percent(one["effect"]["agreement"])),
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
    return _table("ablations", "What losing tokens costs", caption, names, rows, words=(0, 1, 4))


def restored(document: dict[str, Any]) -> str:
    """One row a budget: what pinning gives back."""
    if not document["restored"]:
        return ""
    rows = [
        [
            text(one["what"]),
            f"{int(one['budget']):,}",
            _value(nats(one["without"])),
            _value(nats(one["pinned"])),
            _value(percent(one["pinned"]["agreement"])),
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
    return "<h3>What pinning gives back</h3>" + _table(
        "restored",
        "What pinning gives back",
        "A bounded cache against the full one, nats per token.",
        names,
        rows,
        words=(0,),
    )


def curve(document: dict[str, Any]) -> str:
    """The ε curve's numbers, folded."""
    rows = [[_value(number(epsilon)), _value(percent(share))] for epsilon, share in document["curve"]]
    table = _table(
        "curve", "The ε curve", "Share of heads over each ε.", ["ε", "share of heads"], rows, words=()
    )
    return f"<details><summary>The numbers</summary>{table}</details>"


def listed(pairs: dict[str, Any]) -> str:
    """Names and values, in the order given."""
    inner = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in pairs.items()
    )
    return f"<dl>{inner}</dl>"


def bullets(sentences: list[str]) -> str:
    """A list of sentences."""
    return "<ul>" + "".join(f"<li>{text(one)}</li>" for one in sentences) + "</ul>"


def folded(name: str, card: dict[str, Any]) -> str:
    """JSON to look at, in ASCII: nothing in it can turn the text around."""
    return f"<details><summary>{text(name)}</summary><pre>{html.escape(json.dumps(card, indent=2))}</pre></details>"


def _table(
    name: str, title: str, caption: str, heads: list[str], rows: list[list[str]], words: tuple[int, ...]
) -> str:
    """A table in its own scrolling box; columns in `words` are words, all others numbers. Cells are HTML already."""
    kinds = ["" if column in words else " class='number'" for column in range(len(heads))]
    top = "".join(f"<th scope='col'{kind}>{head}</th>" for kind, head in zip(kinds, heads, strict=True))
    body = "".join(
        "<tr>"
        + f"<th scope='row'{kinds[0]}>{row[0]}</th>"
        + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds[1:], row[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f"<div class='scroll' role='region' tabindex='0' aria-label='{title}'><table aria-describedby='{name}-caption'>"
        f"<caption class='unseen'>{title}</caption>"
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
        f"<p class='caption' id='{name}-caption'>{caption}</p>"
    )


def _code(token: str) -> str:
    return f"<code><bdi>{html.escape(short(token))}</bdi></code>"


def _value(said: str) -> str:
    return f"<span class='unknown'>{said}</span>" if said == NOT_MEASURED else html.escape(said)


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
