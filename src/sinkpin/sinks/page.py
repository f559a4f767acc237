"""A detection as one HTML document that needs no network: `render`.

The body is page.html; page.css and the scripts beside it join those that every page has (`sinkpin.page`). The text of
tokens is a stranger's: in the markup it is escaped (`page.markup.text`), in the data no `<` is left, and the script only
ever writes text nodes. Not here: tables (`page_tables`), words (`page_words`), and the pictures, which the scripts draw
from `_data`; without scripts the words and tables are all there.
"""

from pathlib import Path
from typing import Any

from sinkpin.page.document import written
from sinkpin.page.markup import bullets, folded, listed, section, text
from sinkpin.page.words import short
from sinkpin.sinks import page_tables as tables
from sinkpin.sinks.page_words import findings, headline

SCRIPTS = ("page.js", "page_heat.js", "page_tokens.js", "page_charts.js")  # in the order in which they run
CHUNK = 128  # tokens drawn, or left for later, together

_HERE = Path(__file__).parent
_LINE = 200  # signs of the prompt that fit under the headline
_SERIES = ("ids", "mass", "most", "heads_over", "z", "entropy", "margin", "varentropy")


def render(document: dict[str, Any]) -> str:
    """The page of `document`, which is `Report.to_json()`."""
    found = headline(document)
    parts = {
        "headline": text(found),
        "findings": bullets(findings(document)),
        "facts": listed(_facts(document)),
        "sinks": tables.sinks(document),
        "heat": _heat(document),
        "curve": tables.curve(document),
        "learned": "" if document["learned"] is None else _figure("learned", "Learned sinks", _LEARNED),
        "chunk": str(CHUNK),
        "experiments": tables.experiments(document),
        "ablations": tables.ablations(document),
        "restored": tables.restored(document),
        "notes": section("notes", "Notes", bullets(document["notes"])) if document["notes"] else "",
        "card": _card(document["card"]),
        "made": listed({**document["versions"], **document["settings"]}),
    }
    return written(
        title=text(f"{found} · {document['model']} · sinkpin"),
        body=_HERE / "page.html",
        parts=parts,
        data=_data(document),
        style=_HERE / "page.css",
        scripts=[_HERE / name for name in SCRIPTS],
    )


_LEARNED = "The share of each softmax that goes to the head’s own learned sink, which is no token."
_SINK_MASS = "Mass of all sinks together, for each layer and head. <span class='screen'>Arrow keys move from cell to cell.</span>"


def _facts(document: dict[str, Any]) -> dict[str, str]:
    layers, heads, kv_heads = len(document["layers"]), document["heads"], document["kv_heads"]
    grouped = f" ({kv_heads} of keys and values)" if kv_heads != heads else ""
    prompt = document["prompt"]
    return {
        "Model": document["model"],
        "Prompt": prompt[:_LINE] + "…" if len(prompt) > _LINE else prompt,
        "Tokens": f"{len(document['tokens']['ids']):,}",
        "Attention": f"{layers} layers × {heads} heads{grouped}",
    }


def _heat(document: dict[str, Any]) -> str:
    if not any(sink["outlier"] for sink in document["sinks"]):
        return "<p class='empty'>No sinks, so there is no mass of theirs to draw. The curve shows how near any head comes.</p>"
    return _figure("heat", "Layers × heads", _SINK_MASS)


def _figure(name: str, title: str, hint: str) -> str:
    return (
        f"<figure id='{name}'><figcaption><h3>{title}</h3><p class='hint'>{hint}</p></figcaption>"
        f"<ol class='legend'></ol><div class='scroll'><div role='grid' aria-label='{title}'></div></div>"
        "<p class='readout' aria-live='polite'></p></figure>"
    )


def _card(card: dict[str, Any] | None) -> str:
    if card is None:
        return ""
    return section("card", "Sink card", folded("The card that other tools read, as JSON", card))


def _data(document: dict[str, Any]) -> dict[str, Any]:
    """What the scripts draw. Tokens go in as they are shown, so that making them visible is written once."""
    tokens = document["tokens"]
    return {
        "chunk": CHUNK,
        "layers": document["layers"],
        "heads": document["heads"],
        "cut": document["cut"],
        "epsilon": document["settings"].get("epsilon"),
        "sinks": [{name: sink[name] for name in ("index", "kind", "outlier")} for sink in document["sinks"]],
        "heat": document["sink_heat"],
        "learned": document["learned"],
        "curve": document["curve"],
        "tokens": {"shown": [short(text, 200) for text in tokens["texts"]]}
        | {name: tokens[name] for name in _SERIES},
    }
