"""Made-up reports, to draw: 30 layers of 9 heads, and token 0 takes 0.4 of the mass."""

from dataclasses import replace
from typing import Any

import numpy as np

from sinkpin.sinks.report import Ablation, Effect, Experiment, Report, Restored, Sink, Way

LAYERS, HEADS = 30, 9
LEFT_OUT = 4  # last tokens without a mass: too few queries see them
_TEXT = ["The", " night", " was", " clear", ",", " and", " she", " could", " not", " sleep", ".", "\n", "I", " am", ",", " he", " said"]  # fmt: skip


def sink(**other: Any) -> Sink:
    norms = {"hidden": 212.4, "key": 0.61, "value": 0.043}
    there: dict[str, Any] = {
        "index": 0, "token": 464, "text": "The", "kind": "true", "outlier": True, "mass": 0.4137, "most": 0.982, "heads": 212,
        "z": 48.2, "q": 1.3e-9, "layers": tuple(range(3, LAYERS)), "norms": norms, "payload": 0.021,
    }  # fmt: skip
    return Sink(**there | other)


def effect(delta: float, spread: float, kl: float = 0.01, agreement: float = 0.97) -> Effect:
    return Effect(delta_nll=delta, ci95=(delta - spread, delta + spread), kl=kl, agreement=agreement)


def report(tokens: int = 400, **other: Any) -> Report:
    """One true sink, and nothing but detection."""
    rng = np.random.default_rng(0)
    mass = np.exp(rng.normal(-7.4, 0.5, tokens)).astype(np.float32)
    z = rng.normal(0, 1, tokens).clip(-3, 3).astype(np.float32)
    mass[0], z[0] = 0.4137, 48.2
    most = np.minimum(1, mass * 6)
    heads_over = (rng.random(tokens) < 0.02).astype(np.int32)
    heads_over[0] = 212
    for array in (mass, z, most):
        array[-LEFT_OUT:] = np.nan
    depth = np.linspace(-3.5, 2.5, LAYERS)[:, None] + rng.normal(0, 0.9, (LAYERS, HEADS))
    points = np.linspace(0, 1, 101)
    walk = np.convolve(rng.normal(0, 1, tokens + 6), np.ones(7) / 7, "valid")
    there: dict[str, Any] = {
        "model": "HuggingFaceTB/SmolLM2-135M",
        "versions": {"sinkpin": "0.2.0", "torch": "2.13.0", "transformers": "5.17.0", "python": "3.12.3"},
        "prompt": "pride_and_prejudice.txt, tokens 0 to 399",
        "settings": {"tokens": tokens, "epsilon": 0.3, "false_discovery_rate": 0.01, "left_out": LEFT_OUT, "dtype": "float32"},
        "layers": tuple(range(LAYERS)), "heads": HEADS, "kv_heads": 3,
        "ids": rng.integers(0, 49152, tokens), "texts": [_TEXT[i % len(_TEXT)] for i in range(tokens)],
        "mass": mass, "most": most, "heads_over": heads_over, "z": z, "cut": 4.1,
        "sink_heat": (1 / (1 + np.exp(-depth))).astype(np.float32),
        "curve": np.stack([points, (1 - points**1.7) * 0.96], axis=-1).astype(np.float32),
        "entropy": np.abs(3 + 2 * walk).astype(np.float32), "margin": rng.beta(1, 2, tokens).astype(np.float32),
        "varentropy": np.abs(4 + 2 * walk).astype(np.float32),
        "sinks": (sink(),),
    }  # fmt: skip
    return Report(**there | other)


def whole(tokens: int = 400, **other: Any) -> Report:
    """Everything that a report can hold."""
    made = report(tokens)
    for index, mass, z in ((87, 0.031, 17.0), (201, 0.012, 11.0)):
        made.mass[index], made.z[index], made.heads_over[index] = mass, z, 9
    for index, text in ((87, "."), (201, "\n"), (3, "<|im_start|>")):
        made.texts[index] = text
    more = {"heads": 9, "layers": (11, 12, 13, 20), "most": 0.34, "q": 2e-4, "payload": 0.011}
    norms = {"hidden": 31.0, "key": 0.72, "value": 0.21}
    sinks = (
        sink(),
        sink(index=87, text=".", kind="secondary", mass=0.031, z=17.0, norms=norms, **more),
        sink(index=201, text="\n", kind="secondary", mass=0.012, z=11.0, norms=norms, **more),
        sink(index=3, text="<|im_start|>", kind="structural", outlier=False, mass=0.004, most=0.02, heads=0, z=1.2,
             q=0.6, layers=(), norms={"hidden": 1.3, "key": 1.02, "value": 0.94}, payload=0.004),
    )  # fmt: skip
    experiments = (
        Experiment(name="as it is", first=0.4137, token=0.4137, runs=1, says="what the others are compared with"),
        Experiment(name="first token replaced", first=0.402, token=None, runs=3, says="the first place keeps its mass (40.2%) whatever token stands there"),
        Experiment(name="tokens put before", first=0.398, token=0.0021, runs=3, says="the new first place keeps its mass (39.8%); the old first token has 0.2%"),
        Experiment(name="one token repeated", first=0.061, token=None, runs=3, says="negative control: where all tokens are alike, the first one does not keep it (6.1% of 41.4%)"),
    )  # fmt: skip
    control = effect(0.012, 0.009)
    rows: tuple[tuple[int, Way, Effect], ...] = (
        (0, "masked", effect(2.71, 0.31, 2.6, 0.31)), (0, "evicted", effect(2.304, 0.21, 2.2, 0.34)),
        (0, "re-ranked", effect(1.96, 0.2, 1.9, 0.4)), (87, "masked", effect(0.021, 0.03)),
    )  # fmt: skip
    ablations = tuple(
        Ablation(
            what=f"token {i}", indices=(i,), way=way, effect=lost, control=control, controls=10, scored=4096
        )
        for i, way, lost in rows
    )
    without = effect(2.31, 0.2, 2.2, 0.33)
    back = tuple(
        Restored(what=f"first {n}", budget=256, without=without, pinned=effect(left, 0.02), scored=4096)
        for n, left in ((1, 0.09), (4, 0.05))
    )
    there = {
        "sinks": sinks, "experiments": experiments, "ablations": ablations, "restored": back,
        "learned": np.full((LAYERS, HEADS), 0.05, np.float32) * np.arange(1, HEADS + 1, dtype=np.float32),
        "card": {"schema": 1, "model": made.model, "rules": [{"rule": "first", "count": 1}]},
        "notes": ("layers 5 and 11 slide: they are not measured",),
    }  # fmt: skip
    return replace(made, **there | other)
