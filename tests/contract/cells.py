"""The table of the contract suite, and the few helpers that all its clauses share.

To add a policy, add a line to `POLICIES`; to add a family, add it to `families.FAMILIES` (and describe it in
`naive.anatomy`). `ordinary` and `position_cells` turn the table into parametrisations: every policy on Llama
and every family on one position and one scored policy in the ordinary run, the rest of the product marked slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType
from typing import Any, Literal

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import DynamicCache

from families import FAMILIES
from naive.chunked import walk
from naive.random_policy import Hash, random_choice
from naive.streaming import pinned, stream
from sinkpin import BoundedCache

NEW_NAMES = Version(transformers.__version__) >= Version("5.24.0.dev0")
CACHE = "cache" if NEW_NAMES else "past_key_values"
BUDGET = 12

Spans = tuple[tuple[int, int], ...]


def splitmix(seed: int) -> Hash:
    """The hash that `random` documents, in Python integers: wrap to 64 bits, compare as signed."""
    wrap = 2**64 - 1

    def hash_of(layer: int, head: int, index: int) -> int:
        x = seed * 0x9E3779B97F4A7C15 + layer * 0xC2B2AE3D27D4EB4F
        x = (x + head * 0x165667B19E3779F9 + index * 0xD6E8FEB86659FD93) & wrap
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & wrap
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & wrap
        x ^= x >> 31
        return x - 2**64 if x >> 63 else x

    return hash_of


@dataclass(frozen=True)
class PolicyCell:
    """One policy as the suite runs it. `choose` builds its naive choice from a budget and pins (scored only)."""

    name: str
    kind: Literal["full", "position", "scored", "prompt"]
    frame: Literal["slots", "original"]
    sinks: int = 4
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    choose: Callable[[int, frozenset[int]], Any] | None = None
    id: str = ""

    @property
    def bounded(self) -> bool:
        return self.kind != "full"

    def cache(self, model: Any, budget: int | str | None = BUDGET, **more: Any) -> BoundedCache:
        """A cache of this policy; keyword arguments override the cell's own."""
        given: dict[str, Any] = {"policy": self.name, "sinks": self.sinks, **self.options}
        if self.bounded:
            given["budget"] = budget
        return BoundedCache(model, **{**given, **more})

    def naive(
        self,
        model: Any,
        ids: Tensor,
        chunks: Iterable[int],
        *,
        budget: int = BUDGET,
        sinks: int | None = None,
        spans: Spans = (),
        frame: str | None = None,
    ) -> tuple[Tensor, Any]:
        """The plain loop for one row: logits [T, vocab] and origins[layer][head] (of all heads alike: one list)."""
        pins = pinned(self.sinks if sinks is None else sinks, spans)
        frame = frame or self.frame
        if self.kind in ("full", "position"):
            run = stream(model, ids, budget=budget if self.bounded else None, pins=pins, frame=frame)
            return run.logits, run.origins
        assert self.choose is not None, f"{self.name} has no naive choice"
        walked = walk(model, ids, chunks, self.choose(budget, pins), frame=frame)
        return walked.logits, walked.origins


POLICIES: dict[str, PolicyCell] = {
    cell.id or cell.name: cell
    for cell in (
        PolicyCell("full", "full", "original"),
        PolicyCell("window", "position", "slots", sinks=0),
        PolicyCell("streaming", "position", "slots"),
        PolicyCell(
            "random",
            "scored",
            "original",
            options=MappingProxyType({"seed": 3}),
            choose=lambda budget, pins: random_choice(budget, pins, splitmix(3)),
        ),
    )
}
# One of each kind stands for its kind where the whole product would take too long.
ONE_OF_A_KIND = ("streaming", "random")
# Hybrid models and learned sinks (C10, C11) join here with the families that have them.
HYBRID_FAMILIES: tuple[str, ...] = ()
LEARNED_SINK_FAMILIES: tuple[str, ...] = ()


def _cells(names: Iterable[str], families: Iterable[str]) -> Iterator[Any]:
    for name, family in product(names, families):
        everyday = family == "llama" or name in ONE_OF_A_KIND
        marks = () if everyday else (pytest.mark.slow,)
        yield pytest.param(POLICIES[name], family, marks=marks, id=f"{name}-{family}")


def every_cell(*kinds: str) -> pytest.MarkDecorator:
    """Parametrise (policy, family) over the policies of the given kinds (all of them by default)."""
    names = [name for name, cell in POLICIES.items() if not kinds or cell.kind in kinds]
    return pytest.mark.parametrize(("policy", "family"), list(_cells(names, FAMILIES)))


def every_policy(*kinds: str) -> pytest.MarkDecorator:
    """Parametrise `policy` alone; the test builds its own (Llama) model."""
    cells = [pytest.param(c, id=n) for n, c in POLICIES.items() if not kinds or c.kind in kinds]
    return pytest.mark.parametrize("policy", cells)


BOUNDED = ("position", "scored", "prompt")


@torch.no_grad()
def feed(model: Any, cache: Any, ids: Tensor, mask: Tensor | None = None, **more: Any) -> Tensor:
    """Logits [rows, T, vocab] of one forward into a cache of any class; `mask` covers past and new, as in generate."""
    if mask is not None:
        more["attention_mask"] = mask
    return model(ids, **{CACHE: cache}, use_cache=True, **more).logits


def feed_in(
    model: Any, cache: Any, ids: Tensor, sizes: int | Iterable[int], mask: Tensor | None = None
) -> Tensor:
    """`feed` in chunks, of one size or of the sizes given; `mask` is that of the whole text."""
    start, out = 0, []
    for size in [sizes] * -(-ids.shape[1] // sizes) if isinstance(sizes, int) else sizes:
        stop = min(start + size, ids.shape[1])
        out.append(feed(model, cache, ids[:, start:stop], None if mask is None else mask[:, :stop]))
        start = stop
    assert start == ids.shape[1]
    return torch.cat(out, dim=1)


def generate(model: Any, cache: Any, ids: Tensor, new: int, **more: Any) -> Tensor:
    """`model.generate` into a cache of any class: exactly `new` tokens, greedy unless told otherwise."""
    options = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0, **more}
    # Without a mask, generate makes one from the ids, and a sampled token 0 in the history becomes padding.
    options.setdefault("attention_mask", torch.ones_like(ids))
    return model.generate(ids, **{CACHE: cache}, **options)


def dynamic(model: Any) -> DynamicCache:
    """The reference cache."""
    return DynamicCache(config=model.config)


def origins(cache: BoundedCache, layer: int = 0, row: int = 0, head: int = 0) -> list[int]:
    """What one row and head holds, without the empty slots."""
    held = cache.origins(layer)
    return [i for i in held[row, head].tolist() if i >= 0] if cache.seen else []


def assert_close(got: Tensor, wanted: Tensor, tolerance: float, what: str = "logits") -> None:
    """Equal to `tolerance` of the largest value, and finite (a NaN compares as neither near nor far).

    Of the largest value, because the tiny models are sharp: their logits reach 8, where one fp32 step is 5e-7 and
    two dense forwards of one text already differ by 1e-5. What the suite looks for is wrong by 0.1 and more.
    """
    assert got.shape == wanted.shape, f"{what}: shape {tuple(got.shape)}, wanted {tuple(wanted.shape)}"
    assert torch.isfinite(got).all(), f"{what}: not finite"
    gap = (got - wanted).abs()
    worst = gap.max().item() if gap.numel() else 0.0
    allowed = tolerance * max(1.0, wanted.abs().max().item() if wanted.numel() else 0.0)
    assert worst <= allowed, (
        f"{what}: differ by {worst:.2e} (at {gap.argmax().item()}), allowed {allowed:.0e}"
    )


def owned(cache: object) -> int:
    """Bytes of every tensor storage reachable from a cache, each storage once; models and modules are not owned."""
    return sum(
        storage.nbytes()
        for storage in {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors(cache)}.values()
    )


def tensors(root: object) -> Iterator[Tensor]:
    """Every tensor reachable through attributes, slots and containers, without entering a module or a config."""
    seen: set[int] = set()
    queue: list[object] = [root]
    while queue:
        item = queue.pop()
        if id(item) in seen or item is None or isinstance(item, str | bytes | int | float | type):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, torch.nn.Module | transformers.PreTrainedConfig):
            continue
        elif isinstance(item, Mapping):
            queue.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            queue.extend(item)
        else:
            queue.extend(getattr(item, "__dict__", {}).values())
            for cls in type(item).__mro__:
                slots = cls.__dict__.get("__slots__", ())
                for name in (slots,) if isinstance(slots, str) else slots:
                    queue.append(getattr(item, name, None))


def fingerprint(model: Any) -> dict[str, Any]:
    """Everything a cache could leave behind on a model: config, attention choice, hooks, instance attributes."""
    hooks = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks_with_kwargs",
        "_forward_hooks_always_called",
    )
    return {
        "config": model.config.to_dict(),
        "attention": model.config._attn_implementation,
        "generation": model.generation_config.to_dict(),
        "modules": {
            name: (
                sorted(k for k in module.__dict__ if k not in hooks),
                {hook: list(getattr(module, hook, {}).values()) for hook in hooks},
                getattr(getattr(module, "config", None), "_attn_implementation", None),
            )
            for name, module in model.named_modules()
        },
        "buffers": {name: buffer.clone() for name, buffer in model.named_buffers()},
    }


def assert_same_print(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Two fingerprints are equal, buffers bit by bit."""
    for key in ("config", "attention", "generation", "modules"):
        assert before[key] == after[key], f"the model's {key} changed"
    assert before["buffers"].keys() == after["buffers"].keys()
    for name, buffer in before["buffers"].items():
        assert torch.equal(buffer, after["buffers"][name]), f"the buffer {name} changed"
