"""sinkpin itself, measured as its peers are, against `DynamicCache` of the same transformers.

    python benchmarks/peers/peer_sinkpin.py --policy h2o
    python benchmarks/peers/peer_sinkpin.py --compile --only decode

Runs in the ordinary environment. With `--compile` the single steps of both are compiled, with weights frozen and
packed. Not here: `sinkpin bench`, which measures sinkpin in more ways; this script exists so that a row of it stands
beside the peers' in one form.
"""

import argparse
from typing import Any

import torch
import transformers
from packaging.version import Version
from torch._inductor import config as inductor

import report
import sinkpin
from measure import SINKS
from sizes import Sizes
from torch_peer import nll_of, storage_bytes

CACHE = "cache" if Version(transformers.__version__) >= Version("5.24.dev0") else "past_key_values"


class Reading:
    """`one` is fed single tokens, `many` everything else: compiling for each length of a prompt takes minutes."""

    def __init__(self, one: Any, many: Any, cache: Any) -> None:
        self.one, self.many, self.cache = one, many, cache
        self.logits: torch.Tensor | None = None

    def feed(self, ids: list[int]) -> None:
        with torch.inference_mode():
            model = self.one if len(ids) == 1 else self.many
            out = model(torch.tensor([ids]), logits_to_keep=1, **{CACHE: self.cache})
        self.logits = out.logits[0, -1]

    def step(self, token: int) -> None:
        self.feed([token])

    def nll(self, token: int) -> float:
        return nll_of(self.logits, token)

    def held(self) -> int:
        if isinstance(self.cache, sinkpin.BoundedCache):
            return max(self.cache.kept(layer) for layer in self.cache.bounded_layers)
        return self.cache.get_seq_length()

    def nbytes(self) -> int:
        if isinstance(self.cache, sinkpin.BoundedCache):
            return self.cache.nbytes()
        return storage_bytes(x for layer in self.cache.layers for x in (layer.keys, layer.values))

    def sinks_held(self) -> float:
        share = []
        for layer in self.cache.bounded_layers:
            origins = self.cache.origins(layer)
            share.append(((origins >= 0) & (origins < SINKS)).sum(-1).float().mean() / SINKS)
        return float(torch.stack(share).mean())

    def close(self) -> None:
        if isinstance(self.cache, sinkpin.BoundedCache):
            self.cache.close()


class Sinkpin:
    never_in_steps = ""
    granularity = 1

    def __init__(self, policy: str, frame: str | None, *, compiled: bool, sizes: Sizes) -> None:
        torch.set_num_threads(sizes.threads)
        self.policy, self.frame = policy, frame
        self.name = "-".join(
            ["sinkpin", policy, *([frame] if frame else []), *(["compiled"] if compiled else [])]
        )
        self.settings: dict[str, Any] = {"policy": policy, "frame": frame, "compiled": compiled}
        self.notes = ["evicts at every step; the interval asked for is not its own"]
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            report.DATA / "model", dtype=getattr(torch, sizes.dtype)
        ).eval()
        if compiled:
            inductor.freezing = inductor.max_autotune = True
        self.forward = torch.compile(self.model) if compiled else self.model

    def versions(self) -> dict[str, str]:
        return report.versions("sinkpin", "transformers", "torch")

    def dense(self, room: int) -> Reading:
        return Reading(self.forward, self.model, transformers.DynamicCache())

    def evicting(self, budget: int, interval: int, prompt: int) -> Reading:
        cache = sinkpin.BoundedCache(
            self.model,
            budget,
            self.policy,
            sinks=SINKS,
            frame=self.frame,  # type: ignore[arg-type]
        )
        self.notes += [note for note in cache.notes if note not in self.notes]
        return Reading(self.forward, self.model, cache)

    def recent_loss(self, ids: list[int]) -> float:
        with torch.inference_mode():
            batch = torch.tensor([ids])
            return float(self.model(batch, labels=batch).loss)


def make(arguments: argparse.Namespace, sizes: Sizes) -> Sinkpin:
    return Sinkpin(arguments.policy, arguments.frame, compiled=arguments.compile, sizes=sizes)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", default="streaming", help="of `sinkpin policies` (streaming)")
    parser.add_argument("--frame", choices=["slots", "original"], help="of the kept keys (the policy's own)")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model, for both runs")


if __name__ == "__main__":
    report.main(make, __doc__, options)
