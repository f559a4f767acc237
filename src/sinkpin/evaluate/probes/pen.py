"""Writes text as token ids: what stands in front of a text, pieces in the midst of one, a chat around it, a haystack.

Every piece is encoded by itself, as if it stood behind another text, so that its ids do not hang on its neighbours and a trial can be put
together to the token. All arms are fed the same ids. Not here: what is written (the probes).
"""

import random
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

from sinkpin.errors import InputError, ModelError

Style = Literal["plain", "chat"]

MARK = "\uf8ff"  # private use: no template and no text has it
_SENTENCE = re.compile(r"(?<=[.!?])[\"'”’_)]*\s+")
_LONGEST = 200  # characters of a sentence that ends nowhere: a table, a list


class Pen:
    """`tokenizer` as transformers has them; `text` is what a haystack is made of, called `text_name`."""

    def __init__(self, tokenizer: Any, text: str, text_name: str) -> None:
        self.tokenizer, self.text, self.text_name = tokenizer, text, text_name

    def piece(self, text: str) -> list[int]:
        """The ids of `text` in the midst of another."""
        letter = "\n" if text[:1].isalnum() else "a"  # what the text's first character does not join
        bare, both = self.encoded(letter), self.encoded(letter + text)
        return both[len(bare) :] if both[: len(bare)] == bare else self.encoded(text)

    def encoded(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of `text` as it is, markers of a chat included; with `special`, what goes around a text too."""
        encoded = self.tokenizer(
            text, add_special_tokens=special, truncation=False, padding=False, verbose=False
        )
        return list(encoded["input_ids"])

    def read(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    @cached_property
    def opening(self) -> list[int]:
        """What the tokenizer puts before a text: a BOS, usually, or nothing."""
        bare, dressed = self.encoded("a"), self.encoded("a", special=True)
        for start in range(len(dressed) - len(bare) + 1):
            if dressed[start : start + len(bare)] == bare:
                return dressed[:start]
        raise ModelError(
            "this tokenizer encodes a text differently with its special tokens: such tokenizers are not supported"
        )

    def around(self, style: Style) -> tuple[list[int], list[int]]:
        """What stands before a user's message and between it and the answer."""
        if style == "plain":
            return self.opening, []
        before, after = self.chat_around([{"role": "user", "content": MARK}])
        return self.encoded(before), self.piece(after)

    def chat_around(self, messages: list[dict[str, str]]) -> list[str]:
        """The chat in the pieces around those of its messages whose content is `MARK`."""
        marks = sum(message["content"] == MARK for message in messages)
        parts = self.chat(messages).split(MARK)
        if len(parts) != marks + 1:
            raise InputError(
                f"the chat template writes {len(parts) - 1} contents where {marks} were given, so it cannot be told where "
                "they stand: use --style plain, or another model"
            )
        return parts

    def chat(self, messages: list[dict[str, str]]) -> str:
        """A chat in the model's own template, up to where the assistant's next answer begins."""
        from jinja2 import TemplateError

        if self.tokenizer.chat_template is None:
            raise InputError(
                "this tokenizer has no chat template, so it cannot write a chat: use --style plain, or another model"
            )
        try:
            return str(
                self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            roles = ", ".join(message["role"] for message in messages[:4])
            raise InputError(
                f"the chat template refuses messages with the roles {roles}, … ({' '.join(str(error).split())}): this probe "
                "needs a template that takes them"
            ) from error

    @cached_property
    def _sentences(self) -> list[str]:
        found = [" ".join(each.split()) for each in _SENTENCE.split(self.text)]
        return [each for each in found if 0 < len(each) <= _LONGEST]

    @cached_property
    def _encoded(self) -> dict[int, list[int]]:
        return {}

    def sentences(self, rng: random.Random, tokens: int) -> list[list[int]]:
        """Sentences of the text from a place drawn by `rng`, `tokens` in all: the last is cut to fit."""
        taken: list[list[int]] = []
        room, number = tokens, len(self._sentences)
        if not number:
            raise InputError(
                f"{self.text_name} has no sentence to make a haystack of: give a text with --text"
            )
        start = rng.randrange(number)
        for step in range(number):
            if room <= 0:
                break
            place = (start + step) % number
            if place not in self._encoded:
                self._encoded[place] = self.piece(" " + self._sentences[place])
            taken.append(self._encoded[place])
            room -= len(self._encoded[place])
        if room > 0:
            raise InputError(
                f"{self.text_name} has {tokens - room:,} tokens in sentences, and a haystack of {tokens:,} is asked for: "
                "give a longer text, or less of --lengths, --distances or --tokens"
            )
        if room < 0:
            taken[-1] = taken[-1][:room]
        return taken
