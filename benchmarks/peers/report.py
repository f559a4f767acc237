"""From a peer to its JSON line: the command line all peer scripts share, and the row they print.

The row is the last line of stdout; everything else goes to stderr. What a peer cannot do is null in the row, with the
reason under `reasons`; anything else that goes wrong ends the script. The gate runs first: a peer whose bounded and
unbounded runs disagree below the budget prints no number.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measure
import sizes
from streams import Peer, Unavailable

DATA = Path(__file__).resolve().parent / ".data"


def main(
    make: Callable[[argparse.Namespace, sizes.Sizes], Peer],
    describe: str,
    options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    parser = argparse.ArgumentParser(description=describe)
    sizes.add_arguments(parser)
    parser.add_argument("--only", help=f"of {', '.join(measure.MEASUREMENTS)}, comma-separated (all)")
    parser.add_argument("--no-gate", action="store_true", help="skip the gate: for run.py, which has run it")
    if options:
        options(parser)
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else list(measure.MEASUREMENTS)
    if unknown := [name for name in wanted if name not in measure.MEASUREMENTS]:
        parser.error(f"--only {unknown[0]}: there are {', '.join(measure.MEASUREMENTS)}")
    asked = sizes.read(arguments)
    ids = token_ids()
    stdout = sys.stdout
    sys.stdout = sys.stderr  # engines print; the row stands alone
    peer = make(arguments, asked)
    row = header(peer, asked)
    if not arguments.no_gate:
        take(row, peer, ids, asked, "weights", measure.weights)
        take(row, peer, ids, asked, "driver", measure.driver)
    for name in wanted:
        take(row, peer, ids, asked, name, measure.MEASUREMENTS[name])
    row["settings"] |= peer.settings  # what was settled on the way
    row["notes"] = peer.notes
    sys.stdout = stdout
    print(json.dumps(row), flush=True)


def take(row: dict[str, Any], peer: Peer, ids: list[int], asked: sizes.Sizes, name: str, how: Any) -> None:
    """One measurement into the row, or null and the reason."""
    began = time.monotonic()
    try:
        row |= how(peer, ids, asked)
    except Unavailable as reason:
        for field in measure.FIELDS.get(name, (name,)):
            row[field] = None
            row["reasons"][field] = str(reason)
    print(f"{peer.name}: {name}, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


def header(peer: Peer, asked: sizes.Sizes) -> dict[str, Any]:
    return {
        "schema": 1,
        "peer": peer.name,
        "versions": {"python": platform.python_version(), **peer.versions()},
        "model": json.loads((DATA / "ids.json").read_text())["model"],
        "text": json.loads((DATA / "ids.json").read_text())["text"],
        "dtype": getattr(peer, "dtype", asked.dtype),
        "threads": asked.threads,
        "hardware": {"cpu": _cpu(), "cores": os.cpu_count(), "memory_bytes": _memory()},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": {**vars(asked), "sinks": measure.SINKS, **peer.settings},
        "reasons": {},
    }


def versions(*packages: str) -> dict[str, str]:
    return {name: version(name) for name in packages}


def token_ids() -> list[int]:
    path = DATA / "ids.json"
    if not path.exists():
        raise SystemExit(
            f"no {path.name}: run setup.sh of any peer, or prepare.py with a Python that has sinkpin"
        )
    return json.loads(path.read_text())["ids"]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
