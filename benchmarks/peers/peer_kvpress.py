"""kvpress: the cache is pressed by a hook, after the prompt (prefill presses) or every so many steps (DecodingPress).

    python benchmarks/peers/peer_kvpress.py --press streaming                 DecodingPress around StreamingLLMPress
    python benchmarks/peers/peer_kvpress.py --press snapkv --phase prefill    SnapKVPress as published

Positions are those of the text, as kvpress's own pipeline passes them. The pipeline itself is not used: it can neither
score a text nor be stepped. Not covered: presses that only mask (AdaKV) or that need learned statistics.
"""

import argparse
from typing import Any

import torch
from kvpress import DecodingPress, ExpectedAttentionPress, SnapKVPress, StreamingLLMPress, TOVAPress
from transformers import AutoModelForCausalLM, DynamicCache

import report
from measure import SINKS
from sizes import Sizes
from torch_peer import nll_of, share_held, storage_bytes, twin

PRESSES = {
    "streaming": lambda: StreamingLLMPress(n_sink=SINKS),
    "snapkv": SnapKVPress,
    "expected": lambda: ExpectedAttentionPress(n_sink=SINKS),
    "tova": TOVAPress,
}
# Presses that score with the states of the steps since they last evicted, and how many they need.
NEEDS_QUERIES = {"snapkv": 8, "expected": 8}


class Reading:
    """A text read by one model with one `DynamicCache`, under a press or none."""

    def __init__(self, model: Any, press: Any, first_keys: Any) -> None:
        self.model, self.cache, self.first_keys = model, DynamicCache(), first_keys
        self.seen, self.logits = 0, None
        self.pressed = press(model) if press is not None else None
        if self.pressed is not None:
            self.pressed.__enter__()

    def feed(self, ids: list[int]) -> None:
        with torch.inference_mode():
            positions = torch.arange(self.seen, self.seen + len(ids))[None]
            out = self.model(
                torch.tensor([ids]), past_key_values=self.cache, position_ids=positions, logits_to_keep=1
            )
        self.seen += len(ids)
        self.logits = out.logits[0, -1]

    def step(self, token: int) -> None:
        self.feed([token])

    def nll(self, token: int) -> float:
        return nll_of(self.logits, token)

    def held(self) -> int:
        return max(layer.keys.shape[2] for layer in self.cache.layers)

    def nbytes(self) -> int:
        return storage_bytes(x for layer in self.cache.layers for x in (layer.keys, layer.values))

    def sinks_held(self) -> float:
        return share_held([layer.keys for layer in self.cache.layers], self.first_keys())

    def close(self) -> None:
        if self.pressed is not None:
            self.pressed.__exit__(None, None, None)
            self.pressed = None


class KVPress:
    granularity = 1

    def __init__(self, press: str, phase: str, sizes: Sizes) -> None:
        torch.set_num_threads(sizes.threads)
        self.name = f"kvpress-{phase}-{press}"
        self.press, self.phase = press, phase
        self.settings: dict[str, Any] = {"press": press, "phase": phase, "attention": "sdpa"}
        self.model = AutoModelForCausalLM.from_pretrained(
            report.DATA / "model", dtype=getattr(torch, sizes.dtype), attn_implementation="sdpa"
        ).eval()
        self.notes = []
        self.never_in_steps = ""
        if phase == "decoding":
            self.notes.append(
                "evicts after the forward: a query sees up to budget + interval keys, itself included"
            )
        if phase == "prefill":
            self.never_in_steps = (
                "a prefill press evicts when the first prompt ends, and what comes later is added"
            )
        elif press in NEEDS_QUERIES:
            self.notes.append(
                f"{press} scores with the states since it last evicted: here no more often than every {NEEDS_QUERIES[press]} steps"
            )
        if press == "streaming" and phase == "decoding":
            self.notes.append(
                "its scores are ones and zeros by slot, and torch.topk does not keep the order of equal ones: from the second "
                "eviction on, the first slots no longer hold the first tokens"
            )
        if press in ("snapkv", "tova"):
            self.notes.append(f"{press}: no sinks can be pinned")

    def versions(self) -> dict[str, str]:
        return report.versions("kvpress", "transformers", "torch")

    def dense(self, room: int) -> Reading:
        return Reading(self.model, None, self.first_keys)

    def evicting(self, budget: int, interval: int, prompt: int) -> Reading:
        base = PRESSES[self.press]()
        if self.phase == "prefill":
            if prompt > budget:
                base.compression_ratio = 1 - (budget + 0.5) / prompt  # kvpress truncates length x (1 - ratio)
            return Reading(twin(self.model), base, self.first_keys)
        interval = max(interval, NEEDS_QUERIES.get(self.press, 1))
        if self.press == "snapkv":
            base.window_size = min(base.window_size, interval - 1)
        press = DecodingPress(
            base_press=base,
            compression_interval=interval,
            target_size=budget,
            hidden_states_buffer_size=max(256, interval),
        )
        return Reading(twin(self.model), press, self.first_keys)

    def first_keys(self) -> list[torch.Tensor]:
        with torch.inference_mode():
            cache = DynamicCache()
            self.model(torch.tensor([report.token_ids()[:SINKS]]), past_key_values=cache)
        return [layer.keys for layer in cache.layers]

    def recent_loss(self, ids: list[int]) -> float:
        with torch.inference_mode():
            batch = torch.tensor([ids])
            return float(self.model(batch, labels=batch).loss)


def make(arguments: argparse.Namespace, sizes: Sizes) -> KVPress:
    return KVPress(arguments.press, arguments.phase, sizes)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--press", choices=list(PRESSES), default="streaming", help="what is kept (streaming)"
    )
    parser.add_argument(
        "--phase", choices=["decoding", "prefill"], default="decoding", help="when it is pressed (decoding)"
    )


if __name__ == "__main__":
    report.main(make, __doc__, options)
