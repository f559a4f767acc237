"""What no policy may evict: the first real tokens of each row, and the spans the caller names.

Pins are index ranges among a row's real tokens (padding is never counted), so a pin can be named before its token
has been seen. Everything the attention and the eviction need of them follows from one count, `met`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sinkpin.errors import InputError
from sinkpin.spans import Span, count, merged


@dataclass(frozen=True)
class Pins:
    """Merged, ascending, disjoint spans `(start, stop)`: one tuple for all rows, or one per row."""

    rows: tuple[tuple[Span, ...], ...]
    per_row: bool

    @classmethod
    def read(cls, sinks: int, pins: Sequence[object] | None = None) -> "Pins":
        """Unite the first `sinks` tokens with `pins`: a list of spans, or one list of spans per row.

        Raises `InputError` for a negative count or a span that is not `0 <= start < stop`.
        """
        if isinstance(sinks, bool) or not isinstance(sinks, int) or sinks < 0:
            raise InputError(
                f"sinks={sinks!r}: the number of pinned first tokens is a whole number, zero or more"
            )
        first = [(0, sinks)] if sinks else []
        if pins is not None and (not isinstance(pins, Sequence) or isinstance(pins, str)):
            raise InputError(
                f"pins={pins!r}: give a list of spans, [(start, stop), …], or one such list per row"
            )
        given = list(pins or [])
        if _is_span(given):
            raise InputError(
                f"pins={pins!r} is one span: give a list of them, pins=[({given[0]}, {given[1]})]"
            )
        per_row = bool(given) and not _is_span(given[0])
        lists = [_list(row) for row in given] if per_row else [given]
        return cls(tuple(tuple(merged(first + [_span(s) for s in row])) for row in lists), per_row)

    @property
    def alike(self) -> bool:
        """Whether all rows have the same pins."""
        return all(row == self.rows[0] for row in self.rows)

    @property
    def most(self) -> int:
        """The most entries that any row pins."""
        return max(count(row) for row in self.rows)

    def tensor(self, batch: int, device: torch.device) -> Tensor:
        """int64 `[batch, spans, 2]`; rows with fewer spans are filled with empty ones.

        Raises `InputError` if there is one list per row but not as many rows.
        """
        if self.per_row and len(self.rows) != batch:
            raise InputError(
                f"pins for {len(self.rows)} rows, but the batch has {batch}: give one list per row, or one for all"
            )
        most = max(len(row) for row in self.rows)
        filled = [[*row, *[(0, 0)] * (most - len(row))] for row in self.rows]
        out = torch.tensor(filled, dtype=torch.int64, device=device).reshape(len(filled), most, 2)
        return out if self.per_row else out.expand(batch, -1, -1).contiguous()


def met(spans: Tensor, index: Tensor) -> Tensor:
    """How many pins have an index of at most `index`. `spans [batch, s, 2]`, `index [batch, ...]` -> like `index`."""
    shape = (spans.shape[0],) + (1,) * (index.ndim - 1) + (spans.shape[1],)
    start, stop = spans[..., 0].reshape(shape), spans[..., 1].reshape(shape)
    return ((index[..., None] + 1).minimum(stop) - start).clamp(min=0).sum(-1)


def pinned(spans: Tensor, index: Tensor) -> Tensor:
    """Whether each `index [batch, ...]` is a pin; negative ones (empty slots, padding) are not."""
    return met(spans, index) > met(spans, index - 1)


def _is_span(item: object) -> bool:
    return isinstance(item, Sequence) and len(item) == 2 and all(type(x) is int for x in item)


def _span(item: object) -> Span:
    if not isinstance(item, Sequence) or not _is_span(item) or not 0 <= item[0] < item[1]:
        raise InputError(f"pin {item!r} is not a span (start, stop) of token indices with 0 <= start < stop")
    return item[0], item[1]


def _list(row: object) -> list[object]:
    if not isinstance(row, Sequence) or isinstance(row, str):
        raise InputError(f"pins: {row!r} is neither a span (start, stop) nor one row's list of spans")
    return list(row)
