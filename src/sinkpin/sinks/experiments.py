"""What kind of sink a token is, found out by changing the prompt and looking again, never by its name.

A *true* sink is bound to its place: whatever token stands first takes the mass, also among random tokens, and when tokens
are put before the text the mass goes to the new first one. A *structural* sink belongs to the chat template (`template`).
A *secondary* one is anything else: it stands in the midst of a text. One token repeated throughout is the negative
control: where all tokens are alike, there is little for a sink to be told by.

Source: the first three changes follow StreamingLLM (arXiv 2309.17453, section 3.1) and Gu et al. (arXiv 2410.10781). Not
covered: what losing a sink costs (`ablate`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinkpin.sinks.measure import measure
from sinkpin.sinks.report import Experiment, Kind

TOKENS = 512
RUNS = 3
PREPENDED = 8
STAYS = 0.5
"""Share of its mass that the first place must keep for a sink to be bound to it."""

Said = Callable[[str], None]


@dataclass(frozen=True)
class _Changed:
    """A changed prompt, and where the token that was first stands in it, if it does."""

    name: str
    ids: Tensor
    token: int | None


def run(
    model: Any,
    ids: Tensor,
    *,
    vocabulary: Sequence[int],
    bos: int | None = None,
    left_out: int,
    seed: int = 0,
    said: Said = lambda line: None,
) -> tuple[Experiment, ...]:
    """Change the first `TOKENS` of `ids` in each way, `RUNS` times where chance is involved, and measure again.

    `vocabulary`: ordinary tokens to draw from; `bos`: the token that this tokenizer begins texts with, where it has one.
    """
    ids = ids[:TOKENS]
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[tuple[float, float | None]]] = {}
    for change in _changes(ids, torch.as_tensor(list(vocabulary)), bos, left_out + 2, generator):
        said(change.name)
        mass = measure(model, change.ids, left_out=left_out).mass.mean((0, 1))
        token = None if change.token is None else float(mass[change.token])
        found.setdefault(change.name, []).append((float(mass[0]), token))
    plain = found["as it is"][0][0]
    return tuple(_summed(name, runs, plain) for name, runs in found.items())


def bound_to_the_first_place(experiments: Sequence[Experiment]) -> bool:
    """Whether the first place keeps its mass whatever stands there."""
    first = {one.name: one.first for one in experiments}
    plain = first["as it is"]
    assert plain is not None
    asked = [first[name] for name in ("first token replaced", "random tokens", "tokens put before")]
    return all(mass is not None and mass >= STAYS * plain for mass in asked)


def kind_of(index: int, *, is_marker: bool, leads: bool, bound: bool) -> Kind:
    """`leads`: whether it stands in the unbroken run of sinks that begins the prompt; `bound`: see above."""
    if leads and bound:
        return "true"
    return "structural" if is_marker else "secondary"


def _changes(
    ids: Tensor, vocabulary: Tensor, bos: int | None, shortest: int, generator: torch.Generator
) -> Iterator[_Changed]:
    def drawn(count: int) -> Tensor:
        return vocabulary[torch.randint(len(vocabulary), (count,), generator=generator)]

    yield _Changed("as it is", ids, 0)
    for _ in range(RUNS):
        yield _Changed("content replaced", torch.cat((ids[:1], drawn(len(ids) - 1))), 0)
        yield _Changed("first token replaced", torch.cat((drawn(1), ids[1:])), None)
        yield _Changed("random tokens", drawn(len(ids)), None)
        yield _Changed("tokens put before", torch.cat((drawn(PREPENDED), ids)), PREPENDED)
        yield _Changed("one token repeated", drawn(1).expand(len(ids)).contiguous(), None)
    if bos is not None and int(ids[0]) == bos:
        if len(ids) > shortest:
            yield _Changed("without BOS", ids[1:], None)
    elif bos is not None:
        yield _Changed("with BOS", torch.cat((torch.tensor([bos]), ids)), 1)


_SAYS = {
    "as it is": "what the others are compared with",
    "content replaced": "the first token {verb} whatever follows it",
    "first token replaced": "the first place {verb} whatever token stands there",
    "random tokens": "the first place {verb} without any meaning to read",
    "tokens put before": "the new first place {verb}; the old first token has {token}",
    "one token repeated": "negative control: where all tokens are alike, the first one {verb}",
    "with BOS": "a BOS put first {verb}; the token that was first has {token}",
    "without BOS": "the token behind it {verb} when BOS is gone",
}


def _summed(name: str, runs: list[tuple[float, float | None]], plain: float) -> Experiment:
    first = float(np.mean([one for one, _ in runs]))
    tokens = [token for _, token in runs if token is not None]
    token = float(np.mean(tokens)) if tokens else None
    verb = (
        f"keeps its mass ({first:.1%})"
        if first >= STAYS * plain
        else f"does not keep it ({first:.1%} of {plain:.1%})"
    )
    shown = "-" if token is None else f"{token:.1%}"
    return Experiment(
        name=name, first=first, token=token, runs=len(runs), says=_SAYS[name].format(verb=verb, token=shown)
    )
