"""What a cache knows of the token stream itself, the same for all layers: how much was fed, and to which row.

Columns are positions of the input batch, padding included; `transformers` slices by them. Indices count a row's real
tokens; everything else goes by those. Mixing up the two is the classic bug of this field.
"""

from typing import Any

import torch
from torch import Tensor

from sinkpin.cache.choice import Moment
from sinkpin.errors import CacheError, InputError
from sinkpin.policies.pins import Pins


class Stream:
    """Per-row facts. `real`: int64 `[batch]`, real tokens fed. `spans`: int64 `[batch, s, 2]`, the pins."""

    def __init__(self, pins: Pins, prompt_ends: int | None = None, *, remembers: bool = False) -> None:
        self.pins = pins
        self.prompt_ends = prompt_ends  # at how many columns, for a policy that chooses then
        self.remembers = remembers  # evidence is counted that could not be taken back without a recording
        self.clear()

    def clear(self) -> None:
        self.real: Tensor | None = None
        self.spans: Tensor | None = None
        self.columns = 0
        self.padded = False
        self.under_way = False  # between the door's entry and exit of a forward
        self.recording = False  # eviction waits for the next crop
        self.uncommitted = 0  # columns fed since then
        self.evicted = False  # whether any entry was ever dropped
        self.prompt: Tensor | None = None  # real tokens [batch] when the prompt ended
        self.peak = 0  # the most bytes the cache ever owned, forwards included
        self.longest = 0  # an upper bound of real.max() that costs no synchronisation
        self.solid = 0  # how many of the newest columns are real in every row: how far a crop can be counted

    @property
    def croppable(self) -> int:
        """How many of the newest columns can be taken back without anything missing."""
        if self.recording:
            return self.uncommitted if self.evicted or self.remembers else self.columns
        return 0 if self.evicted or self.remembers else self.columns

    def moment(self) -> Moment:
        """What a choice made now depends on besides the entries."""
        assert self.spans is not None
        in_prompt = self.prompt_ends is not None and self.columns < self.prompt_ends
        return Moment(self.spans, self.padded, in_prompt, self.prompt)

    def settled(self) -> None:
        """A forward or a crop has ended: a prompt that is in by now is over."""
        if self.prompt_ends is not None and self.prompt is None and self.columns >= self.prompt_ends:
            self.prompt = None if self.real is None else self.real.clone()

    @property
    def batch(self) -> int | None:
        return None if self.real is None else self.real.shape[0]

    def admit(self, batch: int, new: int, device: torch.device, mask: Tensor | None) -> Tensor:
        """Take in `new` columns and return the index of each, int64 `[batch, new]`, -1 for padding.

        `mask [batch, columns so far + new]` marks real tokens with 1; None means that all are. Raises `InputError`
        for right padding, a mask of another width, or one that contradicts what was fed before.
        """
        if self.real is None or self.spans is None:
            self.spans = self.pins.tensor(batch, device)
            self.real = torch.zeros(batch, dtype=torch.int64, device=device)
        elif batch != self.batch:
            raise InputError(
                f"this cache holds {self.batch} rows and was given {batch}: use batch_select_indices or "
                "batch_repeat_interleave first, or a new cache"
            )
        real = self.real
        steps = torch.arange(new, device=device)
        own = self._own(mask, new, device)
        if own is None:
            index = real[:, None] + steps
            self.real = real + new
            self.longest += new
            self.solid += new
        else:
            index = torch.where(own, real[:, None] + own.cumsum(-1) - 1, -1)
            self.real = real + own.sum(-1)
            self.padded = True
            self.longest = int(self.real.max())
            full = own.all(0)
            self.solid = self.solid + new if full.all() else int(full.flip(0).cumprod(0).sum())
        self.columns += new
        self.uncommitted += new
        return index

    def _own(self, mask: Tensor | None, new: int, device: torch.device) -> Tensor | None:
        """The mask of the new columns, bool `[batch, new]`, or None where all are real."""
        assert self.real is not None
        if mask is None:
            return None
        if self.columns and mask.shape == (self.batch, new):
            raise InputError(
                f"attention_mask covers {new} columns, but {self.columns} were fed before: either the prompt that this "
                "cache already holds is being fed again (append new tokens to it), or the mask lacks what came before"
            )
        if mask.shape != (self.batch, self.columns + new):
            raise InputError(
                f"attention_mask is {list(mask.shape)}, but {self.columns} columns were fed and {new} are new: "
                f"its shape must be [{self.batch}, {self.columns + new}]"
            )
        mask = mask.to(device).bool()
        own, before = mask[:, self.columns :], mask[:, : self.columns].sum(-1)
        if self.columns and not torch.equal(before, self.real):
            raise InputError(
                f"attention_mask says that rows hold {before.tolist()} real tokens, this cache was fed "
                f"{self.real.tolist()}: the mask must repeat that of the earlier forwards"
            )
        if own.all():
            return None
        begun = (self.real[:, None] + own.cumsum(-1)) > 0
        if (begun[:, -1] & ~own[:, -1]).any():
            raise InputError(
                "attention_mask pads on the right: the next token would be predicted from padding; pad on the left "
                "(tokenizer.padding_side = 'left')"
            )
        return own

    def withdraw(self, columns: int) -> None:
        """Take back the newest `columns`, all of which must be real. Raises `CacheError` otherwise."""
        assert self.real is not None
        if columns > self.solid:
            raise CacheError(
                f"cannot crop {columns} columns: only the newest {self.solid} are known to hold no padding; "
                "reset() the cache and feed the text again"
            )
        self.real = self.real - columns
        self.columns -= columns
        self.longest -= columns
        self.solid -= columns
        self.uncommitted -= min(columns, self.uncommitted)
        if self.prompt is not None and self.prompt_ends is not None:
            ended = self.columns >= self.prompt_ends
            self.prompt = self.prompt.minimum(self.real) if ended else None

    def select_rows(self, rows: Tensor) -> None:
        if self.real is not None and self.spans is not None:
            rows = rows.to(self.real.device)
            self.real, self.spans = self.real.index_select(0, rows), self.spans.index_select(0, rows)
            self.prompt = None if self.prompt is None else self.prompt.index_select(0, rows)
            if self.padded:
                self.longest = int(self.real.max())

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor owned."""
        named = {"real": self.real, "spans": self.spans, "prompt": self.prompt}
        return {name: x for name, x in named.items() if x is not None}

    def numbers(self) -> dict[str, Any]:
        """Everything else that a saved cache needs."""
        names = ("columns", "padded", "longest", "solid", "evicted", "peak")
        return {name: getattr(self, name) for name in names}

    def restore(self, numbers: dict[str, Any], tensors: dict[str, Tensor], device: torch.device) -> None:
        """As `numbers()` and `named_tensors()` had it."""
        self.clear()
        self.__dict__.update(numbers)
        self.__dict__.update({name: x.to(device) for name, x in tensors.items()})
