"""What a peer has to offer so that the same measurements can be made of it: two kinds of stream.

A stream is one text being read with one cache. `dense()` gives the peer's own unbounded one, `evicting()` the bounded
one; everything else (`measure.py`) is written once, against these few methods. Imports nothing: the peers' environments
span three years of packages.
"""

from typing import Any, Protocol


class Unavailable(Exception):  # noqa: N818 - not an error: an answer
    """A peer cannot do or show this; the message is the reason, and goes into the row."""


class Stream(Protocol):
    def feed(self, ids: list[int]) -> None:
        """Read a prompt, or a further turn, the way this peer reads one."""

    def step(self, token: int) -> None:
        """Read one token in a decode step. An engine that only decodes its own choice reads that instead."""

    def nll(self, token: int) -> float:
        """The loss in nats of `token` as the next one."""

    def held(self) -> int:
        """Entries now held, of the fullest layer and head."""

    def nbytes(self) -> int:
        """Bytes of the memory behind the cache, whether or not all of it is in use."""

    def sinks_held(self) -> float:
        """Of the first four tokens, the share still held: mean over layers and KV heads."""

    def close(self) -> None:
        """Give back what the stream holds."""


class Peer(Protocol):
    name: str
    settings: dict[str, Any]
    notes: list[str]  # what a reader has to know to take the numbers for what they are
    never_in_steps: str  # why decode steps evict nothing; empty where they do
    granularity: int  # entries come and go in so many: what it may hold above its budget

    def versions(self) -> dict[str, str]: ...

    def dense(self, room: int) -> Stream:
        """An unbounded stream, of at most `room` tokens where an engine has to know."""

    def evicting(self, budget: int, interval: int, prompt: int) -> Stream:
        """A stream of `budget` entries that evicts every `interval` steps (the peer's nearest to it).

        `prompt` is the length of the first `feed`: some peers take a ratio instead of a size.
        """

    def recent_loss(self, ids: list[int]) -> float:
        """Mean loss of `ids[1:]` with the dense cache: the same for every peer, or the weights are not."""
