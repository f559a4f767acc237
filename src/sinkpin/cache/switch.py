"""Which attention implementation a model's configuration names while forwards of ours are under way.

A configuration may be shared by several models, and a model by several threads, so what is turned is the
configuration: by the first forward that enters, back by the last that leaves. Whoever meets our functions without
being one of ours is passed on to what the configuration named before.
"""

import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sinkpin.cache import compat


@dataclass
class _Turned:
    config: Any
    before: str | None
    holders: set[Hashable] = field(default_factory=set)


_turned: dict[int, _Turned] = {}
_lock = threading.Lock()


def turn(configs: Iterable[Any], holder: Hashable) -> None:
    """Name our implementation in `configs` until `holder` releases them."""
    with _lock:
        for config in configs:
            if id(config) not in _turned:
                _turned[id(config)] = _Turned(config, compat.get_implementation(config))
                compat.set_implementation(config, compat.IMPLEMENTATION)
            _turned[id(config)].holders.add(holder)


def release(configs: Iterable[Any], holder: Hashable) -> None:
    """Name again what was named before, where no one else holds on; a name that someone set meanwhile stays."""
    with _lock:
        for config in configs:
            entry = _turned.get(id(config))
            if entry is not None:
                entry.holders.discard(holder)
                if not entry.holders:
                    del _turned[id(config)]
                    if compat.get_implementation(config) == compat.IMPLEMENTATION:
                        compat.set_implementation(config, entry.before)


def before(config: Any) -> str | None:
    """What a configuration names when it is not ours."""
    with _lock:
        entry = _turned.get(id(config))
        return compat.get_implementation(config) if entry is None else entry.before
