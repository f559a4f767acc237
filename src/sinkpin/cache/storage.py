"""Where one layer's keys and values lie: append, gather, read.

This is the plain kind, two dense tensors. Quantised or tiered kinds need the same few methods and nothing else would
change. Not covered: which entry is which token (`ledger`), and whether keys are rotated (`layer`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkpin.cache.ragged import opened, packed


class Storage:
    """Keys `[batch, kv_heads, entries, key_dim]` and values `[batch, kv_heads, entries, value_dim]` of one layer;
    `[batch, total, …]` each while packed (see `ragged`)."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add the entries of one forward behind those held. They keep their gradients until `settle`."""
        if self.keys is None or self.values is None:
            # A copy even of the first chunk: the model's own tensor may be a view of something far larger.
            self.keys, self.values = keys.clone(), values.clone()
        else:
            self.keys = torch.cat((self.keys, keys), dim=2)
            self.values = torch.cat((self.values, values), dim=2)

    def settle(self) -> None:
        """The forward has attended: hold values only, not the graph that made them."""
        keys, values = self.read()
        self.keys, self.values = keys.detach(), values.detach()

    def read(self) -> tuple[Tensor, Tensor]:
        """Everything held."""
        assert self.keys is not None and self.values is not None, "read before append"
        return self.keys, self.values

    def gather(self, slots: Tensor, *, empties: bool) -> None:
        """Hold only `slots [batch, 1 or kv_heads, kept]`, in that order, in tensors of exactly that size.

        `empties`: some slots may be -1; those hold zeros, never what lay there before.
        """
        keys, values = self.read()
        self.keys, self.values = _taken(keys, slots, empties), _taken(values, slots, empties)

    def put(self, slot: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write one new entry `[batch, kv_heads, 1, …]` over the one at `slot [1]`, the same in all rows and heads."""
        old_keys, old_values = self.read()
        slot = slot.to(old_keys.device)
        self.keys = writable(old_keys).index_copy_(2, slot, keys)
        self.values = writable(old_values).index_copy_(2, slot, values)

    def swap(self, where: "Place", keys: Tensor, values: Tensor) -> None:
        """Write one new entry `[batch, kv_heads, 1, …]`, in each head at its place."""
        old_keys, old_values = self.read()
        self.keys, self.values = where.put(old_keys, keys), where.put(old_values, values)

    def pack(self, valid: Tensor, total: int) -> None:
        """Between forwards: lay the valid entries of unequal heads behind one another."""
        keys, values = self.read()
        valid = valid.to(keys.device)
        self.keys, self.values = packed(keys, valid, total), packed(values, valid, total)

    def open(self, counts: Tensor) -> None:
        """For a forward: make a rectangle of heads with `counts [batch, kv_heads]` entries."""
        keys, values = self.read()
        counts = counts.to(keys.device)
        self.keys, self.values = opened(keys, counts), opened(values, counts)

    def trim(self, entries: int) -> None:
        """Forget the newest `entries`."""
        keys, values = self.read()
        stay = keys.shape[2] - entries
        self.keys, self.values = keys[:, :, :stay].clone(), values[:, :, :stay].clone()

    def select_rows(self, rows: Tensor) -> None:
        """Hold the batch rows `rows`, in that order; a row may be named several times."""
        if self.keys is not None and self.values is not None:
            self.keys = self.keys.index_select(0, rows.to(self.keys.device))
            self.values = self.values.index_select(0, rows.to(self.values.device))

    def clear(self) -> None:
        self.keys = self.values = None

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor owned."""
        return {} if self.keys is None or self.values is None else {"keys": self.keys, "values": self.values}


@dataclass(frozen=True)
class Place:
    """Where the new entry of each head goes: `slot [batch, 1 or kv_heads, 1]`, but nowhere in heads where `nowhere`, of the
    same shape, holds. None: somewhere in all of them."""

    slot: Tensor
    nowhere: Tensor | None

    def put(self, x: Tensor, new: Tensor) -> Tensor:
        """`x [batch, heads, entries, …]` with `new [batch, heads, 1, …]` at its place, itself where it may be written."""
        x, at = writable(x), _like(self.slot, new)
        if self.nowhere is not None:
            new = torch.where(_like(self.nowhere, new), x.gather(2, at), new)
        return x.scatter_(2, at, new)


def _like(x: Tensor, entry: Tensor) -> Tensor:
    """`x [batch, 1 or heads, 1]` for each number of `entry [batch, heads, 1, …]`, where that lies."""
    return x.to(entry.device).view(*x.shape, *[1] * (entry.ndim - 3)).expand_as(entry)


def writable(x: Tensor) -> Tensor:
    """`x`, or a copy where `x` was made under `torch.inference_mode()`, which torch lets nobody change outside it."""
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x


def _taken(x: Tensor, slots: Tensor, empties: bool) -> Tensor:
    slots = slots.to(x.device)
    if slots.shape[0] == slots.shape[1] == 1:  # one order for all: much faster than indexing row by row
        out = x.index_select(2, slots[0, 0].clamp(min=0))
    else:
        batch = torch.arange(x.shape[0], device=x.device)[:, None, None]
        head = torch.arange(x.shape[1], device=x.device)[None, :, None]
        out = x[batch, head, slots.clamp(min=0)]
    return out.masked_fill_((slots < 0)[..., None], 0) if empties else out
