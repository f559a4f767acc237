"""The page's tables: the arms, the arms against each other, what pins and policies explain, what changed between runs.

Cells pass `page.markup.text`. A column that no arm of the file has a number for is left out. Not here: what a table looks
like (`page.markup`), the probes (`probes`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from sinkpin.evaluate.documents import Document
from sinkpin.evaluate.page.words import record, signed, size, times
from sinkpin.evaluate.table import dropped_first
from sinkpin.page.markup import bullets, interval, scale, table, text, value
from sinkpin.page.words import number, percent

Arm = dict[str, Any]

# Columns that a file of an earlier version has nothing for, and their keys.
_MAY_LACK = {
    "KL [95 %]": "kl",
    "same top token": "top1_agreement",
    "departs at token": "departs",
    "p, Holm": "p",
    "detectable": "detectable",
}
_OF_FULL = ("KV held", "of full", "KV at most", "perplexity", "first 4 held")
_FOLLOWED: dict[str, Callable[[Any], str]] = {
    "delta_nll": signed,
    "verdict": str,
    "kl": number,
    "kv_bytes_steady": size,
}
_VERDICTS = {"better": "▼", "equivalent": "≈", "worse": "▲", "inconclusive": "?"}


def arms(document: Document) -> str:
    """One row an arm."""
    full, *others = document["arms"]
    dropped = {arm.name for arm in record(document).arms if dropped_first(arm)}
    columns: list[tuple[str, Callable[[Arm], str]]] = [
        ("verdict", lambda arm: verdict(arm.get("verdict"))),
        ("Δ nats a token [95 %]", lambda arm: nats(arm["delta_nll"], arm["ci95"])),
        ("× perplexity of full", lambda arm: text(times(arm["delta_nll"]).removesuffix(" times"))),
        ("KV held", lambda arm: text(size(arm["kv_bytes_steady"]))),
        ("of full", lambda arm: text(percent(arm["kv_bytes_steady"] / full["kv_bytes_steady"]))),
        ("KL [95 %]", _divergence),
        ("same top token", lambda arm: value(percent(arm.get("top1_agreement")))),
        ("departs at token", lambda arm: _whole(arm.get("departs"))),
        ("pins", lambda arm: _whole(_pinned(arm))),
        ("first 4 held", lambda arm: text(percent(arm["sink_kept"]) + " !" * (arm["name"] in dropped))),
        ("budget, tokens", lambda arm: _whole(arm["budget_tokens"])),
        ("KV at most", lambda arm: text(size(arm["kv_bytes_peak"]))),
        ("perplexity", lambda arm: text(number(arm["ppl"]))),
        ("p, Holm", lambda arm: value(number(arm.get("p")))),
        ("detectable", lambda arm: value(number(arm.get("detectable")))),
    ]
    columns = [(name, cell) for name, cell in columns if _held(name, others)]
    of_full = {"verdict": "reference", "budget, tokens": "all"}
    rows = [
        [_name(index, arm)]
        + [
            of_full.get(name, "–") if arm is full and name not in _OF_FULL else cell(arm)
            for name, cell in columns
        ]
        for index, arm in enumerate(document["arms"])
    ]
    caption = (
        "Δ: mean loss less that of the full cache on the same tokens; below 0 is better. ▲ worse, ▼ better, ≈ equivalent, "
        "? inconclusive. KV held: at the end, everything the cache owned. First 4 held: of the text’s first four tokens, over "
        "layers and heads; !: they were not pinned, and dropped. KL: how far its predictions are from the full cache’s, in nats, whatever the text says next. Departs: from "
        "there on it stays away from the full cache. Detectable: the least effect that could have been seen, in nats. –: none."
    )
    return table("arms", "The arms", caption, ["arm", *(name for name, _ in columns)], rows, words=(0, 1))


def pairs(found: Sequence[dict[str, Any]]) -> str:
    """One row for each two arms that were compared with each other."""
    ends = scale([(pair["delta_nll"], pair.get("ci95")) for pair in found])
    rows = [
        [
            text(pair["arm"]),
            text(pair["against"]),
            verdict(pair.get("verdict")),
            nats(pair["delta_nll"], pair.get("ci95")),
            interval(pair["delta_nll"], pair.get("ci95"), ends),
            value(number(pair.get("p"))),
            value(number(pair.get("detectable"))),
        ]
        for pair in found
    ]
    caption = (
        "The first arm’s loss less the second’s, nats a token, on the same tokens: below 0, the first is better. In the picture, "
        f"from {number(ends[0])} to {number(ends[1])} nats; the upright line is 0."
    )
    names = [
        "arm",
        "against",
        "verdict",
        "Δ nats a token [95 %]",
        "from 0",
        "p, Holm",
        "detectable",
    ]
    return table("pairs", "Arms against each other", caption, names, rows, words=(0, 1, 2, 4))


def factorial(found: dict[str, Any]) -> str:
    """How much of the differences each factor explains."""
    rows = [
        [
            text(one["effect"]),
            value(percent(one["share"])),
            _between(one.get("ci95"), percent),
            interval(one["share"], one.get("ci95"), (0.0, 1.0)),
        ]
        for one in found["shares"]
    ]
    levels = [
        f"{factor}: {', '.join(str(level) for level in there)}"
        for factor, there in found.get("factors", {}).items()
    ]
    notes = found.get("notes") or []
    caption = "Share of the variance between arms that each factor, and each two together, explain; from 0 to 100 % in the picture."
    heads = ["effect", "share", "95 %", "from 0 to 100 %"]
    return bullets([*levels, *([notes] if isinstance(notes, str) else notes)]) + table(
        "factorial", "What pins, policy and budget explain", caption, heads, rows, words=(0, 3)
    )


def changed(found: dict[str, Any], name: str) -> str:
    """One row an arm: then and now."""
    rows = [
        [
            text(arm["name"]),
            {None: "not judged", True: "<b>moved</b>", False: "as before"}[arm["moved"]],
            *(_then(arm[key], say) for key, say in _FOLLOWED.items()),
        ]
        for arm in found["arms"]
    ]
    lines = [*found["differs"]]
    for key, said in (("gone", "no longer run"), ("new", "new")):
        if found[key]:
            lines.append(f"{said}: {', '.join(found[key])}")
    caption = (
        "Moved: another verdict, or 95 % intervals of the loss that do not overlap. Two runs are no pair: a small change can "
        "hide where they overlap."
    )
    heads = ["arm", "since then", "Δ nats a token", "verdict", "KL", "KV held"]
    return (
        bullets(lines) if lines else "<p class='hint'>Made with the same settings and versions.</p>"
    ) + table(name, "What changed", caption, heads, rows, words=(0, 1, 3))


def verdict(said: str | None) -> str:
    """A verdict with its mark."""
    if said is None:
        return "<span class='unknown'>none</span>"
    return f"<span class='verdict {text(said)}'>{_VERDICTS.get(said, '')} {text(said)}</span>"


def nats(delta: float, ci95: Sequence[float] | None) -> str:
    """A difference with its interval."""
    return text(signed(delta)) + (f" {_between(ci95, signed)}" if ci95 is not None else "")


def _name(index: int, arm: Arm) -> str:
    seeds = (
        f" <span class='hint'>mean of {int(arm['seeds'])} seeds</span>" if (arm.get("seeds") or 1) > 1 else ""
    )
    return f"<button type='button' data-arm='{index}'>{text(arm['name'])}</button>{seeds}"


def _divergence(arm: Arm) -> str:
    said = value(number(arm.get("kl")))
    return said + (f" {_between(arm['kl_ci95'], number)}" if arm.get("kl_ci95") else "")


def _between(ci95: Sequence[float] | None, say: Callable[[float], str]) -> str:
    return "–" if ci95 is None else f"[{text(say(ci95[0]))}, {text(say(ci95[1]))}]"


def _then(values: Sequence[Any], say: Callable[[Any], str]) -> str:
    old, new = ("–" if one is None else text(say(one)) for one in values)
    return new if old == new else f"{old} → {new}"


def _pinned(arm: Arm) -> int:
    spans = [range(start, stop) for start, stop in arm.get("pins") or []]
    return len(set(range(arm["sinks"])).union(*spans))


def _held(column: str, lines: Sequence[Arm]) -> bool:
    key = _MAY_LACK.get(column)
    return key is None or any(arm.get(key) is not None for arm in lines)


def _whole(count: int | None) -> str:
    return "–" if count is None else f"{int(count):,}"
