"""Runs every peer whose environment exists, one at a time, and writes one JSON line for each to benchmarks/results/.

    python benchmarks/peers/run.py                      what is built, at full size: an hour or two on two cores
    python benchmarks/peers/run.py --tiny --rounds 1    shows that everything runs; the numbers mean nothing
    python benchmarks/peers/run.py --peers sinkpin-streaming,openvino-genai --rounds 7 --kept 2048

First each peer's gate and everything but the timing, once. Then the timing in rounds, every peer once a round, each round
beginning with another one; what is compared is compared within a round, and the median taken over rounds. Nothing is
timed where a gate fails. Run with a Python that has sinkpin in it; the machine should have nothing else to do.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from measure import FIELDS, GATE_NATS
from sizes import Sizes, add_arguments
from variants import REFERENCE, VARIANTS, Variant

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="of timing (5)")
    parser.add_argument(
        "--peers", help=f"comma-separated, of {', '.join(v.name for v in VARIANTS)} (what is built)"
    )
    parser.add_argument("--out", type=Path, help="the file to write (benchmarks/results/peers-DATE.jsonl)")
    add_arguments(parser)
    arguments = parser.parse_args()
    names = arguments.peers.split(",") if arguments.peers else [variant.name for variant in VARIANTS]
    if unknown := sorted(set(names) - {variant.name for variant in VARIANTS}):
        parser.error(f"--peers {unknown[0]}: there is no such peer")
    chosen = []
    for variant in (variant for variant in VARIANTS if variant.name in names):
        if variant.python() is None:
            say(f"{variant.name}: left out, no environment (setup.sh {variant.environment})")
        else:
            chosen.append(variant)
    passed = passed_on(arguments)
    rows: dict[str, dict[str, Any]] = {}
    for variant in chosen:
        rows[variant.name] = attempt(
            variant, ["--only", variant.once, *sized(variant, passed, arguments.tiny)]
        )
    check_weights(rows)
    ready = [variant for variant in chosen if "failed" not in rows[variant.name]]
    rounds: list[dict[str, dict[str, Any]]] = []
    for number in range(arguments.rounds):
        if number:  # who could not be timed in the first round never can
            ready = [variant for variant in ready if rounds[0][variant.name].get("tokens_per_s")]
        shift = number % max(1, len(ready))
        rounds.append({})
        for variant in ready[shift:] + ready[:shift]:
            options = ["--only", "decode", "--no-gate", *sized(variant, passed, arguments.tiny)]
            rounds[-1][variant.name] = attempt(variant, options)
    for name, row in rows.items():
        row |= gathered(name, rounds)
        if rounds and name in rounds[0]:
            row["reasons"] = {**row.get("reasons", {}), **rounds[0][name].get("reasons", {})}
    out = arguments.out or HERE.parent / "results" / f"peers-{datetime.now(UTC):%Y%m%d-%H%M}.jsonl"
    write(out, rows)
    show(rows)
    say(f"written: {out}")
    if failed := [name for name, row in rows.items() if "failed" in row]:
        raise SystemExit(f"no numbers for {', '.join(failed)}: the reasons are in their rows")


def passed_on(arguments: argparse.Namespace) -> list[str]:
    asked = ["--tiny"] if arguments.tiny else []
    for field in fields(Sizes):
        if (value := getattr(arguments, field.name)) is not None:
            asked += [f"--{field.name}", str(value)]
    return asked


def sized(variant: Variant, passed: list[str], tiny: bool) -> list[str]:
    """The variant's own smaller sizes, then what was asked for: the later wins."""
    return [*(() if tiny else variant.slow), *passed]


def attempt(variant: Variant, options: list[str]) -> dict[str, Any]:
    """The row that a script prints, or one that says why there is none."""
    say(f"{variant.name}: {' '.join(options)}")
    command = [str(variant.python()), str(HERE / variant.script), *variant.options, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        say(f"{variant.name}: failed ({done.returncode}): {last}")
        return {"schema": 1, "peer": variant.name, "failed": last, "exit_status": done.returncode}
    return json.loads(lines[-1])


def check_weights(rows: dict[str, dict[str, Any]]) -> None:
    """The dense losses of all float32 peers on the same short text agree, or they do not run the same weights."""
    losses = {
        name: row["gate_nll_dense"]
        for name, row in rows.items()
        if row.get("dtype") == "float32" and row.get("gate_nll_dense") is not None
    }
    if losses and max(losses.values()) - min(losses.values()) > GATE_NATS:
        words = ", ".join(f"{name} {loss:.5f}" for name, loss in losses.items())
        raise SystemExit(
            f"peers at float32 differ in the loss of one text by more than {GATE_NATS} nats: {words}"
        )


def gathered(name: str, rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over rounds of one peer, and its pairing with the reference of the same round."""
    mine = [each[name] for each in rounds if name in each]
    failed = [row for row in mine if "failed" in row]
    if failed:
        return {"failed": failed[0]["failed"]}
    timed = [row for row in mine if row.get("decode_ms_evicting") is not None]
    if not timed:
        return {field: None for field in FIELDS["decode"]}
    found: dict[str, Any] = {
        field: median(row[field] for row in timed)
        for field in ("decode_ms_dense", "decode_ms_evicting", "decode_ratio", "tokens_per_s", "decode_held")
    }
    found["rounds"] = [[row["decode_ms_dense"], row["decode_ms_evicting"]] for row in timed]
    pairs = [
        each[name]["tokens_per_s"] / each[REFERENCE]["tokens_per_s"]
        for each in rounds
        if each.get(name, {}).get("tokens_per_s") and each.get(REFERENCE, {}).get("tokens_per_s")
    ]
    found["tokens_per_s_over_reference"] = median(pairs) if pairs else None
    found["reference"] = REFERENCE
    return found


def write(path: Path, rows: dict[str, dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="utf-8")
    os.replace(unfinished, path)


def show(rows: dict[str, dict[str, Any]]) -> None:
    columns = {
        "dense ms": "decode_ms_dense",
        "evict ms": "decode_ms_evicting",
        "x dense": "decode_ratio",
        "tok/s": "tokens_per_s",
        "x sinkpin": "tokens_per_s_over_reference",
        "bytes": "bytes_kept",
        "sinks": "sinks_held_after_steps",
        "ppl": "perplexity",
        "after cut": "continuation_perplexity_evicting",
        "turn 2": "second_turn_bounded",
    }
    width = max((len(name) for name in rows), default=4)
    print(" " * width, *(f"{title:>10}" for title in columns))
    for name, row in rows.items():
        print(f"{name:<{width}}", *(f"{_cell(row.get(field)):>10}" for field in columns.values()))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "bounded" if value else "grows"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
