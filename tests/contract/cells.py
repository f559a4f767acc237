"""The table of the contract suite, and the few helpers that all its clauses share.

To add a policy, add a line to `POLICIES`; to add a family, add it to `families.FAMILIES` (and, if its decoder is
shaped like those there, describe it in `naive.anatomy`; else ordinary forwards are its oracle, see `naive.dense`).
`every_cell` and `every_policy` turn the table into parametrisations: every policy on Llama, and every family on one
position, one scored and one prompt policy, in the ordinary run; the rest of the product is marked slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from types import MappingProxyType
from typing import Any, Literal

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import DynamicCache

from families import FAMILIES, Family, windows
from naive import chunked, dense, evidence
from naive.adakv import adakv_choice
from naive.expected import expected_choice
from naive.h2o import h2o_choice
from naive.keydiff import keydiff_choice
from naive.lagkv import lagkv_choice
from naive.pyramidkv import allotment, pyramidkv_choice
from naive.random_policy import Hash, random_choice
from naive.snapkv import snapkv_choice
from naive.streaming import pinned, stream, visible
from naive.tova import tova_choice
from sinkpin import BoundedCache
from sinkpin.attention.scores import Scoring
from sinkpin.cache.adapters import Adapter

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
    """One policy as the suite runs it. `choose` builds its naive choice from a budget and pins (scored only), for the
    loop `walk`: `evidence.walk`, or `chunked.walk` where indices are all it goes by. `newest`: whether the newest entry
    stays in any case. `counts`: its evidence is of queries, which only a recording can take back. `allots`: what the
    budget is a mean over, `layers` or the `heads` of each."""

    name: str
    kind: Literal["full", "position", "scored", "prompt"]
    frame: Literal["slots", "original"]
    sinks: int = 4
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    choose: Callable[..., Any] | None = None
    walk: Callable[..., Any] = evidence.walk
    newest: bool = True
    counts: bool = False
    allots: Literal["evenly", "layers", "heads"] = "evenly"
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

    def room_for(self, tokens: int, model: Any) -> int:
        """The smallest budget under which every bounded layer may hold `tokens`."""
        layers = sum(window is None for window in windows(model))
        if self.allots != "layers":
            return tokens
        return next(n for n in count(tokens) if min(allotment(layers, n, self.sinks, 20, None)) >= tokens)

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
        most: int | None = None,
    ) -> tuple[Tensor, Any]:
        """The plain loop for one row: logits [T, vocab] and origins[layer][head] (of all heads alike: one list). `most`:
        pins of the row with most of them, where it stands beside others."""
        pins = pinned(self.sinks if sinks is None else sinks, spans)
        frame = frame or self.frame
        if self.kind in ("full", "position"):
            run = stream(model, ids, budget=budget if self.bounded else None, pins=pins, frame=frame)
            return run.logits, run.origins
        assert self.choose is not None, f"{self.name} has no naive choice"
        choose = self.choose(budget, pins, **({"most": most} if self.allots == "layers" else {}))
        walked = self.walk(model, ids, chunks, choose, frame=frame)
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
            walk=chunked.walk,
        ),
        PolicyCell("h2o", "scored", "original", choose=h2o_choice, counts=True),
        PolicyCell(
            "h2o",
            "scored",
            "original",
            options=MappingProxyType({"normalize": True}),
            choose=partial(h2o_choice, normalize=True),
            counts=True,
            id="h2o-normalize",
        ),
        PolicyCell("tova", "scored", "original", choose=tova_choice, newest=False, counts=True),
        PolicyCell("keydiff", "scored", "original", choose=keydiff_choice, newest=False),
        PolicyCell("lagkv", "scored", "original", choose=lagkv_choice),
        PolicyCell("snapkv", "prompt", "original", choose=snapkv_choice, counts=True),
        PolicyCell("pyramidkv", "prompt", "original", choose=pyramidkv_choice, counts=True, allots="layers"),
        PolicyCell("expected", "scored", "original", choose=expected_choice, newest=False, counts=True),
        PolicyCell("adakv", "scored", "original", choose=adakv_choice, counts=True, allots="heads"),
    )
}
# One of each kind stands for its kind where the whole product would take too long.
ONE_OF_A_KIND = ("streaming", "h2o", "snapkv")


def _cells(
    names: Iterable[str],
    families: Iterable[str],
    axes: Mapping[str, Iterable[Any] | Mapping[str, Any]],
    everyday: Callable[[str, str, bool], bool],
) -> Iterator[Any]:
    """The product; `everyday(policy, family, first)` says what is not slow, `first` being the first of each axis."""
    named = [axis if isinstance(axis, Mapping) else {str(x): x for x in axis} for axis in axes.values()]
    for name, family in product(names, families):
        for place, keys in enumerate(product(*named)):
            marks = () if everyday(name, family, place == 0) else (pytest.mark.slow,)
            values = [axis[key] for axis, key in zip(named, keys, strict=True)]
            yield pytest.param(
                POLICIES[name], family, *values, marks=marks, id="-".join((name, family, *keys))
            )


def every_cell(
    *kinds: str,
    where: Callable[[Family], bool] = lambda _: True,
    daily: bool = True,
    **axes: Iterable[Any] | Mapping[str, Any],
) -> pytest.MarkDecorator:
    """Parametrise (policy, family) over the policies of the given kinds and the families `where` something holds; by
    default over all of them.

    `axes` are further parameters, named values or values that name themselves. Families other than Llama have the first
    of each in the ordinary run, and nothing where `daily` is False: what a test looks for is not a family's doing.
    """
    names = [name for name, cell in POLICIES.items() if not kinds or cell.kind in kinds]
    families = [name for name, family in FAMILIES.items() if where(family)]

    def everyday(name: str, family: str, first: bool) -> bool:
        return family == "llama" or (daily and first and name in ONE_OF_A_KIND)

    return pytest.mark.parametrize(("policy", "family", *axes), list(_cells(names, families, axes, everyday)))


def every_policy(*kinds: str, **axes: Iterable[Any] | Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrise `policy` alone; the test builds its own (Llama) model. Of further `axes` one policy of each kind has
    all in the ordinary run, the others the first of each."""
    names = [name for name, cell in POLICIES.items() if not kinds or cell.kind in kinds]

    def everyday(name: str, family: str, first: bool) -> bool:
        return first or name in ONE_OF_A_KIND

    cells = [
        pytest.param(policy, *values, marks=cell.marks, id=cell.id.replace("-llama", "", 1))
        for cell in _cells(names, ["llama"], axes, everyday)
        for policy, _, *values in [cell.values]
    ]
    return pytest.mark.parametrize(("policy", *axes), cells)


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


def feed_and_see(
    policy: PolicyCell,
    model: Any,
    cache: BoundedCache,
    ids: Tensor,
    sizes: Iterable[int],
    sliding: list[int | None],
) -> tuple[Tensor, list[Tensor]]:
    """`feed` one row in chunks into a new cache; logits, and what each query of each layer may see, bool [H or 1, T, T]:
    by rule for position policies and sliding layers, else what the cache held before the chunk, and the chunk."""
    length, heads = ids.shape[1], model.config.num_attention_heads
    masks = [dense.window(length, size) for size in sliding]
    bounded = [layer for layer, size in enumerate(sliding) if size is None and policy.bounded]
    if policy.kind == "position":
        for layer in bounded:
            masks[layer] = torch.zeros(1, length, length, dtype=torch.bool)
            for t in range(length):
                masks[layer][0, t, visible(t, cache.budget_tokens, pinned(policy.sinks))] = True
    start, out = 0, []
    for size in sizes:
        stop = start + size
        if policy.kind != "position" and start:
            for layer in bounded:
                held = cache.origins(layer)[0]
                held = torch.where(held < 0, length, held)  # empty slots go to a column that is cut off
                seen = torch.zeros(held.shape[0], length + 1, dtype=torch.bool).scatter_(1, held, True)[
                    :, :length
                ]
                seen[:, start:] = True
                now = seen.repeat_interleave(heads // len(seen), 0)[:, None] & dense.window(length, None)
                masks[layer] = masks[layer].repeat(heads // len(masks[layer]), 1, 1)
                masks[layer][:, start:] = now[:, start:]
        out.append(feed(model, cache, ids[:, start:stop]))
        start = stop
    return torch.cat(out, 1), masks


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


def heads(cache: BoundedCache, layer: int = 0, row: int = 0) -> list[list[int]]:
    """What each head of one row holds, without the empty slots."""
    return [origins(cache, layer, row, head) for head in range(cache.origins(layer).shape[1])]


def assert_full(policy: PolicyCell, cache: BoundedCache, budget: int = BUDGET, waiting: int = 0) -> None:
    """Every row holds exactly the budget, in each bounded layer and head; or, where the policy allots otherwise, exactly
    what `audit()` says is allotted, of which the mean is the budget. On top of it come `waiting` uncommitted tokens."""
    allotted = {line.layer: line.allotment for line in cache.audit()}
    assert list(allotted) == cache.bounded_layers
    assert sum(allotted.values()) == len(allotted) * budget
    assert policy.allots == "layers" or set(allotted.values()) == {budget}
    for layer, share in allotted.items():
        share += waiting
        kept = (cache.origins(layer) >= 0).sum(-1)
        assert (kept.sum(-1) == kept.shape[1] * share).all(), (
            f"layer {layer}: {kept.tolist()}, allotted {share}"
        )
        assert policy.allots == "heads" or (kept == share).all(), (
            f"layer {layer}: {kept.tolist()}, allotted {share}"
        )
        assert cache.kept(layer) == cache.origins(layer).shape[-1] == kept.max()


def assert_within(cache: BoundedCache, more: int) -> None:
    """No row holds more than is allotted to a layer and `more` tokens in each head."""
    for line in cache.audit():
        kept = (cache.origins(line.layer) >= 0).sum(-1)
        assert (kept.sum(-1) <= kept.shape[1] * (line.allotment + more)).all()


def own_notes(policy: PolicyCell, cache: BoundedCache) -> list[str]:
    """Notes of the cache, without what a policy has to say of itself (its window, that it holds the prompt)."""
    return [note for note in cache.notes if not note.startswith((f"{policy.name}:", f"{policy.name} "))]


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
    """Every tensor reachable through attributes, slots and containers, without entering what is the model's: a module, a
    config, a layer's constants (learned sinks, slopes)."""
    seen: set[int] = set()
    queue: list[object] = [root]
    while queue:
        item = queue.pop()
        if id(item) in seen or item is None or isinstance(item, str | bytes | int | float | type):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, torch.nn.Module | transformers.PreTrainedConfig | Scoring | Adapter):
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
