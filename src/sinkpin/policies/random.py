"""The newest entry, and of the others those with the highest hash: the baseline any scored policy has to beat.

The score of an entry is a hash of (seed, layer, KV head, index), so a run repeats exactly, on every backend, and what
is kept depends neither on how the text was cut into chunks nor on the other rows of the batch.

    x = seed · A  +  layer · B  +  head · C  +  index · D            (all in int64, wrapping around)
    x = (x ^ (x >>> 30)) · E;   x = (x ^ (x >>> 27)) · F;   x = x ^ (x >>> 31)

with `>>>` the logical shift, A = 0x9E3779B97F4A7C15, B = 0xC2B2AE3D27D4EB4F, C = 0x165667B19E3779F9,
D = 0xD6E8FEB86659FD93, E = 0xBF58476D1CE4E5B9, F = 0x94D049BB133111EB; x is compared as a signed number. The last
line is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkpin.policies.base import Policy, View, highest


def _signed(constant: int) -> int:
    return constant - 2**64 if constant >= 2**63 else constant


_SEED, _LAYER = _signed(0x9E3779B97F4A7C15), _signed(0xC2B2AE3D27D4EB4F)
_HEAD, _INDEX = _signed(0x165667B19E3779F9), _signed(0xD6E8FEB86659FD93)
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def hashes(seed: int, layer: int, heads: Tensor, index: Tensor) -> Tensor:
    """The documented hash, int64, of broadcastable `heads` and `index` (int64 tensors)."""

    def shifted(x: Tensor, bits: int) -> Tensor:  # torch's >> is arithmetic: clear the copies of the sign
        return (x >> bits) & ((1 << (64 - bits)) - 1)

    start = (seed * _SEED + layer * _LAYER) & (2**64 - 1)
    x = heads * _HEAD + index * _INDEX + _signed(start)
    x = (x ^ shifted(x, 30)) * _FIRST
    x = (x ^ shifted(x, 27)) * _SECOND
    return x ^ shifted(x, 31)


@dataclass(frozen=True)
class Random(Policy):
    """The newest entry and a random choice: another one in each layer and KV head."""

    seed: int = 0

    name: ClassVar[str] = "random"

    def keep(self, view: View, n: int) -> Tensor:
        heads = torch.arange(view.origins.shape[1], device=view.origins.device)[:, None]
        older = hashes(self.seed, view.layer, heads, view.origins[..., :-1])
        newest = torch.full_like(view.origins[..., :1], view.candidates - 1)
        return torch.cat((highest(older, n - 1), newest), dim=-1)
