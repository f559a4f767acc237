"""Comparisons made of drawn losses, for whatever reads a record; no model runs."""

from collections.abc import Callable

import numpy as np
import pytest

from sinkpin.evaluate.record import ArmResult, Comparison

BYTES_PER_TOKEN = 46_080

Make = Callable[..., Comparison]


@pytest.fixture
def make() -> Make:
    return build


def build(
    perplexities: dict[str, float] | None = None,
    *,
    scored: int = 960,
    first: int = 64,
    chunk: int = 16,
    trained: int | None = None,
) -> Comparison:
    """A record of the arms `policy-budget+sinks` (and `full`) with these perplexities, losses to match."""
    perplexities = perplexities or {"full": 22.0, "window-64+0": 230.0, "streaming-64+4": 31.0}
    rng = np.random.default_rng(7)
    shared = rng.normal(0.0, 1.0, scored)
    arms, losses = [], {}
    for name, perplexity in perplexities.items():
        drawn = shared + rng.normal(0.0, 0.1, scored)
        losses[name] = (drawn - drawn.mean() + np.log(perplexity)).astype(np.float32)
        nll = float(losses[name].mean(dtype=np.float64))
        arms.append(arm(name, nll, tokens=first + scored, full=arms[0].nll if arms else nll, chunk=chunk))
    return Comparison(
        model="a model",
        versions={"sinkpin": "0.1.0", "torch": "2.13.0"},
        tokens=first + scored,
        scored_tokens=scored,
        chunk=chunk,
        trained_length=trained,
        notes=["a note, with ü"],
        arms=arms,
        positions=np.arange(first, first + scored, dtype=np.int64),
        losses=losses,
    )


def arm(name: str, nll: float, *, tokens: int, full: float, chunk: int) -> ArmResult:
    """`policy[[option=value,…]]-budget+sinks[+start:stop][/frame]` as the result of a run; a budget in bytes holds an entry
    less where something is pinned."""
    policy, options, written, budget, sinks, spans, frame = name, {}, None, None, 0, [], None
    if name != "full":
        policy, _, held = name.rpartition("-")
        policy, _, option = policy.removesuffix("]").partition("[")
        options = dict(each.split("=") for each in option.split(",")) if option else {}
        held, _, frame = held.partition("/")
        written, pins, *more = held.split("+")
        sinks, spans = int(pins), [[int(end) for end in span.split(":")] for span in more]
        if written.endswith("%"):
            budget = tokens * int(written[:-1]) // 100
        elif written.endswith("KB"):
            budget = int(written[:-2]) * 1000 // 512 - (sinks > 0)
        else:
            budget = int(written)
    held_tokens = tokens if budget is None else budget
    exact = policy in ("full", "window", "streaming")
    return ArmResult(
        name=name,
        policy=policy,
        options=dict(options),
        sinks=sinks,
        pins=spans,
        frame=None if budget is None else frame or ("slots" if exact else "original"),
        budget=written,
        budget_tokens=budget,
        budget_bytes=None if budget is None else budget * BYTES_PER_TOKEN,
        chunk=512 if exact else chunk,
        kv_bytes_peak=(held_tokens + 16) * BYTES_PER_TOKEN,
        kv_bytes_steady=held_tokens * BYTES_PER_TOKEN,
        evicted=float(tokens - held_tokens),
        sink_kept=1.0 if budget is None or sinks or policy == "keydiff" else 0.0,
        nll=nll,
        ppl=float(np.exp(nll)),
        delta_nll=nll - full,
        ci95=None,
        kl=None,
        top1_agreement=None if budget is None else 0.9,
        verdict=None,
        tokens_per_s=1234.5,
    )
