"""How much is measured: the options that all peer scripts share, and a preset so small that it only shows they run."""

import argparse
import os
from dataclasses import dataclass, fields, replace

HELP = {
    "kept": "entries at which a decode step is timed",
    "block": "steps between two evictions, where a peer evicts in bulk, and in a block that is timed",
    "blocks": "blocks timed, of the dense and of the evicting run each",
    "budget": "entries held in everything but the timing, sinks included",
    "tokens": "tokens of the text for the perplexity",
    "prompt": "tokens of the long prompt",
    "steps": "decode steps after which the sinks are looked for",
    "turn": "tokens of a turn",
    "answer": "decode steps of an answer",
    "threads": "of the engine",
    "dtype": "of weights, arithmetic and cache: float32 or bfloat16",
}


@dataclass(frozen=True)
class Sizes:
    kept: int = 1024
    block: int = 8
    blocks: int = 24
    budget: int = 256
    tokens: int = 4096
    prompt: int = 4096
    steps: int = 2000
    turn: int = 512
    answer: int = 64
    threads: int = os.cpu_count() or 1
    dtype: str = "float32"


TINY = {
    "kept": 128,
    "block": 2,
    "blocks": 2,
    "budget": 96,
    "tokens": 104,
    "prompt": 160,
    "steps": 10,
    "turn": 112,
    "answer": 8,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tiny", action="store_true", help="sizes that take seconds and mean nothing")
    for field in fields(Sizes):
        kind = str if field.name == "dtype" else int
        parser.add_argument(f"--{field.name}", type=kind, help=f"{HELP[field.name]} ({field.default})")


def read(arguments: argparse.Namespace) -> Sizes:
    asked = {f.name: getattr(arguments, f.name) for f in fields(Sizes)}
    sizes = replace(Sizes(), **(TINY if arguments.tiny else {}))
    sizes = replace(sizes, **{name: value for name, value in asked.items() if value is not None})
    if sizes.dtype not in ("float32", "bfloat16"):
        raise SystemExit(f"--dtype {sizes.dtype}: it is float32 or bfloat16")
    for field in fields(Sizes):
        if field.name != "dtype" and getattr(sizes, field.name) < 1:
            raise SystemExit(f"--{field.name} {getattr(sizes, field.name)}: at least 1")
    return sizes
