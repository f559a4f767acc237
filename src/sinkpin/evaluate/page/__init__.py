"""A comparison as one HTML document that needs no network: `render`.

The body is page.html; page.css and the scripts beside it join those that every page has (`sinkpin.page`). Words come
from `words`, tables from `tables` and `probes`, what the scripts draw from `drawn`; without scripts words and tables are
all there. Keys that older files lack leave out what they would have said. Not here: reading files (`evaluate.documents`),
several runs (`evaluate.merge`, `evaluate.changes`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinkpin.evaluate.changes import changes
from sinkpin.evaluate.documents import Document
from sinkpin.evaluate.page import tables
from sinkpin.evaluate.page.advice import advice, code
from sinkpin.evaluate.page.drawn import drawn
from sinkpin.evaluate.page.probes import probes as probed
from sinkpin.evaluate.page.words import findings, headline
from sinkpin.page.document import written
from sinkpin.page.markup import bullets, copied, listed, prose, section, text
from sinkpin.page.words import number

SCRIPTS = ("arms.js", "bytes.js", "place.js", "copy.js")  # in the order in which they run

_HERE = Path(__file__).parent


def render(
    document: Document, probes: Sequence[Document] = (), *, earlier: Sequence[tuple[str, Document]] = ()
) -> str:
    """The page of `document`, which is `Comparison.to_json()`, and of probes of the same model. `earlier`: runs before
    it, oldest first, by what they are called."""
    found = headline(document)
    parts = {
        "headline": text(found),
        "findings": bullets(findings(document)),
        "facts": listed(_facts(document)),
        "advice": _advice(document, probes),
        "place": _place(document),
        "arms": tables.arms(document),
        "pairs": _if(document.get("pairs"), "against", "Arms against each other", tables.pairs),
        "factorial": _if(document.get("factorial"), "explained", "What explains the differences", tables.factorial),
        "probes": _if(list(probes), "probes", "What perplexity does not see", probed),
        "changed": "".join(_changed(place, *one, document) for place, one in enumerate(earlier)),
        "notes": _if(document["notes"], "notes", "Notes", bullets),
        "command": _command(document.get("command")),
        "made": listed({**document["versions"], **_settings(document)}),
    }  # fmt: skip
    return written(
        title=text(f"{found} · {document['model']} · sinkpin"),
        body=_HERE / "page.html",
        parts=parts,
        data=drawn(document),
        style=_HERE / "page.css",
        scripts=[_HERE / name for name in SCRIPTS],
    )


def _facts(document: Document) -> dict[str, str]:
    facts = {"Model": document["model"]}
    if document.get("text"):
        facts["Text"] = document["text"]
    facts["Scored"] = f"{document['scored_tokens']:,} of {document['tokens']:,} tokens"
    if blocks := document.get("blocks"):
        facts["Evidence"] = f"{blocks['count']:,} blocks of {blocks['size']:,} tokens"
    if document.get("margin") is not None:
        facts["Equivalent within"] = f"±{number(document['margin'])} nats a token"
    return facts


def _settings(document: Document) -> dict[str, Any]:
    fed = {
        "chunk": f"{document['chunk']:,}",
        "tokens": f"{document['tokens']:,}",
        "scored tokens": f"{document['scored_tokens']:,}",
    }
    if document.get("trained_length") is not None:
        fed["trained length"] = f"{document['trained_length']:,}"
    return fed


def _advice(document: Document, probes: Sequence[Document]) -> str:
    said = "".join(f"<li>{prose(one)}</li>" for one in advice(document, probes))
    line = code(document)
    return (f"<ol class='advice'>{said}</ol>" if said else "<p class='empty'>Nothing: this run answers what it asked.</p>") + (
        copied("build", "The line", line) if line else ""
    )  # fmt: skip


def _place(document: Document) -> str:
    blocks = document.get("blocks")
    if not blocks or not any(arm.get("delta_blocks") for arm in document["arms"]):
        return "<p class='empty'>This file does not hold the loss of each block.</p>"
    figures = _figure(
        "loss", "Loss", "nats a token above the full cache’s; a circle: where the arm departs for good"
    )
    if any(arm.get("kl_blocks") for arm in document["arms"]):
        figures += _figure("kl", "Divergence", "KL to the full cache’s predictions, nats")
    return "<ol class='lines'></ol>" + figures + "<p class='readout about'></p>"


def _figure(name: str, title: str, hint: str) -> str:
    return f"<figure id='{name}'><figcaption><h3>{title}</h3> <span class='hint'>{hint}</span></figcaption><svg role='img'></svg></figure>"


def _if(found: Any, name: str, title: str, make: Any) -> str:
    return section(name, title, make(found)) if found else ""


def _changed(place: int, name: str, before: Document, document: Document) -> str:
    return section(
        f"since-{place}",
        f"Since {text(name)}",
        tables.changed(changes(before, document), f"changed-{place}"),
    )


def _command(command: str | None) -> str:
    if command is None:
        return "<p class='empty'>This file states no command.</p>"
    return copied("command-line", "The command", command)
