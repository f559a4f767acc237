"""The model `sinkpin` of lm-evaluation-harness: its tasks, answered from a bounded cache.

`arguments` reads `--model_args`, `model` is the class, `__main__` is for releases of lm-eval that look for no plug-ins.
The class is imported, and its name given to lm-eval, when it is asked for: `from sinkpin.evaluate.lm_eval import SinkpinLM`.

Not here: tasks, metrics and result files, all of which are lm-eval's.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sinkpin.evaluate.lm_eval.model import SinkpinLM

__all__ = ["SinkpinLM"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sinkpin.evaluate.lm_eval import model

    return getattr(model, name)
