"""What losing a token costs, beside what losing matched tokens costs; and what pinning gives back.

Three ways to lose one. *Masked*: no later token ever sees it. *Evicted*: the prompt was read with it, then its entry is
taken out of the cache; positions stay as they were. *Re-ranked*: the same, and the entries behind it move up. Each is
scored on the continuation of the prompt, teacher-forced, against the same cache with nothing lost.

Controls are as many tokens of the same prompt, near the same place, whose keys are most alike in norm. Effects are means
over blocks of the continuation (a window of text each), with the block as the unit of the bootstrap: losses of
neighbouring tokens depend on each other. Not covered: equivalence tests and verdicts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sinkpin.cache import compat
from sinkpin.cache.bounded import BoundedCache
from sinkpin.errors import InputError
from sinkpin.policies.base import Frame, Kind, Policy, View
from sinkpin.sinks.lockstep import Step, lockstep
from sinkpin.sinks.report import Ablation, Effect, Way
from sinkpin.statistics import mean_interval

BLOCK = 512
CONTROLS = 10
_AT_ONCE = 4
"""Caches beside the whole one, which is fed again for each group: what bounds memory."""
_AROUND = 4
"""Places on either side, for each control, that controls are chosen from."""

Floats = npt.NDArray[np.floating[Any]]
Said = Callable[[str], None]


@dataclass(frozen=True)
class _Everything(Policy):
    """Keeps all it is given, and puts keys at their ranks if the frame says so: what an experiment takes entries out of."""

    name: ClassVar[str] = "everything"
    kind: ClassVar[Kind] = "scored"
    per_head: ClassVar[bool] = False

    def keep(self, view: View, n: int) -> Tensor:
        raise AssertionError("its budget is the whole text")


@dataclass(frozen=True)
class Window:
    """`ids [prompt + continuation + 1]`: what is read, and what is then scored."""

    ids: Tensor
    prompt: int


def windows(ids: Tensor, *, prompt: int, most: int, block: int = BLOCK) -> list[Window]:
    """Up to `most` stretches of a text, one after the other: a prompt, and a block that continues it."""
    size = prompt + block + 1
    return [Window(ids[at : at + size], prompt) for at in range(0, len(ids) - size + 1, size)][:most]


def ablate(
    model: Any,
    windows: Sequence[Window],
    indices: Sequence[int],
    what: str,
    *,
    key_norms: Callable[[Window], Floats],
    others: Iterable[int] = (),
    controls: int = CONTROLS,
    block: int = BLOCK,
    said: Said = lambda line: None,
) -> list[Ablation]:
    """Lose the tokens `indices` of each window's prompt, in each way that this model has.

    `key_norms(window)`: mean key norm of each token of its prompt; `others`: further tokens that are no controls, being
    sinks themselves. Raises `InputError` where fewer than two blocks are scored, which give no interval.
    """
    blocks = sum((len(w.ids) - w.prompt - 1) // block for w in windows)
    if blocks < 2:
        raise InputError(
            f"{blocks} block{'s' * (blocks != 1)} of {block} tokens to score after the prompt: an interval needs two at the "
            "least; give a longer text, or a shorter prompt"
        )
    sets = [[list(indices), *matched(key_norms(w), indices, controls, others)] for w in windows]
    if min(map(len, sets)) < 2:
        raise InputError(
            f"{what}: the prompt has no other tokens near {'it' if len(indices) == 1 else 'them'} to compare with; give a longer "
            "one"
        )
    found: list[Ablation] = []
    for way in ways(model):
        lost: list[Floats] = []
        for number, (window, sets_here) in enumerate(zip(windows, sets, strict=True)):
            said(f"{what}, {way}, {number + 1} of {len(windows)}")
            lost.append(_lost(model, window, way, sets_here, block))
        found.append(
            Ablation(
                what=what,
                indices=tuple(indices),
                way=way,
                effect=effect(np.concatenate([x[0] for x in lost])),
                control=effect(np.concatenate([x[1:].mean(0) for x in lost])),
                controls=min(len(x) - 1 for x in lost),
                scored=blocks * block,
            )
        )
    return found


def restored(
    model: Any,
    ids: Tensor,
    budget: int,
    pins: Mapping[str, Sequence[tuple[int, int]]],
    *,
    block: int = BLOCK,
    chunk: int = BLOCK,
) -> dict[str, Floats]:
    """A sliding window of `budget` entries over `ids` with each of these pins, against the full cache: for each, `[blocks, 3]`
    as `effect` takes it. Scored once every window has lost something. Raises `InputError` for fewer than two blocks."""
    if (len(ids) - 1 - budget) // block < 2:
        raise InputError(
            f"{len(ids)} tokens leave {max(len(ids) - 1 - budget, 0)} to score past a window of {budget}: two blocks of "
            f"{block} are needed; give a longer text"
        )
    with ExitStack() as stack:
        caches = [stack.enter_context(BoundedCache(model, policy="full", sinks=0))]
        for spans in pins.values():
            caches.append(
                stack.enter_context(BoundedCache(model, budget, "window", sinks=0, pins=list(spans)))
            )
        steps = [step.after(budget) for step in lockstep(model, caches, ids, 0, chunk=chunk)]
    return {name: differences(step, steps[0], block) for name, step in zip(pins, steps[1:], strict=True)}


def ways(model: Any) -> list[Way]:
    """The ways to lose a token that this model has: with learned positions no entry can move up."""
    with BoundedCache(model, policy="full", sinks=0) as cache:
        learned = cache.door.anatomy.learned
    return ["masked", "evicted"] if learned else ["masked", "evicted", "re-ranked"]


def matched(
    norms: Floats, indices: Sequence[int], controls: int, others: Iterable[int] = ()
) -> list[list[int]]:
    """Up to `controls` different sets of as many tokens, each near the place of the one it stands for, by the norm of their
    keys. No token is twice in a set; where sets are large it may be in several."""
    never = set(indices) | set(others)
    near: list[list[int]] = []
    for index in indices:
        reach = max(index // 2, _AROUND * controls)
        places = range(max(0, index - reach), min(len(norms), index + reach + 1))
        near.append(
            sorted((i for i in places if i not in never), key=lambda i: abs(np.log(norms[i] / norms[index])))
        )
    found: list[list[int]] = []
    for rank in range(controls):
        chosen: list[int] = []
        for candidates in near:
            free = [i for i in candidates if i not in chosen]
            if rank >= len(free):
                return found
            chosen.append(free[rank])
        found.append(chosen)
    return found


def effect(blocks: Floats) -> Effect:
    """Of `[blocks, 3]`: differences of loss, divergences, and agreement, each a mean over a block."""
    delta, kl, same = blocks.mean(0)
    return Effect(
        delta_nll=float(delta), ci95=mean_interval(blocks[:, 0]), kl=float(kl), agreement=float(same)
    )


def differences(step: Step, reference: Step, block: int) -> Floats:
    """`[blocks, 3]`, as `effect` takes it."""
    pairs = zip(step.blocks(block), reference.blocks(block), strict=True)
    return np.array([[(a.losses - b.losses).mean(), a.kl.mean(), a.same.mean()] for a, b in pairs])


def _lost(model: Any, window: Window, way: Way, sets: Sequence[Sequence[int]], block: int) -> Floats:
    """`[sets, blocks, 3]`: what losing each of the sets does to the blocks after the window's prompt."""
    frame: Frame = "slots" if way == "re-ranked" else "original"

    def cache() -> BoundedCache:
        return BoundedCache(model, len(window.ids), _Everything(), sinks=0, frame=frame)

    found: list[Floats] = []
    with cache() as whole:
        _feed(model, whole, window.ids[: window.prompt])
        for some in _batched(sets, _AT_ONCE):
            with ExitStack() as stack:
                caches = [stack.enter_context(deepcopy(whole))]
                for lost in some:
                    if way == "masked":
                        caches.append(stack.enter_context(cache()))
                        _feed(model, caches[-1], window.ids[: window.prompt], lost)
                    else:
                        caches.append(stack.enter_context(deepcopy(whole)))
                        caches[-1].drop(lost)
                steps = lockstep(model, caches, window.ids, window.prompt, chunk=block)
            found += [differences(step, steps[0], block) for step in steps[1:]]
    return np.stack(found)


def _batched(sets: Sequence[Sequence[int]], size: int) -> Iterator[Sequence[Sequence[int]]]:
    """`size` at a time; `itertools` has it from Python 3.12 on."""
    return (sets[start : start + size] for start in range(0, len(sets), size))


@torch.inference_mode()
def _feed(model: Any, cache: BoundedCache, ids: Tensor, lost: Sequence[int] = ()) -> None:
    """Read `ids`; each of the tokens `lost` is dropped before a later one could see it."""
    inner = compat.causal_lm(model)
    start = 0
    for stop in sorted({*(index + 1 for index in lost), len(ids)}):
        if stop > start:
            compat.decoder_of(inner)(
                input_ids=ids[None, start:stop].to(compat.entry_device(inner)),
                **{compat.CACHE_KEYWORD: cache},
            )
            if stop - 1 in lost:
                cache.drop([stop - 1])
            start = stop
