"""The measurements, each a function of a peer and the sizes: what a row of the report is made of.

Speed is measured in blocks of steps, one of the dense run and one of the evicting run in turn, so that both meet the
same machine. A block is as long as the eviction interval: whoever evicts now and then, in bulk, pays for it within every
block, and a median over blocks cannot hide it. Not here: what is compared between peers (`run.py`).
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from sizes import Sizes
from streams import Peer, Stream, Unavailable

SINKS = 4  # pinned by every peer that can be told how many
GATE_TOKENS = 32
GATE_NATS = 1e-3  # between two float32 implementations of the same weights; 30 times that in lower precision


@contextmanager
def opened(stream: Stream) -> Iterator[Stream]:
    try:
        yield stream
    finally:
        stream.close()


def weights(peer: Peer, ids: list[int], sizes: Sizes) -> dict[str, Any]:
    """The loss of a short text with the dense cache: `run.py` compares it between peers."""
    return {"gate_nll_dense": peer.recent_loss(ids[:GATE_TOKENS])}


def driver(peer: Peer, ids: list[int], sizes: Sizes) -> dict[str, Any]:
    """That the driver is right: below its budget, the evicting run has the losses of the dense one."""
    short, prompt = ids[:GATE_TOKENS], 8
    with opened(peer.evicting(256, sizes.block, prompt)) as stream:
        losses = _losses(stream, short, prompt, first=prompt)
    with opened(peer.dense(GATE_TOKENS)) as stream:
        expected = _losses(stream, short, prompt, first=prompt)
    apart = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    allowed = GATE_NATS if sizes.dtype == "float32" else 30 * GATE_NATS
    if apart > allowed:
        raise SystemExit(
            f"{peer.name}: below the budget, evicting and dense run differ by {apart:.2g} nats at a token "
            f"(allowed: {allowed:g}): the driver or the peer is wrong, so nothing was measured"
        )
    return {"gate_max_difference_nats": apart}


def decode(peer: Peer, ids: list[int], sizes: Sizes) -> dict[str, Any]:
    """Milliseconds of one decode step, dense and evicting, at about `kept` entries."""
    _evicts_in_steps(peer)
    kept, block = sizes.kept, sizes.block
    steps = block * (sizes.blocks + 1)
    start = max(1, kept - steps // 2)  # the dense run grows: its middle is at `kept`
    if start + steps > len(ids) or kept + block + steps > len(ids):
        raise SystemExit(f"{kept} entries and {steps} steps are more than the {len(ids)} tokens of the text")
    dense_ms, evicting_ms = [], []
    with (
        opened(peer.dense(start + steps)) as dense,
        opened(peer.evicting(kept, block, kept)) as evicting,
    ):
        dense.feed(ids[:start])
        evicting.feed(ids[:kept])
        for number in range(sizes.blocks + 1):
            one = _timed(dense, ids[start + number * block :][:block])
            other = _timed(evicting, ids[kept + number * block :][:block])
            if number:  # the first of each warms up
                dense_ms.append(one)
                evicting_ms.append(other)
        held = evicting.held()
    return {
        "decode_ms_dense": median(dense_ms),
        "decode_ms_evicting": median(evicting_ms),
        "decode_ms_evicting_p10_p90": _spread(evicting_ms),
        "decode_ratio": median(b / a for a, b in zip(dense_ms, evicting_ms, strict=True)),
        "tokens_per_s": 1000 / median(evicting_ms),
        "decode_held": held,
    }


def memory(peer: Peer, ids: list[int], sizes: Sizes) -> dict[str, Any]:
    """Bytes behind the cache after a long prompt, and after a further interval of decode steps."""
    prompt = ids[: sizes.prompt]
    with opened(peer.dense(len(prompt) + sizes.block)) as stream:
        stream.feed(prompt)
        dense = stream.nbytes()
    with opened(peer.evicting(sizes.budget, sizes.block, len(prompt))) as stream:
        stream.feed(prompt)
        after_prompt = stream.nbytes()
        for token in ids[len(prompt) :][: sizes.block]:
            stream.step(token)
        return {
            "bytes_dense": dense,
            "bytes_kept_after_prompt": after_prompt,
            "bytes_kept": stream.nbytes(),
            "bytes_kept_entries": stream.held(),
        }


def sinks(peer: Peer, ids: list[int], sizes: Sizes) -> dict[str, Any]:
    """Of the first four tokens, the share still held after `steps` decode steps."""
    _evicts_in_steps(peer)
    with opened(peer.evicting(sizes.budget, 1, sizes.budget)) as stream:
        stream.feed(ids[: sizes.budget])
        stream.sinks_held()  # who cannot say need not take the steps
        for token in ids[sizes.budget :][: sizes.steps]:
            stream.step(token)
        return {"sinks_held_after_steps": stream.sinks_held(), "sinks_steps": sizes.steps}


def perplexity(peer: Peer, ids: list[int], sizes: Sizes) -> dict[str, Any]:
    """Teacher forced, token by token, over those tokens whose forward came after the cache was full."""
    _evicts_in_steps(peer)
    text, budget = ids[: sizes.tokens], sizes.budget
    with opened(peer.evicting(budget, 1, budget)) as stream:
        losses = _losses(stream, text, budget, first=budget + 1)
    marks = [mark for mark in (1024, 2048, 4096, 8192) if budget + 1 < mark < len(text)] + [len(text)]
    at = {str(mark): math.exp(_mean(losses[: mark - budget - 1])) for mark in marks}
    return {"perplexity": at[str(len(text))], "perplexity_of_first": at, "perplexity_tokens": len(losses)}


def continuation(peer: Peer, ids: list[int], sizes: Sizes) -> dict[str, Any]:
    """What a prompt cut to the budget is worth: perplexity of the text that follows it, for peers that evict only there."""
    end = sizes.prompt + sizes.answer
    found: dict[str, Any] = {}
    for name, stream in (
        ("dense", peer.dense(end)),
        ("evicting", peer.evicting(sizes.budget, 1, sizes.prompt)),
    ):
        with opened(stream):
            found[f"continuation_perplexity_{name}"] = math.exp(
                _mean(_losses(stream, ids[:end], sizes.prompt, first=sizes.prompt + 1))
            )
            found[f"continuation_held_{name}"] = stream.held()
    return found


def second_turn(peer: Peer, ids: list[int], sizes: Sizes) -> dict[str, Any]:
    """Entries held after a turn and its answer, after a second prompt, and after a second answer."""
    turn, answer, interval = sizes.turn, sizes.answer, min(sizes.block, sizes.answer)
    most = sizes.budget + max(interval, peer.granularity)
    held = []
    with opened(peer.evicting(sizes.budget, interval, turn)) as stream:
        for start in (0, turn + answer):
            stream.feed(ids[start : start + turn])
            after_prompt = stream.held()
            for token in ids[start + turn :][:answer]:
                stream.step(token)
            held += [after_prompt, stream.held()]
    return {
        "second_turn_bounded": held[3] <= most,
        "second_turn_peak_bounded": max(held[1:]) <= most,
        "second_turn_held": {"answer_1": held[1], "prompt_2": held[2], "answer_2": held[3]},
    }


MEASUREMENTS = {
    "decode": decode,
    "memory": memory,
    "sinks": sinks,
    "perplexity": perplexity,
    "continuation": continuation,
    "second_turn": second_turn,
}
# What a reader looks for in a row, null where it could not be had.
FIELDS = {
    "weights": ("gate_nll_dense",),
    "driver": ("gate_max_difference_nats",),
    "decode": ("decode_ms_dense", "decode_ms_evicting", "tokens_per_s"),
    "memory": ("bytes_kept",),
    "sinks": ("sinks_held_after_steps",),
    "perplexity": ("perplexity",),
    "continuation": ("continuation_perplexity_evicting",),
    "second_turn": ("second_turn_bounded",),
}


def _evicts_in_steps(peer: Peer) -> None:
    if peer.never_in_steps:
        raise Unavailable(peer.never_in_steps)


def _losses(stream: Stream, text: list[int], prompt: int, first: int) -> list[float]:
    """Losses of `text[first:]`, after `text[:prompt]` was fed in one piece."""
    stream.feed(text[:prompt])
    losses = []
    for index in range(prompt, len(text)):
        if index >= first:
            losses.append(stream.nll(text[index]))
        if index + 1 < len(text):
            stream.step(text[index])
    return losses


def _timed(stream: Stream, tokens: list[int]) -> float:
    began = time.perf_counter()
    for token in tokens:
        stream.step(token)
    return 1000 * (time.perf_counter() - began) / len(tokens)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _spread(values: list[float]) -> list[float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return [ordered[round(0.1 * last)], ordered[round(0.9 * last)]]
