"""A text as token ids: what the tokenizer puts before it once, and nothing behind it.

Not here: chat templates (a text is taken as it is), and whether the text suits the arms (`evaluate.compare`).
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sinkpin.cli.text import Text
from sinkpin.errors import InputError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACED = 4  # tokens that `replace_first` replaces: the sinks of StreamingLLM

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}


def encode(tokenizer: "PreTrainedTokenizerBase", text: Text, tokens: int) -> list[int]:
    """The first `tokens` ids of the text, or all if there are fewer. Raises `InputError` if there is none.

    What the tokenizer puts before a text (a BOS, usually) is there exactly once, also if the text brings it
    along. Nothing is put behind it: a text cut at N tokens has not ended. The whole text is encoded and then
    cut, since where a cut text would be split differently cannot be known for every tokenizer (5 s for 10
    MB).
    """
    ids = _plain(tokenizer, text.content)
    if not ids:
        raise InputError(f"the tokenizer makes no token of {text.name}: give a text that it can read")
    opening = opening_of(tokenizer, text.content)
    if ids[: len(opening)] != opening:
        ids = opening + ids
    return ids[:tokens]


def _plain(tokenizer: "PreTrainedTokenizerBase", text: str, *, special: bool = False) -> list[int]:
    # verbose=False: no warning that the text is longer than the model's maximum, which is the point of it
    encoded = tokenizer(text, add_special_tokens=special, truncation=False, padding=False, verbose=False)
    return list(encoded["input_ids"])


def opening_of(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """The ids that the tokenizer puts before a text, found by what it puts around the start of this one."""
    for piece in (text[:256], text):  # a piece that a normaliser strips to nothing tells nothing
        bare, dressed = _plain(tokenizer, piece), _plain(tokenizer, piece, special=True)
        for start in range(len(dressed) - len(bare) + 1) if bare else ():
            if dressed[start : start + len(bare)] == bare:
                return dressed[:start]
    raise ModelError(
        "this tokenizer encodes a text differently with its special tokens: such tokenizers are not supported"
    )


def replace_first(tokenizer: "PreTrainedTokenizerBase", ids: Sequence[int], written: str) -> list[int]:
    r"""The ids with the first four replaced by the one token of `written` (`\n`, `\r`, `\t` and `\\` are
    escapes)."""
    string = re.sub(r"\\([nrt\\])", lambda match: _ESCAPES[match[1]], written)
    token = _plain(tokenizer, string)
    if len(token) != 1:
        # sentencepiece puts a space before every text; behind a letter, the string stands alone
        bare = _plain(tokenizer, "a")
        token = _plain(tokenizer, "a" + string)[len(bare) :]
        if _plain(tokenizer, "a" + string)[: len(bare)] != bare or len(token) != 1:
            raise InputError(
                f"--replace-first {string!r} is {len(_plain(tokenizer, string))} tokens with this "
                "tokenizer: give a string that is one"
            )
    if token[0] == tokenizer.unk_token_id and string != tokenizer.unk_token:
        raise InputError(
            f"--replace-first {string!r} is unknown to this tokenizer: give a string that is one token"
        )
    if len(ids) < REPLACED:
        raise InputError(
            f"--replace-first replaces {REPLACED} tokens and the text has {len(ids)}: give a longer text"
        )
    return token * REPLACED + list(ids[REPLACED:])
