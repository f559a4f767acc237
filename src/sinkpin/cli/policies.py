"""`sinkpin policies`: every policy that can be named, how it chooses, what it reads, and its options.

Read from the policies themselves, those of other distributions (entry-point group `sinkpin.policies`) included; one
that cannot be loaded is listed with the reason. Not here: what a policy computes; its file says that first.
"""

import argparse
import json
import sys
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from sinkpin.errors import PolicyError
from sinkpin.policies import names, resolve

DESCRIPTION = """\
List every policy: its kind, when it chooses, the position of its kept keys (frame), what it reads, whether layers and
KV heads keep the same entries, its paper, and its options with their defaults."""

EXAMPLES = """  sinkpin policies
  sinkpin policies --json
  sinkpin compare --policy snapkv:kernel=5,pool=avg --prompt 2048 --tokens 2560 --budget 10%
      options are written behind the name
"""

_PHASES = {"position": "prefill, decode", "scored": "prefill, decode", "prompt": "prompt end"}

_WIDEST = 90

_WORDS = (
    "position: keeps the pins and the most recent entries, so how the text is fed changes nothing.",
    "scored: chooses after every forward, so the tokens a forward (the chunk) are part of the result.",
    "prompt: holds the prompt, chooses once when it ends, then drops the oldest of what is newer.",
    "frame: the position of a kept key, its rank in the cache (slots) or its index in the text (original).",
    "reads: mass, the attention an entry received so far; recent, that of the last queries.",
    "*: the budget is the mean over layers or KV heads, which get unequal parts.",
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON document on standard output",
    )


def run(args: argparse.Namespace) -> int:
    described = [describe(name) for name in names()]
    if args.json:
        print(json.dumps({"schema": 1, "policies": described}, allow_nan=False))
    else:
        print(_as_text(described))
    return 0


def describe(name: str) -> dict[str, Any]:
    """One policy as JSON-able facts; only `name` and `error` where it cannot be loaded."""
    try:
        policy = resolve(name)
    except (PolicyError, ImportError, AttributeError, TypeError) as error:
        return {"name": name, "error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    options: list[Field[Any]] = (
        [field for field in fields(policy) if field.init] if is_dataclass(policy) else []
    )
    from sinkpin.policies.base import Policy

    per_layer = type(policy).layer_budget is not Policy.layer_budget and not policy.across_heads
    return {
        "name": name,
        "kind": policy.kind,
        "phase": _PHASES[policy.kind] if policy.bounded else "never",
        "frame": policy.frame,
        "needs": sorted(policy.needs),
        "per_head": policy.per_head,
        "budget_varies": "by layer" if per_layer else "by head" if policy.across_heads else "no",
        "options": {
            field.name: None if field.default is MISSING else _plain(field.default) for field in options
        },
        "paper": policy.paper,
    }


def _plain(default: object) -> object:
    return default if isinstance(default, str | int | float | bool | None) else str(default)


def _as_text(described: list[dict[str, Any]]) -> str:
    import io
    import textwrap

    from rich import box
    from rich.console import Console
    from rich.table import Table

    width = min(Console().width, _WIDEST) if sys.stdout.isatty() else _WIDEST
    rows = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for header in ("policy", "kind and phase", "frame", "set per", "reads", "options", "paper"):
        rows.add_column(header, no_wrap=header != "reads")
    broken = []
    for facts in described:
        if "error" in facts:
            broken.append(f"{facts['name']}: cannot be loaded ({facts['error']})")
            continue
        rows.add_row(
            facts["name"],
            f"{facts['kind']}\n{facts['phase']}",
            facts["frame"],
            _set_per(facts),
            "\n".join(facts["needs"]).replace("_", " ") or "-",
            "\n".join(f"{key}={value}" for key, value in facts["options"].items()) or "-",
            facts["paper"].replace(" ", "\n") or "-",
        )
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(rows)
    lines = [line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")]
    return "\n".join(
        [*lines, "", *(textwrap.fill(words, width, subsequent_indent="  ") for words in _WORDS), *broken]
    )


def _set_per(facts: dict[str, Any]) -> str:
    """Which parts of a model keep entries of their own."""
    if facts["kind"] == "position":
        return "model"
    return ("KV head" if facts["per_head"] else "layer") + ("" if facts["budget_varies"] == "no" else " *")
