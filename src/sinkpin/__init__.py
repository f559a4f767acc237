"""sinkpin: pin the attention sinks, bound the KV cache, prove it on your model.

Public names are resolved on first use, so `import sinkpin` costs no torch and patches nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sinkpin.cache.bounded import BoundedCache
    from sinkpin.errors import SinkpinError
    from sinkpin.evaluate.arms import Arm
    from sinkpin.evaluate.compare import compare
    from sinkpin.sinks.detect import detect
    from sinkpin.sinks.entropy import EntropyTracker

__version__ = "0.1.0"

_HOMES = {
    "Arm": "sinkpin.evaluate.arms",
    "BoundedCache": "sinkpin.cache.bounded",
    "EntropyTracker": "sinkpin.sinks.entropy",
    "SinkpinError": "sinkpin.errors",
    "compare": "sinkpin.evaluate.compare",
    "detect": "sinkpin.sinks.detect",
}
__all__ = ["Arm", "BoundedCache", "EntropyTracker", "SinkpinError", "__version__", "compare", "detect"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sinkpin' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
