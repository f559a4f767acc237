"""The attention that queries to come are expected to pay, from the mean and covariance of those so far.

Devoto, Jeblick and Jégou, "Expected Attention: KV Cache Compression by Estimating Attention from Future Queries
Distribution", arXiv 2510.00636.

Take the queries of a head as normal with mean μ and covariance Σ, and turn both by R, the mean rotation over the next
`future` positions: μ' = Rμ, Σ' = RΣRᵀ. For a key k, and s = 1/√d what the model scales its scores by, the expectation
of exp(s q·k) has a closed form:

    a(j) = softmax over the candidates of ( s μ'·k_j + s² k_jᵀΣ'k_j / 2 ),   score(j) = (mean of a(j) over the group + ε) ‖v_j‖

Defaults: future = 512, ε = 0, the authors' class (they run it with ε = 0.01 and 0.02 too; the larger, the more it goes
by ‖v‖ alone). Chooses after every forward, and keeps nothing in any case, not even the newest.

We differ from the authors' code (NVIDIA's kvpress). Its statistics are of one prompt, without the first four tokens;
ours are of all queries so far, those included. Softmax runs over the candidates: the first four are left out there,
the pinned ones here. Scores are fp32. `future` positions count on from the newest in the cache's own frame, so in
`slots` they run past the ranks that queries will have. The paper's ‖W_O v‖ is ‖v‖ in their code, and here. Linear
biases (ALiBi) and soft caps are no part of the expectation.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkpin.errors import PolicyError
from sinkpin.policies.base import Need, QueryStatistics, Ranked, View


@dataclass(frozen=True)
class Expected(Ranked):
    """`future`: over how many positions to come the rotation is averaged. `epsilon`: added to the expected attention
    before the norms of the values weigh in."""

    future: int = 512
    epsilon: float = 0.0

    name: ClassVar[str] = "expected"
    needs: ClassVar[frozenset[Need]] = frozenset({"queries", "rotated_keys", "values"})
    paper: ClassVar[str] = "arXiv 2510.00636"

    def __post_init__(self) -> None:
        if self.future < 1:
            raise PolicyError(
                f"policy 'expected': future={self.future}, but at least one position is to come"
            )
        if not self.epsilon >= 0:
            raise PolicyError(
                f"policy 'expected': epsilon={self.epsilon} would favour small values; it is zero or more"
            )

    def scores(self, view: View, n: int) -> Tensor:
        """The logarithm of the score, fp32 `[rows, kv_heads, candidates]`."""
        queries, values = view.queries, view.values
        assert queries is not None and view.rotated_keys is not None and values is not None, (
            f"expected needs {set(self.needs)}"
        )
        kv_heads = view.origins.shape[1]
        keys = view.rotated_keys.float() * queries.scaling
        mean, covariance = self._expected_queries(queries)
        mean = mean.unflatten(1, (kv_heads, -1))[..., None]  # [rows, kv_heads, group, key_dim, 1]
        covariance = covariance.unflatten(1, (kv_heads, -1))
        expected = []
        for member in range(mean.shape[2]):  # one at a time: k Σ is as large as the keys
            linear = (keys @ mean[:, :, member]).squeeze(-1)
            spread = ((keys @ covariance[:, :, member]) * keys).sum(-1)
            expected.append((linear + spread / 2).log_softmax(-1))
        log_attention = torch.stack(expected).logsumexp(0) - math.log(len(expected))
        if self.epsilon:
            log_attention = log_attention.logaddexp(torch.full_like(log_attention, math.log(self.epsilon)))
        # In logarithms, which order alike: most of a sharp softmax is zero in fp32, and zeros have no order.
        return log_attention + values.float().norm(dim=-1).clamp(min=torch.finfo(torch.float32).tiny).log()

    def _expected_queries(self, queries: QueryStatistics) -> tuple[Tensor, Tensor]:
        """Mean `[rows, heads, d]` and covariance `[rows, heads, d, d]` of the queries to come."""

        def turned(x: Tensor) -> Tensor:
            """The mean of x `[rows, heads, m, d]` turned to each of the next positions."""
            # Rotations compose, so the sum over 2m positions is that over m, plus the same turned m further: ten
            # rotations for 512 positions, instead of 512.
            first = total = queries.rotate(x, queries.positions[..., None] + 1)
            count = 1
            for bit in f"{self.future:b}"[1:]:
                total = total + queries.rotate(total, torch.tensor(count, device=x.device))
                count *= 2
                if bit == "1":
                    total = first + queries.rotate(total, torch.tensor(1, device=x.device))
                    count += 1
            return total / count

        mean = turned(queries.mean[:, :, None])[:, :, 0]
        covariance = turned(turned(queries.covariance).transpose(-1, -2))
        return mean, covariance
