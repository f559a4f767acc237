"""What each workload means: which settings are tried, how a text is fed, and which of its tokens are scored.

A *passage* is one text fed from an empty cache. Its first tokens, up to `warm`, are not scored: they fill the cache and let
every setting evict; the rest is scored in whole blocks. `docs/plan.md` says the same in words. Not here: how
texts are cut into passages (`passages`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from sinkpin.errors import InputError
from sinkpin.evaluate.advisor.bound import BLOCK
from sinkpin.evaluate.advisor.settings import Pins, Setting, setting

Name = Literal["stream", "chat", "rag", "extract"]


@dataclass(frozen=True)
class Workload:
    """`length`: tokens of a passage by default. `prompted`: the passage is a prompt, fed at once, one token (which is
    predicted before anything is evicted, so not scored) and a block of an answer; else it has no prompt and its second half is scored. `repeats`: the answer says a part of the prompt again."""

    name: Name
    policies: tuple[str, ...]
    sinks: tuple[int, ...]
    frame: Literal["slots", "original"] | None
    length: int
    prompted: bool = False
    repeats: bool = False
    pins: Pins | None = None

    def warm(self, length: int) -> int:
        """Index of the first scored token of a passage of `length` tokens, which budgets are shares of. Raises `InputError`
        where not one block is left."""
        warm = length - BLOCK if self.prompted else length // 2
        if warm <= BLOCK // 2 or length - warm < BLOCK:
            least = BLOCK + BLOCK // 2 + 1 if self.prompted else 2 * BLOCK
            raise InputError(
                f"a passage of {length} tokens is too short for --workload {self.name}, which scores "
                f"{f'the last {BLOCK}' if self.prompted else 'its second half'} in blocks of {BLOCK}: --length {least} or more"
            )
        return warm

    def prompt(self, length: int) -> int | None:
        """How many tokens of it are fed at once."""
        return self.warm(length) - 1 if self.prompted else None


WORKLOADS: dict[str, Workload] = {
    found.name: found
    for found in (
        Workload("stream", ("window",), (4, 16), "slots", 4096),
        Workload("chat", ("window", "h2o", "tova", "keydiff"), (4,), "slots", 4096, pins="system"),
        Workload("rag", ("window", "h2o", "tova", "snapkv", "adakv"), (4,), None, 2561, prompted=True),
        Workload(
            "extract",
            ("window", "h2o", "tova", "snapkv", "adakv"),
            (4,),
            None,
            2561,
            prompted=True,
            repeats=True,
        ),
    )
}

_GRID = tuple(Fraction(n, 64) for n in (48, 40, 32, 24, 20, 16, 12, 10, 8, 6, 5, 4, 3, 2))
"""Budgets, as shares of `warm`: each 17 to 33 % below the one before, down to the last."""

Line = tuple[Setting, ...]
"""Settings alike but for their budget, smallest budget first."""


def lines(
    workload: Workload,
    warm: int,
    policies: Sequence[str] | None = None,
    sinks: Sequence[int] | None = None,
    budgets: Sequence[int] | None = None,
    *,
    card: bool = False,
    pinned: int = 0,
) -> list[Line]:
    """What is tried: policies × pins, each at every budget of the grid (or `budgets`) that is above its pins.

    `card`: a sink card is given, and each policy is tried with what it pins, too. `pinned`: the most tokens that further
    pins hold in any passage. Raises `InputError` where nothing can be tried.
    """
    sizes = sorted(set(budgets or (int(share * warm) for share in _GRID)))
    if large := [size for size in sizes if size >= warm - 1]:
        raise InputError(
            f"a budget of {large[0]} tokens evicts nothing before scoring begins at token {warm}: give smaller ones, or a longer "
            "--length"
        )
    heads: list[Setting] = []
    for written in policies or workload.policies:
        for count in workload.sinks if sinks is None else sinks:
            heads.append(setting(written, count, workload.frame, workload.pins))
        if card:
            heads.append(setting(written, 0, workload.frame, "card"))
    found: dict[str, Line] = {}
    for head in heads:
        room = head.arm.sinks + (pinned if head.pins else 0)
        line = tuple(head.with_budget(size) for size in sizes if size > room)
        if line:
            found.setdefault(line[-1].name, line)
    if not found:
        raise InputError(
            f"no budget up to {sizes[-1]} tokens holds more than what is pinned ({pinned} tokens and the first ones): give a longer "
            "--length, or pin less"
        )
    return list(found.values())
