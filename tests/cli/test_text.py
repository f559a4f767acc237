"""What a user names as a text, and the token ids it becomes. Each mistake is one line that says what to do."""

from __future__ import annotations

import io
import os
import sys
from types import SimpleNamespace

import pytest

from cli.toys import BOS, EOS, WORDS, toy_tokenizer
from sinkpin.cli.text import Text, read_text
from sinkpin.cli.tokens import encode, replace_first
from sinkpin.errors import InputError

CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


def text(content: str) -> Text:
    return Text(content, "a text")


def one_line(raised: pytest.ExceptionInfo[BaseException]) -> str:
    message = str(raised.value)
    assert "\n" not in message
    return message


# Texts


def test_without_a_source_it_is_the_novel():
    novel = read_text(None)
    assert novel.content.startswith("PRIDE AND PREJUDICE\n")
    assert novel.name == "Pride and Prejudice"


def test_a_file_is_taken_as_it_is(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("Größe\r\n\n  zwei  \n".encode())
    assert read_text(str(path)).content == "Größe\r\n\n  zwei  \n"


def test_a_byte_order_mark_is_not_text(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfAll")
    assert read_text(str(path)).content == "All"


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("süß".encode())))
    assert read_text("-") == Text("süß", "standard input")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n\n\t", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"plain then \0 zero", "is binary (NUL byte at offset 11)"),
        (b"a" * (1 << 20) + b"b\0", f"is binary (NUL byte at offset {(1 << 20) + 1})"),
        ("Größe".encode("latin-1"), "is not UTF-8 text (byte 0xf6 at offset 2)"),
        (b"\xff\xfeA\0", "is binary"),
    ],
)
@pytest.mark.parametrize("through", ["file", "stdin"])
def test_a_text_that_is_none(tmp_path, monkeypatch, content, says, through):
    path = tmp_path / "text"
    path.write_bytes(content)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    with pytest.raises(InputError) as raised:
        read_text("-" if through == "stdin" else str(path))
    assert says in one_line(raised)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(InputError, match="No such file or directory") as raised:
        read_text(str(tmp_path / "missing.txt"))
    assert "missing.txt" in one_line(raised)
    with pytest.raises(InputError, match="is a folder"):
        read_text(str(tmp_path))


def test_closed_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        read_text("-")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no /dev/zero")
def test_a_device_that_never_ends():
    with pytest.raises(InputError, match="binary"):
        read_text("/dev/zero")


# Token ids


def leading(ids: list[int], token: int) -> int:
    return next((place for place, number in enumerate(ids) if number != token), len(ids))


@pytest.mark.parametrize(
    ("tokenizer", "bos"),
    [
        (toy_tokenizer(opening=BOS), 1),
        (toy_tokenizer(opening=BOS, closing=EOS), 1),
        (toy_tokenizer(), 0),
        (toy_tokenizer(closing=EOS), 0),
        (toy_tokenizer(chat_template=CHAT_TEMPLATE), 0),
    ],
    ids=["bos", "bos and eos", "none", "eos", "none, though its chats have one"],
)
def test_bos_of_a_plain_text(tokenizer, bos):
    """Case 15: what the tokenizer adds before a text is there once, nothing is invented, no EOS ends a cut text."""
    ids = encode(tokenizer, text(WORDS), 10_000)
    assert leading(ids, tokenizer.bos_token_id) == bos
    assert len(ids) == len(WORDS) + bos
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.decode(ids[bos:]) == WORDS


@pytest.mark.parametrize("opening", [BOS, ""], ids=["the tokenizer adds one too", "the tokenizer adds none"])
def test_bos_of_a_text_that_brings_it_along(opening):
    """Case 15: a chat that its template opened with a BOS keeps that one."""
    tokenizer = toy_tokenizer(opening=opening, chat_template=CHAT_TEMPLATE)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": WORDS}], tokenize=False)
    assert chat.startswith(BOS)
    assert leading(encode(tokenizer, text(chat), 10_000), tokenizer.bos_token_id) == 1


def test_ids_are_the_first_of_the_whole_text():
    tokenizer = toy_tokenizer(opening=BOS, model_max_length=8)
    whole = encode(tokenizer, text(WORDS * 9), 10_000)
    assert len(whole) == 9 * len(WORDS) + 1
    assert encode(tokenizer, text(WORDS * 9), 100) == whole[:100]
    assert encode(tokenizer, text(WORDS), 5) == whole[:5]


def test_a_truncation_saved_with_the_tokenizer_is_not_applied(tmp_path, caplog):
    tokenizer = toy_tokenizer(opening=BOS, model_max_length=8)
    tokenizer(WORDS, truncation=True, max_length=4)  # stays set in the backend
    with caplog.at_level("WARNING"):
        assert len(encode(tokenizer, text(WORDS), 10_000)) == len(WORDS) + 1
    assert "longer than" not in caplog.text


def test_a_text_without_tokens():
    from tokenizers import normalizers

    tokenizer = toy_tokenizer(opening=BOS)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("x", "")
    with pytest.raises(InputError, match="makes no token of a text"):
        encode(tokenizer, text("xxx"), 10)


@pytest.mark.parametrize(
    ("written", "string"), [("\\n", "\n"), ("\n", "\n"), ("\\t", "\t"), ("\\\\", "\\"), ("é"[:0] + "q", "q")]
)
def test_replace_first(written, string):
    tokenizer = toy_tokenizer(opening=BOS)
    ids = encode(tokenizer, text(WORDS), 100)
    replaced = replace_first(tokenizer, ids, written)
    assert tokenizer.decode(replaced[:4]) == string * 4
    assert replaced[4:] == ids[4:]


def test_replace_first_behind_a_space_that_every_text_gets():
    """Tokenizers of the Llama 2 kind put a space before a text: a newline alone is two tokens there."""
    from tokenizers import pre_tokenizers

    tokenizer = toy_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement="Ġ", prepend_scheme="first"),
            pre_tokenizers.ByteLevel(add_prefix_space=True),
        ]
    )
    assert len(tokenizer("\n")["input_ids"]) > 1
    newline = tokenizer.convert_tokens_to_ids("Ċ")
    assert replace_first(tokenizer, list(range(10, 20)), "\\n") == [newline] * 4 + list(range(14, 20))


@pytest.mark.parametrize(
    ("written", "says"), [("two", "is 3 tokens"), ("", "is 0 tokens"), ("é", "is 2 tokens")]
)
def test_replace_first_must_be_one_token(written, says):
    with pytest.raises(InputError, match=says) as raised:
        replace_first(toy_tokenizer(), list(range(9)), written)
    one_line(raised)


def test_replace_first_of_an_unknown_word():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "a": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    assert replace_first(tokenizer, [2] * 6, "the") == [1, 1, 1, 1, 2, 2]
    with pytest.raises(InputError, match="unknown to this tokenizer"):
        replace_first(tokenizer, [2] * 6, "castle")


def test_replace_first_of_a_text_shorter_than_that():
    with pytest.raises(InputError, match="replaces 4 tokens and the text has 3"):
        replace_first(toy_tokenizer(), [5, 6, 7], "\\n")
