"""What this machine could do at best: bytes that must move over measured bandwidth, operations over measured rate.

A forward cannot take less than the larger of the two. Counted are the weights, each once a forward (of a table of
input embeddings that is not also the head, only the rows used), and the keys and values that are attended to; not
activations, nor what any implementation adds. Both counts are too high for a mixture of experts, which reads
and multiplies but a part of its weights.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sinkpin.bench.subject import Subject
from sinkpin.cache.anatomy import LayerAnatomy
from sinkpin.cache.bounded import BoundedCache
from sinkpin.cache.compat import causal_lm

READ_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}
"""Far more than a CPU's or a card's own caches hold."""
CACHED_BYTES = 64 << 20
"""Weights below this may stay in a CPU's cache, which is faster than the memory that is measured."""
_SIDE = {"cpu": 1024, "cuda": 8192}
_TRIES = 5


@dataclass(frozen=True)
class Floor:
    """`weight_bytes`: of one forward. `weight_operations`: of a token, without attention and without the head, whose
    `head_operations` are of a token whose logits are wanted. `entry_bytes`: keys and values of one entry, all layers."""

    bandwidth_bytes_per_s: float
    rate_flop_per_s: float
    weight_bytes: int
    weight_operations: int
    head_operations: int
    entry_bytes: int
    layers: tuple[LayerAnatomy, ...]

    def step_seconds(self, held: int, rows: int = 1) -> float:
        """One token a row, behind `held` entries."""
        operations = rows * (self._operations(held) + self.head_operations)
        return self._seconds(self.weight_bytes + rows * self._held_bytes(held), operations)

    def prompt_seconds(self, tokens: int, visible: float, scored: int = 1) -> float:
        """`tokens` in one forward, whose queries see `visible` entries on average; logits of `scored` of them."""
        moved = self.weight_bytes + tokens * self.entry_bytes
        return self._seconds(moved, tokens * self._operations(visible) + scored * self.head_operations)

    def _seconds(self, moved: float, operations: float) -> float:
        return max(moved / self.bandwidth_bytes_per_s, operations / self.rate_flop_per_s)

    def _held_bytes(self, held: int) -> int:
        return sum(each.entry_bytes * min(held, each.sliding or held) for each in self.layers)

    def _operations(self, visible: float) -> float:
        """Of one token: two for each weight, and two for each number of each key and value it sees."""
        attention = sum(
            2 * each.heads * (each.key_dim + each.value_dim) * min(visible, each.sliding or visible)
            for each in self.layers
        )
        return self.weight_operations + attention

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "layers"}

    def remarks(self, device: torch.device) -> list[str]:
        if device.type == "cpu" and self.weight_bytes < CACHED_BYTES:
            return [
                f"the weights take {self.weight_bytes / 2**20:.1f} MiB and may stay in the processor's cache: "
                "the floor, measured in main memory, does not hold"
            ]
        return []


def measure(subject: Subject, read_bytes: int | None = None) -> Floor:
    """The machine's bandwidth and rate, in the model's precision, and the model's counts."""
    inner = causal_lm(subject.model)
    with BoundedCache(subject.model, policy="full", sinks=0) as cache:
        layers = cache.door.anatomy.layers
    weights = list(inner.parameters())
    size = sum(weight.nbytes for weight in weights)
    count = sum(weight.numel() for weight in weights if weight.ndim > 1)
    embedding: Any = inner.get_input_embeddings().weight
    head: Any = getattr(inner.get_output_embeddings(), "weight", None)
    count -= embedding.numel()
    if head is not embedding:
        size -= embedding.nbytes - embedding[0].nbytes
        count -= 0 if head is None else head.numel()
    kind = subject.device.type
    return Floor(
        bandwidth_bytes_per_s=_bandwidth(subject, read_bytes or READ_BYTES[kind]),
        rate_flop_per_s=_rate(subject, _SIDE[kind]),
        weight_bytes=size,
        weight_operations=2 * count,
        head_operations=0 if head is None else 2 * head.numel(),
        entry_bytes=sum(each.entry_bytes for each in layers),
        layers=layers,
    )


def _bandwidth(subject: Subject, size: int) -> float:
    """The best of a sum and a matrix-vector product over `size` bytes, read once each."""
    block = torch.ones(size // 4 // 1024, 1024, device=subject.device)
    vector = torch.ones(1024, device=subject.device)
    best = min(_best(subject, block.sum), _best(subject, lambda: block @ vector))
    return block.nbytes / best


def _rate(subject: Subject, side: int) -> float:
    """Of a square matrix product in the model's precision."""
    a = torch.randn(side, side, device=subject.device).to(subject.dtype)
    return 2 * side**3 / _best(subject, lambda: a @ a)


def _best(subject: Subject, work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few tries: a floor is what is possible, not what is usual."""
    best = float("inf")
    for _ in range(_TRIES + 1):  # the first one warms up, and is never the fastest
        subject.sync()
        started = time.perf_counter()
        work()
        subject.sync()
        best = min(best, time.perf_counter() - started)
    return best


def mean_visible(tokens: int, entries: int) -> float:
    """Entries that a query of a text sees on average: its own index while a budget fills, the budget afterwards."""
    filling = min(tokens, entries)
    return (filling * (filling + 1) / 2 + (tokens - filling) * entries) / tokens
