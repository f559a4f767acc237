"""Full caches and single steps: what `decode` times, eager and compiled.

Before a step a bounded cache holds `entries` and DynamicCache one fewer, so that the query of either sees `entries`
(one more under a scored policy, which evicts after the step). Not here: who takes turns with whom.
"""

from collections.abc import Callable
from typing import Any

from sinkpin.bench.arms import Arm, Steady, dynamic
from sinkpin.bench.settings import Decode
from sinkpin.bench.subject import Subject
from sinkpin.bench.timing import Step
from sinkpin.cache.bounded import BoundedCache

_CHUNK = 512  # tokens a forward while caches are filled, which is not timed
_BEYOND = 64  # tokens past the budget, so that every cache has begun to evict
_DIFFERENT = 4096  # tokens that a stepper goes through before it begins again


def full(subject: Subject, arm: Arm, settings: Decode, rows: int) -> BoundedCache:
    """A cache of this arm that is full and has evicted."""
    tokens = settings.entries + _BEYOND
    cache = arm.cache(subject, settings.entries, settings.sinks, tokens)
    try:
        subject.feed(subject.model, subject.tokens(0, tokens, rows), cache, chunk=_CHUNK)
    except BaseException:
        cache.close()
        raise
    return cache


def reference(subject: Subject, name: str, held: int, rows: int, model: Any = None) -> Step:
    """A step of DynamicCache at a length of `held`, its own token included; the same length at every step."""
    cache = dynamic(subject)
    if held > 1:
        subject.feed(subject.reference, subject.tokens(0, held - 1, rows), cache, chunk=_CHUNK)
    steady = Steady(cache)
    run = stepper(subject, subject.reference if model is None else model, cache, held - 1, rows)
    return Step(name, run, before=steady.restore)


def stepper(subject: Subject, model: Any, cache: Any, start: int, rows: int) -> Callable[[], object]:
    """Each call feeds the next token of each row, from index `start` on."""
    # Made before, since picking a token is not decoding.
    period = min(len(subject.text), _DIFFERENT)
    ids = subject.tokens(0, period, rows).split(1, dim=1)
    at = start

    def step() -> None:
        nonlocal at
        subject.feed(model, ids[at % period], cache)
        at += 1

    return step
