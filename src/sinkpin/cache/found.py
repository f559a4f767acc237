"""`sinks="auto"`: what to pin, from the attention of a first forward that was computed in full.

Pinned are a row's outliers that at least one head pays more than ε (`attention.outliers`), at their places. Not here: the
detector with its experiments and its card (`sinkpin.sinks`), and sinks of later prompts: what was found holds until
`reset()`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sinkpin.attention.mass import HeadMass
from sinkpin.attention.outliers import outliers
from sinkpin.spans import Span

FIRST = 4
"""Pinned where a prompt is too short to be judged: the number of StreamingLLM (arXiv 2309.17453)."""
SHORTEST = 64
_LEFT_OUT = 32
_PART = 4  # of what may be held, at most one in so many is pinned


def sinks_of(witnesses: Sequence[HeadMass], real: Tensor, room: int) -> tuple[list[list[Span]], list[str]]:
    """The spans to pin in each row, and what has to be known of them.

    `witnesses`: one for each layer, over all columns of the forward. `real` int64 `[batch]`: real tokens of each row, which
    stand last. `room`: entries that may be held.
    """
    rows: list[list[Span]] = []
    notes: dict[str, None] = {}
    most = max(1, room // _PART)
    for row, tokens in enumerate(real.tolist()):
        if tokens < SHORTEST:
            notes[
                f"sinks='auto': a prompt of {tokens} tokens is too short to find sinks in ({SHORTEST}), so its first {FIRST} are pinned"
            ] = None
            rows.append([(0, min(FIRST, most))])
            continue
        mass = torch.stack([_received(w)[row, :, -tokens:].cpu() for w in witnesses]).double().numpy()
        mass /= np.maximum(np.arange(tokens - 1, -1, -1), 1)
        mass[..., tokens - _LEFT_OUT :] = np.nan
        found = outliers(mass)
        chosen = sorted(found.sinks, key=lambda index: -found.mean[index])
        if len(chosen) > most:
            notes[
                f"sinks='auto': {len(chosen)} sinks were found, and the {most} that receive most are pinned, a quarter of the budget"
            ] = None
        if not chosen:
            notes["sinks='auto': no sinks were found, so nothing is pinned for them"] = None
        rows.append([(index, index + 1) for index in sorted(chosen[:most])])
    return rows, list(notes)


def _received(witness: HeadMass) -> Tensor:
    assert witness.received is not None, "the forward was not looked at"
    return witness.received
