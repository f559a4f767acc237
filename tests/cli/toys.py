"""Toy tokenizers over bytes, and a text for them."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

BOS, EOS = "<s>", "</s>"
WORDS = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune is in want.\n"
)


def toy_tokenizer(opening: str = "", closing: str = "", **options: object) -> PreTrainedTokenizerFast:
    """Bytes as tokens. `opening` and `closing` are what its post-processor puts around a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([BOS, EOS, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if opening or closing:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(filter(None, [opening, "$A", closing])), special_tokens=[(BOS, 0), (EOS, 1)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, **options)
