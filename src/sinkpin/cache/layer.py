"""One attention layer of a bounded cache: its storage, its ledger, and what happens between `update` and attention.

transformers calls `update` with the new keys and values and, right after, its attention function. The first call only
hands them over; everything is done in the second, where the queries are there too.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from sinkpin.attention.causal import Causal
from sinkpin.attention.mass import HeadMass, Mass
from sinkpin.attention.rope import Rotary
from sinkpin.attention.scores import Scoring
from sinkpin.cache.anatomy import LayerAnatomy
from sinkpin.cache.choice import choose
from sinkpin.cache.evidence import Evidence, Scene
from sinkpin.cache.ledger import Ledger, Plan
from sinkpin.cache.storage import Storage
from sinkpin.cache.stream import Stream
from sinkpin.errors import CacheError


class BoundedLayer(CacheLayerMixin):
    """What `cache.layers[i]` is. Its own methods follow transformers' cache protocol; the cache drives the rest."""

    is_compileable = False
    is_sliding = False

    def __init__(self, stream: Stream, facts: LayerAnatomy, ledger: Ledger, *, promised_bytes: bool) -> None:
        self.promised_bytes = promised_bytes
        self.stream = stream
        self.facts = facts
        self.ledger = ledger
        self.storage = Storage()
        self.evidence = Evidence(ledger.rule.policy, facts)
        self.scoring: Scoring | None = None
        self.is_open = True
        self.incoming: tuple[Tensor, Tensor] | None = None
        self.witness: HeadMass | None = None
        """Of the detector, while it looks on."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take the new entries `[batch, kv_heads, new, …]`, unrotated; they come back as they are."""
        if not self.stream.under_way:
            raise CacheError(
                "a forward reached this cache without passing its model's door: the cache is closed, or was given to "
                "another model or to a part of one; build BoundedCache(model) for the model that runs"
            )
        if not torch.compiler.is_compiling():  # a graph would announce them after they had come
            self.incoming = (key_states, value_states)
        return key_states, value_states

    def attend(
        self, plan: Plan, q: Tensor, keys: Tensor, values: Tensor, length: int, scoring: Scoring
    ) -> Tensor:
        """Attention of the new queries. Returns `[batch, new, heads, value_dim]`.

        `length` is the text length that rotary frequencies are for.
        """
        self.take(keys, values, scoring)
        self.open()
        rotary = self.rotary(length)
        if rotary is not None and self.ledger.rule.turned:
            stored = rotary.rotate(keys, plan.attention.of_new(rotary)).to(keys.dtype)
        else:
            stored = keys
        self.storage.append(stored, values)
        held = self.storage.read()
        if isinstance(plan.attention, Causal):
            counts = "mass" in self.evidence.needs and not self.stream.recording
            mass = Mass() if counts else None
            out = plan.attention.attend(q, *held, rotary, scoring, mass or self.witness)
            if self.stream.recording:
                self.evidence.wait(q)
            else:
                self.evidence.count(plan.attention, q, mass.received if mass else None, self._looks_back())
        else:
            out = plan.attention.attend(q, *held, rotary, scoring)
        self.storage.settle()
        return out.transpose(1, 2).to(q.dtype).contiguous()

    def take(self, keys: Tensor, values: Tensor, scoring: Scoring) -> None:
        """The entries that `update` announced have come to attention. Raises `CacheError` if they are others."""
        if self.incoming is None or self.incoming[0] is not keys or self.incoming[1] is not values:
            raise CacheError(
                f"layer {self.facts.index} did not bring the keys it just put into the cache to attention (gradient "
                "checkpointing does that, or a layer called by itself): use a bounded cache in plain forwards only"
            )
        self.incoming, self.scoring = None, scoring
        if self.promised_bytes and {keys.dtype, values.dtype} != {self.facts.dtype}:
            raise CacheError(
                f"a budget in bytes was computed for {self.facts.dtype} and layer {self.facts.index} brings {keys.dtype} keys "
                f"and {values.dtype} values (autocast, or another precision): give the budget in tokens"
            )
        if self.storage.keys is not None and self.storage.keys.dtype != keys.dtype:
            raise CacheError(
                f"this cache holds {self.storage.keys.dtype} and was given {keys.dtype}: the model's precision changed; "
                "reset() the cache and feed the text again"
            )

    def rotary(self, length: int) -> Rotary | None:
        """This layer's rotation in a text of `length` tokens, if it has one."""
        return None if self.facts.rotary is None else self.facts.rotary(length)

    def choose(self, plan: Plan, stream: Stream, length: int) -> Tensor | None:
        """What stays of the pool, see `choice.choose`; evidence that waited for a crop is counted first."""
        rule = self.ledger.rule
        moment = stream.moment()
        if not isinstance(plan.attention, Causal) or stream.real is None or self.scoring is None:
            return choose(rule, plan.pool, plan.new, moment, self.facts.index, _nothing)
        rotary = self.rotary(length)
        scene = Scene(plan.attention, *self.storage.read(), rotary, self.scoring, stream.real)
        self.evidence.accept(scene, self._looks_back())
        slots = choose(
            rule, plan.pool, plan.new, moment, self.facts.index, partial(self.evidence.view, scene)
        )
        self.evidence.chosen(final=rule.policy.kind == "prompt" and not moment.in_prompt)
        return slots

    def _looks_back(self) -> int:
        budget = self.ledger.rule.budget
        return 0 if budget is None else self.ledger.rule.policy.window(budget)

    def open(self) -> None:
        """Before a forward: make a rectangle of heads that hold different numbers."""
        if (counts := self.ledger.counts) is not None and not self.is_open:
            self.storage.open(counts)
            self.evidence.open(counts)
        self.is_open = True

    def evict(self, slots: Tensor | None, *, empties: bool) -> None:
        """Keep only `slots [batch, heads, kept]` of what is held; -1 is an empty slot."""
        if slots is None:
            return
        ragged = self.ledger.rule.across_heads
        self.storage.gather(slots, empties=empties or ragged)
        self.evidence.gather(slots)
        if ragged:
            self.storage.pack(slots >= 0, self.ledger.total)
            self.evidence.pack(slots >= 0, self.ledger.total)
            self.is_open = False

    def reorder(self, slots: Tensor) -> None:
        """Hold the same entries in the order of `slots [batch, heads, kept]`."""
        self.storage.gather(slots, empties=False)
        self.evidence.gather(slots)

    def trim(self, entries: int) -> None:
        """Forget the newest `entries`."""
        if self.is_initialized:
            self.storage.trim(entries)
            self.evidence.trim(entries)

    def select_rows(self, rows: Tensor) -> None:
        self.storage.select_rows(rows)
        self.evidence.select_rows(rows)

    def clear(self) -> None:
        self.storage.clear()
        self.evidence.clear()
        self.incoming = None
        self.is_open = True

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor owned."""
        return self.storage.named_tensors() | self.evidence.named_tensors()

    def nbytes(self) -> int:
        return sum(t.untyped_storage().nbytes() for t in self.named_tensors().values())

    def restore(self, tensors: dict[str, Tensor], *, is_open: bool) -> None:
        """As `named_tensors()` had it, where this layer computes."""
        here = {name: x.to(self.facts.device) for name, x in tensors.items()}
        self.clear()
        self.storage.keys, self.storage.values = here.pop("keys", None), here.pop("values", None)
        self.evidence.restore(here)
        self.is_open = is_open

    # transformers' protocol for one layer

    @property
    def is_initialized(self) -> bool:  # type: ignore[override]
        return self.storage.keys is not None

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """What is stored: unrotated, or rotated once to the index in the text, as the ledger's rule says."""
        return self.storage.keys

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        return self.storage.values

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]
        return self.stream.recording or not (self.stream.evicted or self.stream.remembers)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare: storage takes its shape from the first entries."""

    def get_seq_length(self) -> int:
        return self.stream.columns

    def get_max_length(self) -> int:
        """-1: a stream of any length passes through."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.ledger.kept + query_length, 0

    def activate_past_recording(self) -> None:
        self.record_past = True

    @property
    def record_past(self) -> bool:
        """Whether eviction waits for the next crop; one state for the whole cache. generate sets it layer by layer."""
        return self.stream.recording

    @record_past.setter
    def record_past(self, value: bool) -> None:
        self.stream.recording = value


def _nothing(*_: object) -> dict[str, Any]:
    """The evidence of a policy that chooses by index alone."""
    return {}
