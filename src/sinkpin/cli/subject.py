"""`plan`: the model that an answer is of, what tells it from others, and running out of its memory.

Not here: finding and loading it (`load`).
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sinkpin.cli import load
from sinkpin.errors import ModelError


def identity(loaded: load.Loaded) -> dict[str, Any]:
    """What an answer is of."""
    import torch
    import transformers

    import sinkpin
    from sinkpin.sinks.identity import model_hash, tokenizer_hash

    return {
        "model": loaded.name,
        "model_hash": model_hash(loaded.model),
        "tokenizer_hash": tokenizer_hash(loaded.tokenizer),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "device": loaded.model.device.type,
        "versions": {
            "sinkpin": sinkpin.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }


@contextmanager
def memory_told(loaded: load.Loaded, length: int) -> Iterator[None]:
    """Running out of memory in here is one line."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{loaded.name} runs out of memory on {loaded.model.device} with passages of {length:,} tokens: use a shorter "
            "--length, a smaller --chunk or --dtype bfloat16"
        ) from error
