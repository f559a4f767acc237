"""OpenVINO GenAI's continuous batching pipeline, dense and with its cache eviction on.

Requests are added and stepped by hand, one token a step. The engine reads its own greedy choice, never a given token:
nothing can be scored while it evicts, since in a prompt, where it can score (echo with logprobs), it never evicts. Its
losses therefore serve only to check that the weights are the same. A second turn is what its chat does: the whole
history as a new prompt. Not covered: KVCrush, Adaptive R-KV, sparse attention, cache rotation (off by default).
"""

import argparse
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

import report
from sizes import Sizes
from streams import Unavailable

BLOCK = 32  # tokens of a block on a CPU; entries come and go in blocks, and every size is a multiple
LONG = 1_000_000  # new tokens allowed: never reached
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
UNSEEN = "no call feeds a given token while decoding, and nothing is evicted in a prompt"


class Reading:
    """One request of one pipeline; `feed` again starts a new request with the whole history."""

    def __init__(self, peer: "OpenVINO", eviction: Any) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        if eviction is not None:
            scheduler.use_cache_eviction = True  # without it the next line has no effect, and nothing says so
            scheduler.cache_eviction_config = eviction
        self.pipeline = genai.ContinuousBatchingPipeline(
            str(report.DATA / "openvino"), scheduler, "CPU", peer.properties
        )
        self.entry_bytes = peer.entry_bytes
        self.history: list[int] = []
        self.handle: Any = None
        self.requests = 0

    def feed(self, ids: list[int]) -> None:
        if self.handle is not None:
            self.handle.stop()
            self.pipeline.step()
        self.history += ids
        self.requests += 1
        prompt = openvino.Tensor(np.array([self.history], dtype=np.int64))
        options = genai.GenerationConfig(max_new_tokens=LONG, ignore_eos=True, do_sample=False)
        self.handle = self.pipeline.add_request(self.requests, prompt, options)
        while not self.handle.can_read():  # a long prompt takes several steps
            self.pipeline.step()
        self.handle.read()

    def step(self, token: int) -> None:
        self.history.append(token)  # only its length matters: what is read is the engine's own choice
        self.pipeline.step()
        if not self.handle.can_read():
            raise SystemExit(
                "OpenVINO made no token in a step: a step was not one token, so its time means nothing"
            )
        self.handle.read()

    def nll(self, token: int) -> float:
        raise Unavailable(UNSEEN)

    def held(self) -> int:
        metrics = self.pipeline.get_metrics()
        return round(metrics.cache_usage / 100 * metrics.cache_size_in_bytes / self.entry_bytes)

    def nbytes(self) -> int:
        return self.pipeline.get_metrics().cache_size_in_bytes

    def sinks_held(self) -> float:
        raise Unavailable(
            "the Python interface does not show which tokens are held; by design the first 32 always are"
        )

    def close(self) -> None:
        if self.handle is not None:
            self.handle.stop()
            self.pipeline.step()
        self.handle = self.pipeline = None


class OpenVINO:
    name = "openvino-genai"
    never_in_steps = ""
    granularity = BLOCK

    def __init__(self, sizes: Sizes) -> None:
        precision = PRECISIONS[sizes.dtype]
        self.properties = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,  # its own default on a CPU is 8 bits
            "INFERENCE_NUM_THREADS": sizes.threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self.settings: dict[str, Any] = {
            **self.properties,
            "start_size": BLOCK,
            "aggregation_mode": "NORM_SUM",
        }
        self.notes = [
            f"decodes its own greedy choice; the first {BLOCK} tokens are kept (the smallest it allows), not 4",
            f"held and bytes are the pool's, in blocks of {BLOCK} tokens; its pool grows with a prompt, and stays so",
        ]
        self.entry_bytes = _entry_bytes(4 if precision == "f32" else 2)

    def versions(self) -> dict[str, str]:
        return report.versions("openvino-genai", "openvino", "optimum-intel", "transformers")

    def dense(self, room: int) -> Reading:
        return Reading(self, None)

    def evicting(self, budget: int, interval: int, prompt: int) -> Reading:
        recent = max(BLOCK, budget // 4 // BLOCK * BLOCK)
        if budget % BLOCK or budget < 3 * BLOCK:
            raise SystemExit(
                f"a budget of {budget}: OpenVINO takes multiples of {BLOCK}, {3 * BLOCK} at the least"
            )
        self.settings["recent_size"] = recent
        return Reading(self, genai.CacheEvictionConfig(BLOCK, recent, budget, genai.AggregationMode.NORM_SUM))

    def recent_loss(self, ids: list[int]) -> float:
        pipeline = Reading(self, None).pipeline
        options = genai.GenerationConfig(
            max_new_tokens=1, echo=True, logprobs=1, ignore_eos=True, do_sample=False
        )
        handle = pipeline.add_request(0, openvino.Tensor(np.array([ids], dtype=np.int64)), options)
        while pipeline.has_non_finished_requests():
            pipeline.step()
        scores = handle.read_all()[0].generated_log_probs[1 : len(ids)]  # the first stands for no prediction
        return -sum(scores) / len(scores)


def _entry_bytes(value_bytes: int) -> int:
    import json

    config = json.loads((report.DATA / "model" / "config.json").read_text())
    return 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * value_bytes


def make(arguments: argparse.Namespace, sizes: Sizes) -> OpenVINO:
    return OpenVINO(sizes)


if __name__ == "__main__":
    report.main(make, __doc__)
