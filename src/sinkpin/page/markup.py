"""Tables, lists and sections as HTML, for every page.

Whatever comes from a document passes `text` and nothing else: it is the border between a stranger's words and the page.
Not here: numbers in words (`words`), and what is drawn by script.
"""

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from sinkpin.page.words import NOT_MEASURED, measured, plain

Ends = tuple[float, float]


def text(words: object) -> str:
    """`words` for the page: nothing in them is markup, and nothing is hidden."""
    return html.escape(plain(str(words)))


def value(said: str) -> str:
    """A number in words; what was not measured looks so."""
    return f"<span class='unknown'>{said}</span>" if said == NOT_MEASURED else html.escape(said)


def listed(pairs: Mapping[str, object]) -> str:
    """Names and values, in the order given."""
    inner = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in pairs.items()
    )
    return f"<dl>{inner}</dl>"


def prose(words: str) -> str:
    """A sentence, in which `…` is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", text(words))


def bullets(sentences: Iterable[str]) -> str:
    """A list of sentences."""
    return "<ul>" + "".join(f"<li>{text(one)}</li>" for one in sentences) + "</ul>"


def folded(name: str, card: object) -> str:
    """JSON to look at, in ASCII: nothing in it can turn the text around."""
    return f"<details><summary>{text(name)}</summary><pre>{html.escape(json.dumps(card, indent=2))}</pre></details>"


def table(
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


def section(name: str, title: str, inner: str) -> str:
    """A part of the page under a heading, which `#name` leads to."""
    return f"<section class='{name}' aria-labelledby='{name}'><h2 id='{name}'>{title}</h2>{inner}</section>"


def copied(name: str, title: str, code: str) -> str:
    """Code to take along: a button copies it (copy.js), and it can be selected where there is no script."""
    lines = "\n".join(text(line) for line in code.split("\n"))
    return (
        f"<div class='copied'><pre tabindex='0' aria-label='{title}'><code id='{name}'>{lines}</code></pre>"
        f"<p class='screen'><button type='button' data-copy='{name}'>Copy</button> <span role='status'></span></p></div>"
    )


def scale(values: Iterable[tuple[float, Sequence[float] | None]]) -> Ends:
    """The least and the largest of values and their intervals; zero is always among them."""
    ends = [0.0, *(x for one, ci95 in values for x in (one, *(ci95 or ())) if measured(x))]
    return min(ends), max(*ends, min(ends) + 1e-9)


def interval(middle: float, ci95: Sequence[float] | None, ends: Ends, *, line: float = 0.0) -> str:
    """A value and its interval as a small picture from `ends[0]` to `ends[1]`; an upright line stands at `line`."""
    inner = [f"<path class='zero' d='M{_along(line, ends)} 1v14'/>"]
    if measured(middle):
        if ci95 is not None and all(measured(x) for x in ci95):
            inner.append(f"<path class='reach' d='M{_along(ci95[0], ends)} 8H{_along(ci95[1], ends)}'/>")
        inner.append(f"<circle class='dot' cx='{_along(middle, ends)}' cy='8' r='3.5'/>")
    return f"<svg class='forest one' viewBox='0 0 160 16' aria-hidden='true'>{''.join(inner)}</svg>"


def _along(x: float, ends: Ends) -> float:
    low, high = ends
    return round(6 + 148 * (min(max(x, low), high) - low) / (high - low), 1)
