"""What a layer remembers of the past so that its policy can choose: attention received, recent queries, their moments.

All of it is strictly causal, blind to padding, and moves with the rows; sums are fp32. While a rollback is possible
(between `activate_past_recording` and the next `crop`) queries only wait, and count once they are accepted: evidence
waits just as eviction does.

Not covered: turning evidence into scores (policies); taking back what was counted without such a rollback.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sinkpin.attention.causal import Causal
from sinkpin.attention.rope import Rotary
from sinkpin.attention.scores import Scoring, block_size
from sinkpin.cache.anatomy import LayerAnatomy
from sinkpin.cache.ragged import opened, packed
from sinkpin.cache.storage import Place, writable
from sinkpin.policies.base import Policy, QueryStatistics

OF_QUERIES = frozenset({"mass", "recent", "queries"})
"""Evidence that comes from queries; the rest is read off the storage when it is asked for."""


@dataclass(frozen=True)
class Scene:
    """Where a layer chooses: its pool of entries and what lies in it, as stored; `now`: real tokens per row."""

    plan: Causal
    keys: Tensor
    values: Tensor
    rotary: Rotary | None
    scoring: Scoring
    now: Tensor

    def turned(self) -> Tensor:
        """The keys at their positions in the cache's frame. Attention counts positions from the newest entry, since only
        differences matter to it; a policy that looks at single channels needs them to stay."""
        if self.rotary is None or self.plan.turned:
            return self.keys.float()
        return self.rotary.rotate(self.keys, self.rotary.tables(self.plan.absolute))


class Evidence:
    """One layer's evidence.

    `mass` fp32 `[batch, kv_heads, entries]`, aligned with the storage. `tail` `[batch, heads, n, key_dim]`: the newest
    queries, as many as `recent` looks back on. `moments`: of all queries, count `[batch]`, sum `[batch, heads, d]` and
    sum of outer products `[batch, heads, d, d]`. `waiting`: queries that a crop may still take back.
    """

    def __init__(self, policy: Policy, facts: LayerAnatomy) -> None:
        self.policy, self.facts = policy, facts
        self.needs = policy.needs
        self.clear()

    def clear(self) -> None:
        self.mass: Tensor | None = None
        self._own: Tensor | None = None  # of the entry that has just come, until it has a place
        self.tail: Tensor | None = None
        self.moments: list[Tensor] = []
        self.waiting: Tensor | None = None

    # gathering

    def wait(self, q: Tensor) -> None:
        """Keep the queries `[batch, heads, new, key_dim]` of a forward that may be taken back."""
        if self.needs & OF_QUERIES:
            self.waiting = _appended(self.waiting, q)

    def accept(self, scene: Scene, rows_back: int) -> None:
        """Count what has waited: the queries of the pool's last entries."""
        q, self.waiting = self.waiting, None
        if q is None or q.shape[2] == 0:
            return
        received, entries = None, scene.keys.shape[2]
        if "mass" in self.needs:
            received = q.new_zeros(scene.keys.shape[:3], dtype=torch.float32)
            rotated_q = scene.plan.rotated_queries(q, scene.rotary, scene.keys.shape[1])
            rotated_keys = scene.plan.rotated(scene.keys, scene.rotary)
            size = block_size(q.shape[1], entries)
            for start in range(0, q.shape[2], size):
                stop = min(start + size, q.shape[2])
                seen = entries - q.shape[2] + stop
                block = rotated_q[:, :, start:stop]
                weights = scene.plan.weights(block, rotated_keys[:, :, :seen], scene.scoring)
                received[..., :seen] += scene.plan.paid(weights).sum(-2)
        self.count(scene.plan, q, received, rows_back)

    def count(self, plan: Causal, q: Tensor, received: Tensor | None, rows_back: int) -> None:
        """Count one forward: its queries, unrotated, and the mass each entry received of them; `rows_back` is how many
        queries `recent` looks back on."""
        if received is not None:
            if self.mass is not None:
                received[..., : self.mass.shape[-1]] += self.mass
            self.mass = received
        if "recent" in self.needs:
            # Only a prompt's choice can look back over several forwards: later, a query's own entry may be gone.
            before = self.tail if self.policy.kind == "prompt" else None
            self.tail = _appended(before, q)[:, :, -rows_back:].clone() if rows_back else None
        if "queries" in self.needs:
            real = plan.real[:, :1, plan.real.shape[-1] - q.shape[2] :, None]
            x = q.detach().float() * real
            more = [real[:, 0, :, 0].sum(-1).float(), x.sum(2), x.transpose(-1, -2) @ x]
            self.moments = [a + b for a, b in zip(self.moments, more, strict=True)] if self.moments else more

    # what a policy reads

    def view(self, scene: Scene, rows: Tensor, slots: Tensor, room: int) -> dict[str, Any]:
        """The fields of a `View` of the candidates `slots [rows, heads, candidates]` of the batch rows `rows`."""
        kv_heads = scene.keys.shape[1]
        fields: dict[str, Any] = {"seen": int(scene.now[rows[0]])}
        if "mass" in self.needs:
            assert self.mass is not None, "mass was not gathered"
            fields["mass"] = _over(self.mass[rows], slots.shape[1]).gather(-1, slots)
        if "recent" in self.needs:
            assert self.tail is not None, "no query was kept"
            back = min(self.policy.window(room), self.tail.shape[2])
            q = scene.plan.rotated_queries(self.tail[:, :, -back:], scene.rotary, kv_heads)
            weights = scene.plan.weights(q, scene.plan.rotated(scene.keys, scene.rotary), scene.scoring)
            paid = _over(scene.plan.paid(weights)[rows], slots.shape[1])
            fields["recent"] = paid.gather(-1, slots[:, :, None].expand(-1, -1, back, -1))
        wide = slots.expand(-1, kv_heads, -1)[..., None]
        if "keys" in self.needs:
            fields["keys"] = _at(scene.keys[rows], wide)
        if "rotated_keys" in self.needs:
            fields["rotated_keys"] = _at(scene.turned()[rows], wide)
        if "values" in self.needs:
            fields["values"] = _at(scene.values[rows], wide)
        if "queries" in self.needs:
            fields["queries"] = self._statistics(scene, rows)
        return fields

    def _statistics(self, scene: Scene, rows: Tensor) -> QueryStatistics:
        count, total, outer = (x[rows] for x in self.moments)
        mean = total / count[:, None, None]
        covariance = outer / count[:, None, None, None] - mean[..., :, None] * mean[..., None, :]
        rotary = scene.rotary

        def rotate(x: Tensor, positions: Tensor) -> Tensor:
            return x.float() if rotary is None else rotary.rotate(x, rotary.tables(positions))

        return QueryStatistics(
            mean=mean,
            covariance=covariance,
            rotate=rotate,
            positions=_of_query_heads(scene.plan.newest[rows], mean.shape[1]),
            scaling=scene.scoring.scale,
        )

    # one new token at a time

    def after_one(self, paid: Tensor, heads: int) -> dict[str, Tensor]:
        """What fields of a `View` are made of, `[batch, heads, entries + 1]` each, after one query that paid `paid [batch,
        kv_heads, entries + 1]` to what is held and to its own entry, which comes last."""
        told: dict[str, Tensor] = {}
        if "mass" in self.needs:
            assert self.mass is not None, "mass was not gathered"
            self._own = paid[..., -1:]
            self.mass = writable(self.mass).add_(paid[..., :-1])
            told["mass"] = _over(torch.cat((self.mass, self._own), dim=-1), heads)
        if "recent" in self.needs:
            told["recent"] = _over(paid, heads)
        return told

    def swap(self, where: Place) -> None:
        """The new entry went to its place."""
        if self.mass is not None and self._own is not None:
            self.mass, self._own = where.put(self.mass, self._own), None

    # moving with the entries and rows

    def gather(self, slots: Tensor) -> None:
        """Keep the mass of `slots [batch, 1 or kv_heads, kept]` of the pool; -1 is an empty slot."""
        if self.mass is not None:
            kept = slots.to(self.mass.device).expand(-1, self.mass.shape[1], -1)
            self.mass = self.mass.gather(-1, kept.clamp(min=0)).masked_fill_(kept < 0, 0.0)

    def pack(self, valid: Tensor, total: int) -> None:
        """As `Storage.pack`."""
        if self.mass is not None:
            self.mass = packed(self.mass, valid.to(self.mass.device), total)

    def open(self, counts: Tensor) -> None:
        """As `Storage.open`."""
        if self.mass is not None:
            self.mass = opened(self.mass, counts.to(self.mass.device))

    def chosen(self, *, final: bool) -> None:
        """A choice was made; a scored policy's next one looks at later queries, a prompt's (`final`) was the last."""
        if final or self.policy.kind == "scored":
            self.tail = None

    def trim(self, entries: int) -> None:
        """Forget the newest `entries`, all of which still wait."""
        if self.waiting is not None:
            self.waiting = self.waiting[:, :, : self.waiting.shape[2] - entries].clone()

    def select_rows(self, rows: Tensor) -> None:
        self.moments = [x.index_select(0, rows.to(x.device)) for x in self.moments]
        for name in ("mass", "tail", "waiting"):
            if (x := getattr(self, name)) is not None:
                setattr(self, name, x.index_select(0, rows.to(x.device)))

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor owned."""
        named = {"mass": self.mass, "tail": self.tail, "waiting": self.waiting}
        moments = {f"moments.{i}": x for i, x in enumerate(self.moments)}
        return {name: x for name, x in named.items() if x is not None} | moments

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """As `named_tensors()` had it."""
        self.mass, self.tail, self.waiting = (tensors.get(name) for name in ("mass", "tail", "waiting"))
        self.moments = [tensors[name] for name in sorted(tensors) if name.startswith("moments.")]

    @staticmethod
    def bytes_of(policy: Policy, facts: LayerAnatomy) -> tuple[int, int]:
        """Bytes of one row, for each entry and besides, once the budget is full."""
        fixed = (
            4 * (1 + facts.heads * facts.key_dim * (1 + facts.key_dim)) if "queries" in policy.needs else 0
        )
        return 4 * facts.kv_heads if "mass" in policy.needs else 0, fixed


def _appended(before: Tensor | None, q: Tensor) -> Tensor:
    return q.detach().clone() if before is None else torch.cat((before, q.detach()), dim=2)


def _over(x: Tensor, heads: int) -> Tensor:
    """`x [rows, kv_heads, …]` as it is, or averaged over KV heads for a policy that keeps one set for all."""
    return x if heads == x.shape[1] else x.mean(1, keepdim=True)


def _of_query_heads(x: Tensor, heads: int) -> Tensor:
    """`x [rows, 1 or kv_heads]` for each query head: `[rows, heads]`."""
    return x.expand(-1, heads) if x.shape[1] == 1 else x.repeat_interleave(heads // x.shape[1], 1)


def _at(x: Tensor, slots: Tensor) -> Tensor:
    return x.gather(2, slots.expand(-1, -1, -1, x.shape[-1]))
