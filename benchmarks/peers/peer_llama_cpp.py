"""llama.cpp through llama-cpp-python, with context shift driven from here: its Python class never shifts.

    python benchmarks/peers/peer_llama_cpp.py                   the demo model's numbers in float32, cache in float32
    python benchmarks/peers/peer_llama_cpp.py --weights q4_1    the file as published, cache in float16: as people run it

A shift removes the oldest entries behind the sinks and moves the rest to lower positions, rotating the cached keys in
place. Flash attention is off: "auto" turns it on, which on a CPU halves the speed. Not here: llama.cpp's server, whose
shift discards half of the context at once, and its prompt cache.
"""

import argparse
import ctypes
from itertools import pairwise
from typing import Any

import llama_cpp as engine
import numpy as np

import report
from measure import SINKS
from sizes import Sizes
from streams import Unavailable

BATCH = 512  # tokens of a prompt read at once
CACHE_TYPES = {"f32": (engine.GGML_TYPE_F32, 4), "q4_1": (engine.GGML_TYPE_F16, 2)}
SEQUENCE = 0


class Reading:
    """A text read by one context; with `budget`, the oldest entries behind the sinks make room for new ones."""

    def __init__(self, peer: "LlamaCpp", room: int, budget: int | None, interval: int) -> None:
        self.peer, self.budget, self.interval = peer, budget, interval
        options = engine.llama_context_default_params()
        options.n_ctx = room
        options.n_batch = options.n_ubatch = min(BATCH, room)
        options.n_threads = options.n_threads_batch = peer.threads
        options.type_k = options.type_v = peer.cache_type
        options.flash_attn_type = engine.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.offload_kqv = False
        self.context = engine.llama_init_from_model(peer.model, options)
        if not self.context:
            raise SystemExit(f"llama.cpp made no context of {room} entries")
        self.memory = engine.llama_get_memory(self.context)
        if budget is not None and not engine.llama_memory_can_shift(self.memory):
            raise Unavailable("llama.cpp cannot shift the context of this model")

    def feed(self, ids: list[int]) -> None:
        most = BATCH if self.budget is None else min(BATCH, (self.budget - SINKS) // 2)
        for start in range(0, len(ids), most):
            self._decode(ids[start : start + most])

    def step(self, token: int) -> None:
        self._decode([token])

    def _decode(self, ids: list[int]) -> None:
        if self.budget is not None and (over := self.held() + len(ids) - self.budget) > 0:
            self._shift(max(over, self.interval))
        tokens = (engine.llama_token * len(ids))(*ids)
        status = engine.llama_decode(self.context, engine.llama_batch_get_one(tokens, len(ids)))
        if status:
            raise SystemExit(f"llama_decode gave {status} with {self.held()} entries held")

    def _shift(self, discard: int) -> None:
        first = SINKS + discard
        if not engine.llama_memory_seq_rm(self.memory, SEQUENCE, SINKS, first):
            raise SystemExit(f"llama.cpp would not remove the entries {SINKS} to {first}")
        engine.llama_memory_seq_add(self.memory, SEQUENCE, first, -1, -discard)

    def nll(self, token: int) -> float:
        pointer = engine.llama_get_logits_ith(self.context, -1)
        logits = np.ctypeslib.as_array(pointer, shape=(self.peer.vocabulary,)).astype(np.float64)
        top = logits.max()
        return float(top + np.log(np.exp(logits - top).sum()) - logits[token])

    def held(self) -> int:
        return engine.llama_memory_seq_pos_max(self.memory, SEQUENCE) + 1

    def nbytes(self) -> int:
        return engine.llama_n_ctx(self.context) * self.peer.entry_bytes

    def sinks_held(self) -> float:
        if engine.llama_memory_seq_pos_min(self.memory, SEQUENCE) != 0:
            return 0.0
        return 1.0  # positions 0 to 3 were never removed, by this driver

    def close(self) -> None:
        engine.llama_free(self.context)


class LlamaCpp:
    never_in_steps = ""
    granularity = 1

    def __init__(self, weights: str, sizes: Sizes) -> None:
        if sizes.dtype != "float32":
            raise SystemExit(
                f"--dtype {sizes.dtype}: this script has the weights as float32 or, with --weights, q4_1"
            )
        self.name = f"llama.cpp-{weights}"
        self.dtype = "float32" if weights == "f32" else weights
        self.threads = sizes.threads
        self.cache_type, value_bytes = CACHE_TYPES[weights]
        self.notes = [
            "evicts before the forward: a query sees at most `budget` keys, itself included",
            "the driver decides what goes, so `sinks_held` says that it never removed positions 0 to 3, no more",
            "bytes_kept is the buffer of n_ctx cells, computed: it is allocated whole at the start, and never shrinks",
            "a prompt longer than the budget is read in pieces, shifting between them; the engine itself would refuse it",
        ]
        self.settings: dict[str, Any] = {
            "weights": weights,
            "cache": "float32" if weights == "f32" else "float16",
            "flash_attention": False,
            "n_batch": BATCH,
        }
        self._quiet = engine.llama_log_callback(lambda *_: None)
        engine.llama_log_set(self._quiet, ctypes.c_void_p(0))
        path = report.DATA / f"model-{weights}.gguf"
        self.model = engine.llama_model_load_from_file(
            str(path).encode(), engine.llama_model_default_params()
        )
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path.name}: run setup.sh llama_cpp")
        self.vocabulary = engine.llama_vocab_n_tokens(engine.llama_model_get_vocab(self.model))
        size = engine.llama_model_n_embd(self.model) // engine.llama_model_n_head(self.model)
        entry = engine.llama_model_n_layer(self.model) * engine.llama_model_n_head_kv(self.model) * size
        self.entry_bytes = 2 * entry * value_bytes

    def versions(self) -> dict[str, str]:
        return {
            "llama-cpp-python": engine.__version__,
            "system": " ".join(engine.llama_print_system_info().decode().split()),
        }

    def dense(self, room: int) -> Reading:
        return Reading(self, room, None, 1)

    def evicting(self, budget: int, interval: int, prompt: int) -> Reading:
        return Reading(self, budget, budget, interval)

    def recent_loss(self, ids: list[int]) -> float:
        reading = self.dense(len(ids))
        total = 0.0
        for token, following in pairwise(ids):
            reading.step(token)
            total += reading.nll(following)
        reading.close()
        return total / (len(ids) - 1)


def make(arguments: argparse.Namespace, sizes: Sizes) -> LlamaCpp:
    return LlamaCpp(arguments.weights, sizes)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights", choices=list(CACHE_TYPES), default="f32", help="f32, or q4_1 as published (f32)"
    )


if __name__ == "__main__":
    report.main(make, __doc__, options)
