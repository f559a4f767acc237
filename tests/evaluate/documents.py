"""Made-up documents, to read, merge and draw: a comparison with everything that schema 1 can say, and a probe."""

from typing import Any

import numpy as np

BLOCKS, SIZE, FIRST = 24, 512, 257
BYTES_PER_TOKEN = 46_080
LENGTH = FIRST + BLOCKS * SIZE


def comparison(**other: Any) -> dict[str, Any]:
    """24 blocks, eight arms: two equivalent, one inconclusive, four worse of which three depart, and full."""
    lines = [arm("full", 0.0, None)]
    for policy, budget, sinks, delta, spread, verdict, departs in (
        ("window", 64, 0, 2.169, 0.11, "worse", FIRST + 300),
        ("streaming", 64, 4, 0.296, 0.03, "worse", FIRST + 1400),
        ("window", 256, 0, 0.712, 0.06, "worse", FIRST + 900),
        ("streaming", 256, 4, 0.116, 0.012, "worse", None),
        ("h2o", 256, 4, 0.0141, 0.008, "inconclusive", None),
        ("h2o", 1024, 4, 0.0021, 0.003, "equivalent", None),
        ("snapkv", 1024, 4, -0.0004, 0.004, "equivalent", None),
    ):
        lines.append(arm(f"{policy}-{budget}+{sinks}", delta, budget, policy=policy, sinks=sinks, spread=spread, verdict=verdict, departs=departs))  # fmt: skip
    document = {
        "schema": 1, "model": "SmolLM2-135M-Instruct (Q4_1)",
        "versions": {"sinkpin": "0.2.0", "torch": "2.13.0", "transformers": "5.24.0", "python": "3.12.3"},
        "tokens": LENGTH, "scored_tokens": BLOCKS * SIZE, "chunk": 16, "trained_length": 8192,
        "notes": ["text: pride_and_prejudice.txt"],
        "command": "sinkpin compare --budget 64,256,1024 --policy window --policy h2o --tokens 12545",
        "text": "pride_and_prejudice.txt",
        "blocks": {"size": SIZE, "count": BLOCKS, "ends": [FIRST + SIZE * (i + 1) - 1 for i in range(BLOCKS)]},
        "margin": 0.01,
        "pairs": [
            {"arm": "streaming-64+4", "against": "window-64+0", "delta_nll": -1.873, "ci95": [-1.98, -1.77], "error": 0.05, "p": 1e-9,
             "equivalent_p": 1.0, "detectable": 0.14, "verdict": "better"},
            {"arm": "h2o-256+4", "against": "streaming-256+4", "delta_nll": -0.102, "ci95": [-0.115, -0.089], "error": 0.006,
             "p": 2e-7, "equivalent_p": 1.0, "detectable": 0.017, "verdict": "better"},
        ],
        "factorial": {
            "factors": {"pins": ["none", "first 4", "detected", "template"], "policy": ["window", "h2o"], "budget": ["64", "256"]},
            "shares": [
                {"effect": "pins", "share": 0.61, "ci95": [0.55, 0.66]}, {"effect": "policy", "share": 0.14, "ci95": [0.11, 0.18]},
                {"effect": "budget", "share": 0.12, "ci95": [0.09, 0.16]}, {"effect": "pins × policy", "share": 0.1, "ci95": [0.08, 0.13]},
            ],
            "notes": ["template markers: none in this text"],
        },
        "arms": lines,
    }  # fmt: skip
    return document | other


def plain(**other: Any) -> dict[str, Any]:
    """The same as an earlier version wrote it: no intervals, no blocks, none of the keys that joined later."""
    document = comparison()
    for key in ("command", "text", "blocks", "margin", "pairs", "factorial", "trained_length"):
        del document[key]
    for line in document["arms"]:
        for key in ("error", "p", "detectable", "kl_ci95", "departs", "seeds", "delta_blocks", "kl_blocks", "pins", "budget", "chunk"):  # fmt: skip
            del line[key]
        line |= {"ci95": None, "verdict": None, "kl": None}
    return document | other


def arm(
    name: str, delta: float, budget: int | None, *, policy: str = "full", sinks: int = 0, spread: float = 0.0,
    verdict: str | None = None, departs: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One arm whose loss rises where it departs."""
    full, rng = budget is None, np.random.default_rng(len(name) + (budget or 0))
    held = LENGTH if budget is None else budget
    rise = (
        np.ones(BLOCKS) if departs is None else 1.0 + 0.6 * (np.arange(BLOCKS) >= (departs - FIRST) // SIZE)
    )
    blocks = delta * rise / rise.mean() + rng.normal(0, spread, BLOCKS) * 2
    kl = abs(delta) * 0.9 + 0.002
    return {
        "name": name, "policy": policy, "options": {}, "sinks": sinks, "pins": [],
        "frame": None if full else "slots" if policy in ("window", "streaming") else "original",
        "budget": None if full else str(budget), "budget_tokens": budget,
        "budget_bytes": None if full else held * BYTES_PER_TOKEN, "chunk": 16,
        "kv_bytes_peak": (held + 16) * BYTES_PER_TOKEN, "kv_bytes_steady": held * BYTES_PER_TOKEN + 512 * len(policy),
        "evicted": float(LENGTH - held), "sink_kept": 1.0 if full or sinks else 0.0,
        "nll": 2.92 + delta, "ppl": float(np.exp(2.92 + delta)), "delta_nll": delta,
        "ci95": None if full else [delta - spread, delta + spread], "error": None if full else spread / 2,
        "p": None if full else 0.0004 if verdict == "worse" else 0.4, "detectable": None if full else 1.4 * spread,
        "verdict": verdict, "kl": None if full else kl, "kl_ci95": None if full else [0.9 * kl, 1.1 * kl],
        "top1_agreement": None if full else max(0.3, 0.97 - 0.25 * abs(delta)), "departs": departs, "seeds": None,
        "delta_blocks": None if full else [float(x) for x in blocks],
        "kl_blocks": None if full else [float(x) for x in kl * rise / rise.mean()], "tokens_per_s": 812.5,
    }  # fmt: skip


def probe(**other: Any) -> dict[str, Any]:
    """A needle that the full cache finds and a window does not."""

    def one(
        name: str, policy: str, budget: int | None, score: float, low: float, high: float
    ) -> dict[str, Any]:
        full = budget is None
        cells = [
            {"length": n, "depth": 0.5, "score": score, "ci95": [low, high], "n": 20} for n in (512, 1024)
        ]
        return {
            "name": name, "policy": policy, "options": {}, "sinks": 0 if full else 4, "frame": None if full else "slots",
            "budget": None if full else str(budget), "budget_tokens": budget, "kv_bytes_steady": 64 * BYTES_PER_TOKEN,
            "evicted": 0.0 if full else 700.0, "score": score, "ci95": [low, high], "n": 40,
            "delta": 0.0 if full else score - 0.85, "delta_ci95": None if full else [-0.87, -0.6], "cells": cells, "measures": {},
        }  # fmt: skip

    document = {
        "schema": 1, "probe": "needle", "model": "SmolLM2-135M-Instruct (Q4_1)", "versions": {"sinkpin": "0.2.0"},
        "settings": {"lengths": [512, 1024], "trials": 20}, "axes": ["length", "depth"], "chance": 0.1,
        "chance_says": "one of ten words", "can": True,
        "sentence": "With the full cache the model reaches 85 % of right answers; chance is 10 %. Worse than it: streaming-64+4.",
        "notes": [],
        "arms": [one("full", "full", None, 0.85, 0.71, 0.94), one("streaming-64+4", "streaming", 64, 0.1, 0.03, 0.24)],
    }  # fmt: skip
    return document | other
