"""What is compared: a policy in a frame, written `h2o` or `h2o@slots`, and the reference, transformers' DynamicCache.

Not here: budgets and pins, which are the same for all arms of a run (`settings`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import transformers
from torch import Tensor

from sinkpin.bench.subject import Subject
from sinkpin.cache.bounded import BoundedCache
from sinkpin.errors import InputError
from sinkpin.policies import resolve
from sinkpin.policies.base import Policy

REFERENCE = "DynamicCache"


@dataclass(frozen=True)
class Arm:
    """A policy as written, without its frame, and the frame; None is the policy's own."""

    policy: str
    frame: Literal["slots", "original"] | None

    @property
    def name(self) -> str:
        return self.policy if self.frame is None else f"{self.policy} {self.frame}"

    @property
    def kind(self) -> str:
        return resolve(self.policy).kind

    @property
    def uneven(self) -> bool:
        """Whether layers or heads get unequal parts of the budget, so that some evict before it is full."""
        policy = resolve(self.policy)
        return policy.across_heads or type(policy).layer_budget is not Policy.layer_budget

    def cache(self, subject: Subject, entries: int, sinks: int, prompt: int | None = None) -> BoundedCache:
        """A new, empty one. `prompt`: its length, for policies that choose when it ends."""
        length = prompt if self.kind == "prompt" else None
        return BoundedCache(
            subject.model,
            budget=entries,
            policy=self.policy,
            sinks=sinks,
            frame=self.frame,
            prompt_length=length,
        )


def arms_of(written: Sequence[str]) -> list[Arm]:
    """Raises `PolicyError` for a policy that is not there, `InputError` for one that cannot be measured here."""
    arms = []
    for each in dict.fromkeys(written):
        policy, at, frame = each.partition("@")
        if at and frame not in ("slots", "original"):
            raise InputError(f"policy {each!r}: the frame behind @ is slots or original")
        if not resolve(policy).bounded:
            raise InputError(f"policy {each!r} evicts nothing: {REFERENCE} is measured anyway; leave it out")
        arms.append(Arm(policy, cast(Literal["slots", "original"], frame) if at else None))
    return arms


def dynamic(subject: Subject) -> Any:
    """A new DynamicCache for the reference model."""
    return transformers.DynamicCache(config=subject.reference.config)


class Steady:
    """A DynamicCache that each forward finds as it was when this was made.

    `update` makes new tensors and drops the old ones; putting the old ones back costs nothing, and the reference then
    has the same length at every step. Keeping them holds one more set of keys and values alive.
    """

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self._held: list[dict[str, Tensor | Any]] = [dict(layer.__dict__) for layer in cache.layers]

    def restore(self) -> None:
        for layer, held in zip(self.cache.layers, self._held, strict=True):
            layer.__dict__.update(held)
