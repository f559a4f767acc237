"""Toy tokenizers, chat templates that imitate the families', and each template once more as a plain function.

The functions say of each piece of text which message it came from (None: the template's own). They share nothing with the
code under test, which knows templates by experiment only.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

BOS, EOS = "<s>", "</s>"
MARKERS = [
    *("<|im_start|>", "<|im_end|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>"),
    *("[INST]", "[/INST]"),
]
MERGES = [
    ("Ġ", "h"),
    ("h", "i"),
    ("Ġ", "Ġ"),
    ("Ċ", "h"),
    (".", "Ċ"),
    ("a", "Ġ"),
    ("Ċ", "Ċ"),
    ("u", "s"),
    ("e", "r"),
    ("us", "er"),
]

Piece = tuple[str, int | None]
Messages = list[dict[str, str]]


def _special(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [AddedToken(m, special=True) for m in MARKERS]}
    )
    return tokenizer


def bytes_tokenizer(
    template: str | None, *, trim: bool = True, post_bos: bool = True
) -> PreTrainedTokenizerFast:
    """Byte-level BPE with a few merges, some of which begin or end with a space. `trim`: offsets leave those out.
    `post_bos`: it puts a BOS before every text of its own accord, as Llama's does."""
    names = [BOS, EOS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in MERGES)]
    backend = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    own = [processors.ByteLevel(trim_offsets=trim)]
    if post_bos:
        own.append(processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)]))
    backend.post_processor = processors.Sequence(own)
    return _special(
        PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token=BOS, eos_token=EOS, chat_template=template
        )
    )


def spaced_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """Spaces written as a low line, and bytes for what the vocabulary lacks, as Gemma's."""
    letters = ["▁", "h", "i", "o", "▁h", "hi", "▁hi", "\n"]
    names = [BOS, EOS, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    backend = Tokenizer(
        models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[("h", "i"), ("▁", "hi")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    return _special(
        PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token=BOS, eos_token=EOS, chat_template=template
        )
    )


def words_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """Words and punctuation; white space is in no token."""
    names = [BOS, EOS, "<unk>", "user", "assistant", "system", "hello", "there", "."]
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return _special(
        PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token=BOS, eos_token=EOS, unk_token="<unk>", chat_template=template
        )
    )


class SlowTokenizer(PreTrainedTokenizer):
    """The longest piece first, else a character; in Python, without offsets."""

    PIECES = ("user", "assistant", " h", "hi", "\n\n", ".\n", "lo\n", " ")

    def __init__(self, **options: object) -> None:
        self._names: list[str] = ["<unk>", *self.PIECES]
        super().__init__(unk_token="<unk>", bos_token=BOS, eos_token=EOS, **options)

    @property
    def vocab_size(self) -> int:
        return len(self._names)

    def get_vocab(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self._names)} | self.added_tokens_encoder

    def _tokenize(self, text: str, **_: object) -> list[str]:
        found = []
        while text:
            piece = max((p for p in self.PIECES if text.startswith(p)), key=len, default=text[0])
            found.append(piece)
            text = text[len(piece) :]
        return found

    def _convert_token_to_id(self, token: str) -> int:
        return self.PIECES.index(token) + 1 if token in self.PIECES else 1_000 + ord(token[0])

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index - 1_000) if index >= 1_000 else self._names[index]


CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are hi.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}"
    "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + strftime_now('%d %b %Y') + '\n\n' }}"
    "{{ system + '<|eot_id|>' }}{% for message in rest %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim }}"
    "{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate\nuser/assistant/user/...') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    "{{ message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{% for message in rest %}"
    "{% if message['role'] == 'user' %}{% if loop.last and system is defined %}"
    "{{ '[INST] ' + system.strip() + '\n\n' + message['content'].strip() + ' [/INST]' }}{% else %}"
    "{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}{% endif %}"
    "{% else %}{{ ' ' + message['content'].strip() + eos_token }}{% endif %}{% endfor %}"
)


def chatml(messages: Messages, prompt: bool) -> list[Piece]:
    pieces: list[Piece] = []
    if messages[0]["role"] != "system":
        pieces.append(("<|im_start|>system\nYou are hi.<|im_end|>\n", None))
    for i, message in enumerate(messages):
        pieces += [
            (f"<|im_start|>{message['role']}\n", None),
            (message["content"], i),
            ("<|im_end|>\n", None),
        ]
    return [*pieces, ("<|im_start|>assistant\n" if prompt else "", None)]


def llama(messages: Messages, prompt: bool) -> list[Piece]:
    def header(role: str) -> Piece:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n", None

    first = messages[0]["role"] == "system"
    pieces: list[Piece] = [
        (BOS, None),
        header("system"),
        (f"Today Date: {datetime.now():%d %b %Y}\n\n", None),
    ]
    pieces += [(messages[0]["content"].strip(), 0)] if first else []
    pieces.append(("<|eot_id|>", None))
    for i in range(first, len(messages)):
        pieces += [header(messages[i]["role"]), (messages[i]["content"].strip(), i), ("<|eot_id|>", None)]
    return [*pieces, header("assistant") if prompt else ("", None)]


def gemma(messages: Messages, prompt: bool) -> list[Piece]:
    pieces: list[Piece] = [(BOS, None)]
    for i, message in enumerate(messages):
        role = {"assistant": "model"}.get(message["role"], message["role"])
        pieces += [
            (f"<start_of_turn>{role}\n", None),
            (message["content"].strip(), i),
            ("<end_of_turn>\n", None),
        ]
    return [*pieces, ("<start_of_turn>model\n" if prompt else "", None)]


def mistral(messages: Messages, prompt: bool) -> list[Piece]:
    system = messages[0]["role"] == "system"
    pieces: list[Piece] = [(BOS, None)]
    for i in range(system, len(messages)):
        words = (messages[i]["content"].strip(), i)
        if messages[i]["role"] == "user":
            both = (
                [(messages[0]["content"].strip(), 0), ("\n\n", None)]
                if system and i == len(messages) - 1
                else []
            )
            pieces += [("[INST] ", None), *both, words, (" [/INST]", None)]
        else:
            pieces += [(" ", None), words, (EOS, None)]
    return pieces


FAMILIES: dict[str, tuple[str, Callable[[Messages, bool], list[Piece]], bool]] = {
    "chatml": (CHATML, chatml, True),  # the last: whether it knows a system role
    "llama": (LLAMA, llama, True),
    "gemma": (GEMMA, gemma, False),
    "mistral": (MISTRAL, mistral, True),
}
