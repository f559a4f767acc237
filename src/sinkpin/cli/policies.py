"""`sinkpin policies`: every policy that can be named, what it keeps, how it chooses, what it reads, its options; or all
that one of them says of itself.

Read from the policies themselves, those of other distributions (entry-point group `sinkpin.policies`) included; one
that cannot be loaded is listed with the reason. Not here: the words, which are each policy's docstrings.
"""

import argparse
import inspect
import json
import os
import re
import sys
import textwrap
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from sinkpin.errors import PolicyError
from sinkpin.policies import names, parse, resolve

if TYPE_CHECKING:
    from sinkpin.policies.base import Policy

DESCRIPTION = """\
List every policy: what it keeps beside the pins, its kind, the position of its kept keys (frame), whether layers and KV
heads keep the same entries, what it reads, and its options with their defaults. With a name: all that this policy says
of itself, its formula, its paper and where it differs from it included."""

EXAMPLES = """  sinkpin policies
  sinkpin policies snapkv
      its formula, its paper, what is different here, and what its options mean
  sinkpin policies adakv:base=snapkv,base.kernel=5
      options are written behind the name; some change what a policy reads and when it chooses
  sinkpin policies --json
  sinkpin compare --policy snapkv:kernel=5,pool=avg --prompt 2048 --tokens 2560 --budget 10%
"""

_PHASES = {"position": "prefill, decode", "scored": "prefill, decode", "prompt": "prompt end"}

_WIDEST = 90

_NARROW = 80  # columns below which `frame` and `set per` are left to the page of one policy

_WORDS = (
    "position: keeps the pins and the most recent entries, so how the text is fed changes nothing.",
    "scored: chooses after every forward, so the tokens a forward (the chunk) are part of the result.",
    "prompt: holds the prompt, chooses once when it ends, then drops the oldest of what is newer.",
    "frame: the position of a kept key, its rank in the cache (slots) or its index in the text (original).",
    "reads: mass, the attention an entry received so far; recent, that of the last queries.",
    "*: the budget is the mean over layers or KV heads, which get unequal parts.",
    "`sinkpin policies NAME` says all that a policy says of itself: formula, paper, options.",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "policy",
        metavar="NAME[:OPTION=VALUE,...]",
        nargs="?",
        help="explain this one (default: list all)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON document on standard output",
    )


def run(args: argparse.Namespace) -> int:
    if args.policy is None:
        described = [describe(name) for name in names()]
    else:
        resolve(args.policy)  # for its complaints, which a list would show and go on
        described = [describe(args.policy) | {"doc": _docs(resolve(args.policy))}]
    if args.json:
        print(json.dumps({"schema": 1, "policies": described}, allow_nan=False))
    else:
        print(_as_table(described) if args.policy is None else _as_page(described[0], args.policy))
    return 0


def describe(written: str) -> dict[str, Any]:
    """One policy as JSON-able facts; only `name` and `error` where it cannot be loaded."""
    try:
        name, _ = parse(written)
        policy = resolve(written)
    except PolicyError as error:
        return {"name": written, "error": " ".join(str(error).split())}
    options: list[Field[Any]] = (
        [field for field in fields(policy) if field.init] if is_dataclass(policy) else []
    )
    from sinkpin.policies.base import Policy

    per_layer = type(policy).layer_budget is not Policy.layer_budget and not policy.across_heads
    return {
        "name": name,
        "keeps": _keeps(policy),
        "kind": policy.kind,
        "phase": _PHASES[policy.kind] if policy.bounded else "never",
        "frame": policy.frame,
        "needs": sorted(policy.needs),
        "per_head": policy.per_head,
        "budget_varies": "by layer" if per_layer else "by head" if policy.across_heads else "no",
        "options": {
            field.name: _plain(getattr(policy, field.name) if field.default is MISSING else field.default)
            for field in options
        },
        "paper": policy.paper,
    }


def _plain(default: object) -> object:
    return default if isinstance(default, str | int | float | bool | None) else str(default)


def _class_doc(policy: "Policy") -> str:
    """The class's own docstring: not its parent's, and not the signature that `dataclass` puts in its place."""
    doc = vars(type(policy)).get("__doc__") or ""
    return "" if doc.startswith(f"{type(policy).__name__}(") else inspect.cleandoc(doc)


def _module_doc(policy: "Policy") -> str:
    return inspect.cleandoc(getattr(inspect.getmodule(type(policy)), "__doc__", None) or "")


def _keeps(policy: "Policy") -> str:
    """What the class's docstring begins with, up to a colon or full stop; its module's, where the class begins with its
    options."""
    own = _class_doc(policy)
    text = " ".join((_module_doc(policy) if not own or re.match(r"`\w+`: ", own) else own).split())
    return re.split(r"[:.](?: |$)", text, maxsplit=1)[0]


def _docs(policy: "Policy") -> str:
    return "\n\n".join(doc for doc in (_module_doc(policy), _class_doc(policy)) if doc)


def _width() -> int:
    """Columns to fill: the terminal's, up to what reads well; in a pipe as many as `COLUMNS` says."""
    from rich.console import Console

    if os.environ.get("COLUMNS", "").isdecimal():
        return Console().width
    return min(Console().width, _WIDEST) if sys.stdout.isatty() else _WIDEST


def _as_table(described: list[dict[str, Any]]) -> str:
    import io

    from rich import box
    from rich.console import Console
    from rich.table import Table

    width = _width()
    cells = {
        "policy": lambda facts: facts["name"],
        "keeps beside the pins": lambda facts: facts["keeps"],
        "kind": lambda facts: facts["kind"],
        "frame": lambda facts: facts["frame"],
        "set per": _set_per,
        "reads": lambda facts: "\n".join(facts["needs"]).replace("_", " ") or "-",
        "options": lambda facts: (
            "\n".join(f"{key}={value}" for key, value in facts["options"].items()) or "-"
        ),
    }
    if width < _NARROW:
        del cells["frame"], cells["set per"]
    rows = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for header in cells:
        rows.add_column(header, overflow="fold", no_wrap=header not in ("keeps beside the pins", "reads"))
    for facts in described:
        if "error" not in facts:
            rows.add_row(*(cell(facts) for cell in cells.values()))
    broken = [f"not listed: {facts['error']}" for facts in described if "error" in facts]
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, markup=False, emoji=False, highlight=False)
    console.print(rows)
    lines = [line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")]
    words = [textwrap.fill(words, width, subsequent_indent="  ") for words in (*_WORDS, *broken)]
    return "\n".join([*lines, "", *words])


def _as_page(facts: dict[str, Any], written: str) -> str:
    """What a policy's docstrings say, and the facts below."""
    width = _width()
    given = parse(written)[1]
    options = [
        f"{key}={value}" + (f", here {given[key]}" if key in given else "")
        for key, value in facts["options"].items()
    ]
    lines = {
        "kind": [f"{facts['kind']} (chooses: {facts['phase']})"],
        "frame": [facts["frame"]],
        "set per": [_set_per(facts).replace(" *", f", the budget varies {facts['budget_varies']}")],
        "reads": [", ".join(facts["needs"]).replace("_", " ") or "-"],
        "paper": [facts["paper"] or "-"],
        "options": options or ["-"],
    }
    told = [
        f"{key if not row else '':9}{text}" for key, rows in lines.items() for row, text in enumerate(rows)
    ]
    return "\n".join([f"{written}\n", *(_wrapped(part, width) for part in facts["doc"].split("\n\n")), *told])


def _wrapped(paragraph: str, width: int) -> str:
    """A paragraph within `width` columns and an empty line; a formula, which is indented, stays as it is."""
    formula = any(line.startswith(" ") for line in paragraph.split("\n"))
    return (paragraph if formula else textwrap.fill(" ".join(paragraph.split()), width)) + "\n"


def _set_per(facts: dict[str, Any]) -> str:
    """Which parts of a model keep entries of their own."""
    if facts["kind"] == "position":
        return "model"
    return ("KV head" if facts["per_head"] else "layer") + ("" if facts["budget_varies"] == "no" else " *")
