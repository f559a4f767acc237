"""One attention layer of a bounded cache: its storage, its ledger, and what happens between `update` and attention.

transformers calls `update` with the new keys and values and, right after, its attention function. The first call only
hands them over; everything is done in the second, where the queries are there too.
"""

from typing import Any

from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from sinkpin.cache.anatomy import LayerAnatomy
from sinkpin.cache.ledger import Ledger, Plan
from sinkpin.cache.storage import Storage
from sinkpin.cache.stream import Stream
from sinkpin.errors import CacheError


class BoundedLayer(CacheLayerMixin):
    """What `cache.layers[i]` is. Its own methods follow transformers' cache protocol; the cache drives the rest."""

    is_compileable = False
    is_sliding = False

    def __init__(self, stream: Stream, facts: LayerAnatomy, ledger: Ledger) -> None:
        self.stream = stream
        self.facts = facts
        self.ledger = ledger
        self.storage = Storage()
        self.incoming: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take the new entries `[batch, kv_heads, new, …]`, unrotated; they come back as they are."""
        if not self.stream.under_way:
            raise CacheError(
                "a forward reached this cache without passing its model's door: the cache is closed, or was given to "
                "another model or to a part of one; build BoundedCache(model) for the model that runs"
            )
        self.incoming = (key_states, value_states)
        return key_states, value_states

    def attend(
        self, plan: Plan, q: Tensor, keys: Tensor, values: Tensor, length: int, scaling: float
    ) -> Tensor:
        """Attention of the new queries, then eviction. Returns `[batch, new, heads, value_dim]`."""
        if self.incoming is None or self.incoming[0] is not keys or self.incoming[1] is not values:
            raise CacheError(
                f"layer {self.facts.index} changed its keys between the cache and attention: sinkpin would attend to "
                "other keys than the model; this model is not supported"
            )
        self.incoming = None
        self.storage.append(keys, values)
        rotary = None if self.facts.rotary is None else self.facts.rotary(length)
        out = plan.attention.attend(q, *self.storage.read(), rotary, scaling)
        return out.transpose(1, 2).to(q.dtype).contiguous()

    def evict(self, slots: Tensor | None, *, empties: bool) -> None:
        """Keep only `slots` of what is held."""
        if slots is not None:
            self.storage.gather(slots, empties=empties)

    # transformers' protocol for one layer

    @property
    def is_initialized(self) -> bool:  # type: ignore[override]
        return self.storage.keys is not None

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """What is stored: unrotated."""
        return self.storage.keys

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        return self.storage.values

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]
        return self.stream.recording or not self.stream.evicted

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
