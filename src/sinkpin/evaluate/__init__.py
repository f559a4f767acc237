"""Running one text through many caches, and what is kept of the run.

`arms` says what is compared, `scoring` gets each token's loss, `compare` runs the arms and makes the record,
`classic` holds the four arms of the StreamingLLM paper as a library call. `record` is the result, on disk in a
`folder` that follows a `schema`; `text` (`table`, `sentence`) and `picture` (`facets`, `panel`, `labels`) show it.
These need neither torch nor transformers, so a result can be read and drawn on any machine; the public names below
are therefore imported only when they are asked for.

Not here: intervals and verdicts (`ci95`, `kl` and `verdict` of a record stay empty until something measures
them).
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sinkpin.evaluate.arms import Arm
    from sinkpin.evaluate.classic import classic
    from sinkpin.evaluate.compare import compare
    from sinkpin.evaluate.record import Comparison

__all__ = ["Arm", "Comparison", "classic", "compare"]

_HOME = {
    "Arm": "sinkpin.evaluate.arms",
    "Comparison": "sinkpin.evaluate.record",
    "classic": "sinkpin.evaluate.classic",
    "compare": "sinkpin.evaluate.compare",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Importing `evaluate/compare.py` makes Python bind the *module* to the name `compare` in this package,
    after which `from sinkpin.evaluate import compare` would depend on what was imported before. The function
    wins, always; `from sinkpin.evaluate.compare import …` reaches the module as usual.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and _HOME.get(name) == value.__name__:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
