"""attention-sinks 0.4.0: the library StreamingLLM's readers were pointed to in 2023, on transformers 4.34.

Its model class replaces the attention of Llama by one that keeps raw keys and rotates all of them at every step, and
drops entries by `torch.cat` after every forward. Its own dense run is plain transformers 4.34 with the same weights.
"""

import argparse
from typing import Any

import attention_sinks
import torch
import transformers

import report
from measure import SINKS
from sizes import Sizes
from torch_peer import nll_of, share_held, storage_bytes


class Reading:
    """A text read by one model with its tuple of past keys and values."""

    def __init__(self, model: Any, first_keys: Any) -> None:
        self.model, self.first_keys = model, first_keys
        self.past: Any = None
        self.logits: torch.Tensor | None = None

    def feed(self, ids: list[int]) -> None:
        with torch.inference_mode():
            # The decoder, then the head on the last position only: this version's model returns all logits in float32.
            out = self.model.model(torch.tensor([ids]), past_key_values=self.past, use_cache=True)
            self.past = out.past_key_values
            self.logits = self.model.lm_head(out.last_hidden_state[0, -1])

    def step(self, token: int) -> None:
        self.feed([token])

    def nll(self, token: int) -> float:
        return nll_of(self.logits, token)

    def held(self) -> int:
        return self.past[0][0].shape[2]

    def nbytes(self) -> int:
        return storage_bytes(x for layer in self.past for x in layer)

    def sinks_held(self) -> float:
        return share_held([keys for keys, _values in self.past], self.first_keys())

    def close(self) -> None:
        self.past = None


class AttentionSinks:
    name = "attention-sinks"
    never_in_steps = ""
    granularity = 1

    def __init__(self, sizes: Sizes) -> None:
        torch.set_num_threads(sizes.threads)
        self.settings: dict[str, Any] = {"attention": "eager"}
        self.notes = [
            "evicts after the forward: a query sees budget + 1 keys",
            "a prompt of any length is read in one forward with dense attention, and cut afterwards",
            "evicts at every step; the interval asked for is not its own",
        ]
        dtype = getattr(torch, sizes.dtype)
        folder = report.DATA / "legacy"
        self.plain = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=dtype).eval()
        self.bounded = attention_sinks.AutoModelForCausalLM.from_pretrained(
            folder, torch_dtype=dtype, attention_sink_size=SINKS
        ).eval()

    def versions(self) -> dict[str, str]:
        return report.versions("attention-sinks", "transformers", "torch")

    def dense(self, room: int) -> Reading:
        return Reading(self.plain, self.first_keys)

    def evicting(self, budget: int, interval: int, prompt: int) -> Reading:
        kept = self.bounded.model.attention_sink_kv_cache
        kept.attention_sink_window_size, kept.cache_size = budget - SINKS, budget
        return Reading(self.bounded, self.first_keys)

    def first_keys(self) -> list[torch.Tensor]:
        """Raw ones, as its cache holds them: those of `plain` are rotated."""
        reading = Reading(self.bounded, None)
        reading.feed(report.token_ids()[:SINKS])
        return [keys for keys, _values in reading.past]

    def recent_loss(self, ids: list[int]) -> float:
        with torch.inference_mode():
            batch = torch.tensor([ids])
            return float(self.plain(batch, labels=batch).loss)


def make(arguments: argparse.Namespace, sizes: Sizes) -> AttentionSinks:
    return AttentionSinks(sizes)


if __name__ == "__main__":
    report.main(make, __doc__)
