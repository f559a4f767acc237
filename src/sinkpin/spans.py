"""A span `(start, stop)` of token indices, and several of them as one ascending list. Not here: what they mean."""

from collections.abc import Iterable

Span = tuple[int, int]


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same indices as ascending, disjoint spans that do not touch. Each has `start < stop`."""
    out: list[Span] = []
    for start, stop in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(stop, out[-1][1]))
        else:
            out.append((start, stop))
    return out


def count(spans: Iterable[Span]) -> int:
    """How many indices disjoint spans have."""
    return sum(stop - start for start, stop in spans)
