"""A model whose answer is whatever it can see, and a probe made for it, so that a score is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import families
from cli.toys import BOS, WORDS, toy_tokenizer
from sinkpin.evaluate.probes.base import Asking, Question, Trial
from sinkpin.evaluate.probes.pen import Pen

TEXT = "".join(f"This is the {chr(97 + i % 26) * (i % 7 + 1)}th sentence. {WORDS}" for i in range(40))
FILLER, ASKS, FIRST = 1, 2, 10  # ids: what a stream is made of, what a question is, the first of the answers


def seer(length: int = 64) -> PreTrainedModel:
    """A token is the likelier the more entries of it the last layer sees: attention is uniform, and written to the logits."""
    model = families.xray(length)
    last = model.model.layers[-1].self_attn
    with torch.no_grad():
        last.o_proj.weight[:, :length] = torch.eye(length)
        model.lm_head.weight.copy_(20 * torch.eye(length))
    return model


@dataclass(frozen=True)
class Spots(Asking):
    """One token among `tokens` of filler, at each of `places`, and which of `choices` it was."""

    tokens: int = 60
    places: tuple[int, ...] = (5, 55)

    name: ClassVar[str] = "spots"
    summary: ClassVar[str] = "one token of many"
    axes: ClassVar[tuple[str, ...]] = ("place",)

    def write(self, pen: Pen) -> tuple[Trial, ...]:
        return tuple(
            self._trial(place, number % self.choices, number * len(self.places) + at)
            for number in range(self.trials)
            for at, place in enumerate(self.places)
        )

    def _trial(self, place: int, right: int, group: int) -> Trial:
        ids = [FILLER] * self.tokens
        ids[place] = FIRST + right
        question = Question(
            at=self.tokens,
            feed=(ASKS,),
            answers=tuple((FIRST + each,) for each in range(self.choices)),
            right=right,
            blank=(ASKS,),
            holds=(place, place + 1),
            check=lambda written: True,
            length=1,
            cell=(("place", place),),
        )
        return Trial(ids=tuple(ids), questions=(question,), group=group)


def llama(positions: int = 4096, seed: int = 0) -> PreTrainedModel:
    """A random Llama over the bytes of the toy tokenizer."""
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


CHATML = (
    "{% for m in messages %}<{{ m['role'] }}>\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)


def pen(**options: object) -> Pen:
    return Pen(toy_tokenizer(opening=BOS, **options), TEXT, "the toys' text")
