"""Correctness first: what is about to be timed must compute the right thing, on this model and this text.

Small budgets, so that it takes seconds. Checked: below the budget logits are DynamicCache's; a position policy that has
evicted says the same fed whole as fed token by token; a full cache owns the bytes that its budget says, and its
pins. Not checked: that a scored policy chooses what its paper says; the contract suite does that.
"""

import torch
from torch import Tensor

from sinkpin.bench.arms import Arm, dynamic
from sinkpin.bench.subject import Subject
from sinkpin.errors import SinkpinError

BUDGET = 40
FED = BUDGET + 33
STEPS = 6
_ROOMY = 32
"""Times the budget, where layers or heads get unequal parts of it: none is to evict."""

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_COARSE = 0.1
"""Of half precision: two ways to compute one dense forward differ by a few hundredths."""


class GateError(SinkpinError):
    """Something computes the wrong thing; no number is worth reporting."""


def difference(mine: Tensor, theirs: Tensor) -> float:
    """Root of the mean squared difference of two sets of logits, in units of their spread."""
    theirs = theirs.float()
    return float((mine.float() - theirs).pow(2).mean().sqrt() / theirs.std().clamp(min=1e-12))


def require_close(mine: Tensor, theirs: Tensor, what: str) -> None:
    """Raises `GateError` unless two sets of logits agree as far as their precision lets them."""
    limit = _TOLERANCE.get(theirs.dtype, _COARSE)
    found = difference(mine, theirs)
    if not found <= limit:  # a NaN is no agreement
        raise GateError(
            f"{what}: logits differ by {found:.2g} of their spread, more than {limit:g}: "
            "nothing was timed; report this with the model's name and `sinkpin bench`'s options"
        )


def check(subject: Subject, arm: Arm, sinks: int) -> None:
    """Raises `GateError` if a cache of this arm is not what it should be."""
    budget = max(BUDGET, sinks + 32)
    fed = budget + FED - BUDGET
    _below_the_budget(subject, arm, sinks, budget)
    _full(subject, arm, sinks, budget, fed)
    if arm.kind == "position":
        _token_by_token(subject, arm, sinks, budget, fed)


def steps(subject: Subject, model: object, cache: object, start: int, rows: int = 1) -> Tensor:
    """Logits `[STEPS, rows, vocab]` of single tokens from `start` on."""
    return torch.stack(
        [subject.feed(model, subject.tokens(at, at + 1, rows), cache) for at in range(start, start + STEPS)]
    )


def _below_the_budget(subject: Subject, arm: Arm, sinks: int, budget: int) -> None:
    length = budget - STEPS
    theirs = dynamic(subject)
    subject.feed(subject.reference, subject.tokens(0, length), theirs)
    wanted = steps(subject, subject.reference, theirs, length)
    room = _ROOMY * budget if arm.uneven else budget
    with arm.cache(subject, room, sinks, length) as cache:
        subject.feed(subject.model, subject.tokens(0, length), cache)
        require_close(
            steps(subject, subject.model, cache, length),
            wanted,
            f"{arm.name} below its budget against DynamicCache",
        )


def _full(subject: Subject, arm: Arm, sinks: int, budget: int, fed: int) -> None:
    with arm.cache(subject, budget, sinks, fed) as cache:
        subject.feed(subject.model, subject.tokens(0, fed), cache)
        steps(subject, subject.model, cache, fed)
        owned, promised = cache.nbytes(), cache.footprint.bytes_of(budget)
        if owned != promised:
            raise GateError(
                f"{arm.name} owns {owned:,} bytes at a budget of {budget} entries, which are {promised:,}: "
                "nothing was timed"
            )
        first = torch.arange(sinks)
        for layer in cache.bounded_layers:
            held = cache.origins(layer)[0].cpu()
            if not all(bool(torch.isin(first, head).all()) for head in held):
                raise GateError(
                    f"{arm.name} lost some of its {sinks} pins in layer {layer}: nothing was timed"
                )


def _token_by_token(subject: Subject, arm: Arm, sinks: int, budget: int, fed: int) -> None:
    with arm.cache(subject, budget, sinks) as whole, arm.cache(subject, budget, sinks) as single:
        subject.feed(subject.model, subject.tokens(0, fed), whole)
        subject.feed(subject.model, subject.tokens(0, fed), single, chunk=1)
        require_close(
            steps(subject, subject.model, whole, fed),
            steps(subject, subject.model, single, fed),
            f"{arm.name} fed {fed} tokens at once against token by token",
        )
