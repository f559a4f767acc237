"""transformers without any eviction: `DynamicCache`, and recomputing the window at every step.

Recomputation is the baseline of the StreamingLLM paper: no cache, the last `budget` tokens are read anew for every
token. It forgets like a window, needs no sinks, and costs what a prompt of that length costs, each time.
"""

import argparse
from typing import Any

import torch
import transformers
from packaging.version import Version

import report
from sizes import Sizes
from streams import Unavailable
from torch_peer import nll_of, storage_bytes

CACHE = "cache" if Version(transformers.__version__) >= Version("5.24.dev0") else "past_key_values"


class Dense:
    """A text read with transformers' own unbounded cache."""

    def __init__(self, model: Any) -> None:
        self.model, self.cache = model, transformers.DynamicCache()
        self.logits: torch.Tensor | None = None

    def feed(self, ids: list[int]) -> None:
        with torch.inference_mode():
            out = self.model(torch.tensor([ids]), logits_to_keep=1, **{CACHE: self.cache})
        self.logits = out.logits[0, -1]

    def step(self, token: int) -> None:
        self.feed([token])

    def nll(self, token: int) -> float:
        return nll_of(self.logits, token)

    def held(self) -> int:
        return self.cache.get_seq_length()

    def nbytes(self) -> int:
        return storage_bytes(x for layer in self.cache.layers for x in (layer.keys, layer.values))

    def sinks_held(self) -> float:
        return 1.0

    def close(self) -> None:
        self.cache = transformers.DynamicCache()


class Recompute:
    """A text of which the last `window` tokens are read anew at every step."""

    def __init__(self, model: Any, window: int) -> None:
        self.model, self.window = model, window
        self.recent: list[int] = []
        self.logits: torch.Tensor | None = None

    def feed(self, ids: list[int]) -> None:
        self.recent = (self.recent + ids)[-self.window :]
        with torch.inference_mode():
            out = self.model(torch.tensor([self.recent]), logits_to_keep=1, use_cache=False)
        self.logits = out.logits[0, -1]

    def step(self, token: int) -> None:
        self.feed([token])

    def nll(self, token: int) -> float:
        return nll_of(self.logits, token)

    def held(self) -> int:
        return len(self.recent)

    def nbytes(self) -> int:
        return 0  # nothing is kept between steps but the ids

    def sinks_held(self) -> float:
        raise Unavailable("recomputation holds no keys: its window's first tokens serve as sinks")

    def close(self) -> None:
        self.recent = []


class Transformers:
    name = "transformers-recompute"
    never_in_steps = ""
    granularity = 1

    def __init__(self, sizes: Sizes) -> None:
        torch.set_num_threads(sizes.threads)
        self.settings: dict[str, Any] = {"dense": "DynamicCache", "evicting": "recompute of the window"}
        self.notes = ["the evicting run is recomputation: it holds tokens, not keys, and `held` counts those"]
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            report.DATA / "model", dtype=getattr(torch, sizes.dtype)
        ).eval()

    def versions(self) -> dict[str, str]:
        return report.versions("transformers", "torch")

    def dense(self, room: int) -> Dense:
        return Dense(self.model)

    def evicting(self, budget: int, interval: int, prompt: int) -> Recompute:
        return Recompute(self.model, budget)

    def recent_loss(self, ids: list[int]) -> float:
        with torch.inference_mode():
            batch = torch.tensor([ids])
            return float(self.model(batch, labels=batch).loss)


def make(arguments: argparse.Namespace, sizes: Sizes) -> Transformers:
    return Transformers(sizes)


if __name__ == "__main__":
    report.main(make, __doc__)
