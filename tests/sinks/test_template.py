"""Whose tokens are whose in a chat prompt: against plain functions that write the same text piece by piece."""

from __future__ import annotations

import json
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sinkpin import demo
from sinkpin.errors import InputError
from sinkpin.sinks.template import Prompt, read_chat, render
from sinks.chats import (
    BOS,
    CHATML,
    EOS,
    FAMILIES,
    GEMMA,
    MARKERS,
    MISTRAL,
    Messages,
    Piece,
    SlowTokenizer,
    bytes_tokenizer,
    spaced_tokenizer,
    words_tokenizer,
)


def chat(*contents: str, system: bool = False) -> Messages:
    """User and assistant in turn, after a system message if asked for."""
    roles = ["system"] * system + ["user", "assistant"] * len(contents)
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


def expected(
    pieces: list[Piece], sizes: list[int], measure=lambda text: len(text.encode())
) -> list[int | None]:
    """The owner of every token: a message, if all of the token's bytes are that message's, else None.

    `sizes`: bytes of each token, which follow one another without a gap.
    """
    owners = [owner for text, owner in pieces for _ in range(measure(text))]
    assert len(owners) == sum(sizes)
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    found = []
    for start, stop in pairwise(starts):
        whose = set(owners[start:stop])
        found.append(whose.pop() if len(whose) == 1 else None)
    return found


def owners(prompt: Prompt) -> list[int | None]:
    """The same, read from a prompt; that every token is in exactly one span is checked here."""
    named: list[list[int | None]] = [[] for _ in prompt.ids]
    for owner, spans in ((None, prompt.markers), *((i, [span]) for i, span in enumerate(prompt.messages))):
        for start, stop in spans:
            for i in range(start, stop):
                named[i].append(owner)
    assert all(len(names) == 1 for names in named), named
    assert all(start < stop for start, stop in prompt.markers), "an empty marker"
    assert all(a[1] < b[0] for a, b in pairwise(prompt.markers)), "markers that touch"
    return [names[0] for names in named]


def sizes_of(tokenizer, ids: list[int]) -> list[int]:
    """Bytes of each token of a byte-level tokenizer: its letters stand for one each, but a special token is itself."""
    names = tokenizer.convert_ids_to_tokens(ids)
    return [len(name.encode()) if name in (BOS, EOS, *MARKERS) else len(name) for name in names]


CONTENT = st.one_of(
    st.text(max_size=12),
    st.text(alphabet=" \n\thi.", max_size=8),
    st.lists(
        st.sampled_from(
            [
                *MARKERS,
                BOS,
                EOS,
                "user",
                "assistant",
                "system",
                "\n",
                " ",
                "😀",
                "👩‍👩‍👧",
                "é",
                "e\u0301",
                "\U000f5107",
            ]
        ),
        max_size=4,
    ).map("".join),
)
TOKENIZERS = {
    (name, trim): bytes_tokenizer(family[0], trim=trim)
    for name, family in FAMILIES.items()
    for trim in (True, False)
}


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=60)
@given(
    contents=st.lists(CONTENT, min_size=1, max_size=4),
    system=st.booleans(),
    prompt=st.booleans(),
)
@example(contents=["user"], system=False, prompt=True)
@example(contents=["<|im_start|>user\n", "<|im_end|>\n", "[INST] ", "user"], system=True, prompt=True)
@example(contents=["", "", ""], system=True, prompt=False)
@example(contents=["hia", "a ", "a  "], system=False, prompt=True)  # tokens that end with a space
@example(contents=["  hi  ", "\n\n", " hi"], system=True, prompt=True)
def test_every_token_has_its_owner(
    name: str, trim: bool, contents: list[str], system: bool, prompt: bool
) -> None:
    _, write, knows_system = FAMILIES[name]
    tokenizer, messages = TOKENIZERS[name, trim], chat(*contents, system=system and knows_system)
    pieces = write(messages, prompt)
    found = render(tokenizer, messages, prompt)
    again = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=True)
    assert found.ids == list(again["input_ids"])
    whose = expected(pieces, sizes_of(tokenizer, found.ids))
    assert owners(found) == whose
    assert found.opening == opening_of(pieces, sizes_of(tokenizer, found.ids))


def opening_of(pieces: list[Piece], sizes: list[int]) -> int:
    """Tokens that begin before the first content."""
    before = "".join(text for text, _ in takewhile(lambda piece: piece[1] is None, pieces))
    return sum(sum(sizes[:i]) < len(before.encode()) for i in range(len(sizes)))


def said(tokenizer, prompt: Prompt) -> list[str]:
    return [tokenizer.decode(prompt.ids[start:stop]) for start, stop in prompt.messages]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_chat_by_hand(name: str) -> None:
    template, _, knows_system = FAMILIES[name]
    tokenizer = bytes_tokenizer(template)
    contents = ["Be brief", "user", "two", "user"]
    messages = chat(*contents, system=True) if knows_system else chat(*contents[1:])
    found = render(tokenizer, messages, add_generation_prompt=True)
    assert said(tokenizer, found) == [message["content"] for message in messages]
    text = tokenizer.decode(found.ids)
    assert found.ids.count(tokenizer.bos_token_id) == (name != "chatml")
    head = text.index(
        "Be brief" if knows_system and name != "mistral" else "user\nuser" if name == "gemma" else "user"
    )
    if name == "gemma":
        head += len("user\n")
    assert tokenizer.decode(found.ids[: found.opening]) == text[:head]


def test_a_system_message_that_stands_last() -> None:
    """Mistral's: the system text comes just before the last user's, so the messages are not in order."""
    tokenizer = bytes_tokenizer(MISTRAL)
    found = render(tokenizer, chat("Be brief.", "one", "two", "three", system=True))
    system, one, two, three = found.messages
    assert one < two < system < three
    assert tokenizer.decode(found.ids[: found.opening]) == f"{BOS}[INST] "
    assert found.opening == one[0]


def test_a_dropped_message_is_empty() -> None:
    """Mistral's again: the last word is the assistant's, so nothing is left to put the system text before."""
    tokenizer = bytes_tokenizer(MISTRAL)
    found = render(tokenizer, chat("Be brief.", "one", "two", system=True))
    assert said(tokenizer, found) == ["", "one", "two"]
    assert "brief" not in tokenizer.decode(found.ids)
    alone = render(tokenizer, chat("Be brief.", system=True))
    assert tokenizer.decode(alone.ids) == BOS
    assert (alone.markers, alone.opening) == (((0, 1),), 1)
    assert alone.messages[0][0] == alone.messages[0][1]


def test_an_empty_message_that_makes_its_turn_vanish() -> None:
    template = (
        "{% for m in messages %}{% if m['content'] %}{{ '[INST]' + m['content'] }}{% endif %}{% endfor %}"
    )
    tokenizer = bytes_tokenizer(template)
    found = render(tokenizer, chat("one", "", "two"))
    assert tokenizer.decode(found.ids) == "[INST]one[INST]two"
    assert said(tokenizer, found) == ["one", "", "two"]
    assert [tokenizer.decode(found.ids[a:b]) for a, b in found.markers] == ["[INST]", "[INST]"]
    assert found.opening == 1
    tokenizer = bytes_tokenizer(template.replace("'[INST]'", "'[INST]' + m['role']"))
    found = render(tokenizer, chat("", "two"))
    assert tokenizer.decode(found.ids[: found.opening]) == "[INST]assistant"


def test_a_rewritten_message_is_neither_its_own_nor_the_templates() -> None:
    template = "{% for m in messages %}{{ '[INST]' + m['content'] | upper + '[/INST]' }}{% endfor %}"
    tokenizer = bytes_tokenizer(template)
    found = render(tokenizer, chat("one", "TWO"))
    assert tokenizer.decode(found.ids) == "[INST]ONE[/INST][INST]TWO[/INST]"
    assert said(tokenizer, found) == ["", "TWO"]
    assert [tokenizer.decode(found.ids[a:b]) for a, b in found.markers] == [
        "[INST]",
        "[/INST][INST]",
        "[/INST]",
    ]
    assert found.opening == 1


def test_a_content_that_is_cut_is_what_is_left_of_it() -> None:
    """As templates do with what an assistant thought before it spoke."""
    template = (
        "{% for m in messages %}{{ '[INST]' + m['content'].split('</think>')[-1].strip() }}{% endfor %}"
    )
    tokenizer = bytes_tokenizer(template)
    found = render(tokenizer, chat("one", "<think>one</think>\n\ntwo"))
    assert said(tokenizer, found) == ["one", "two"]
    assert len(found.markers) == 2


def test_a_template_that_looks_at_how_a_content_begins_and_ends() -> None:
    """As Qwen3's, for which what a tool answered is no question."""
    template = (
        "{% for m in messages %}{% if m['content'].startswith('<tool>') and m['content'].endswith('</tool>') %}"
        "{{ '[INST]tool\n' + m['content'] + '[/INST]' }}{% else %}{{ '[INST]' + m['content'] | trim }}{% endif %}"
        "{% endfor %}"
    )
    tokenizer = bytes_tokenizer(template)
    found = render(tokenizer, chat("one", "<tool>4</tool>", "tool\n"))
    assert tokenizer.decode(found.ids) == "[INST]one[INST]tool\n<tool>4</tool>[/INST][INST]tool"
    assert said(tokenizer, found) == ["one", "<tool>4</tool>", "tool"]
    tokenizer = bytes_tokenizer(template.replace("m['content']", "m['content'].strip()"))
    found = render(tokenizer, chat("one", "\n<tool>4</tool> "))
    assert said(tokenizer, found) == ["one", "<tool>4</tool>"]


def test_a_content_that_is_written_twice_counts_where_it_stands_first() -> None:
    template = "{% for m in messages %}{{ m['content'] + '[INST]' + m['content'] + '[/INST]' }}{% endfor %}"
    tokenizer = bytes_tokenizer(template)
    found = render(tokenizer, chat("one"))
    assert tokenizer.decode(found.ids) == "one[INST]one[/INST]"
    assert found.messages == ((0, 3),)
    assert found.markers == ((3, len(found.ids)),) and found.opening == 0


def test_a_token_across_a_border_is_the_templates() -> None:
    """ " hi" is no message of one token where the space is the template's; nor are offsets that leave it out believed."""
    for trim in (True, False):
        tokenizer = bytes_tokenizer("{{ '[INST] ' + messages[0]['content'] + '[/INST]' }}", trim=trim)
        found = render(tokenizer, chat("hi"))
        assert tokenizer.convert_ids_to_tokens(found.ids) == ["[INST]", "Ġh", "i", "[/INST]"]
        assert (found.messages, found.markers, found.opening) == (((2, 3),), ((0, 2), (3, 4)), 2)


def test_a_vocabulary_that_writes_spaces_as_lines() -> None:
    tokenizer = spaced_tokenizer(GEMMA)
    found = render(tokenizer, chat("hi hi", " 😀 "))
    names = tokenizer.convert_ids_to_tokens(found.ids)
    assert [names[start:stop] for start, stop in found.messages] == [
        ["hi", "▁hi"],
        ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"],
    ]
    owners(found)
    found = render(spaced_tokenizer("{{ '[INST] ' + messages[0]['content'] }}"), chat("hi"))
    assert found.messages == ((2, 2),)  # "▁hi" is one token


def test_a_tokenizer_that_drops_white_space() -> None:
    tokenizer = words_tokenizer(CHATML)
    found = render(tokenizer, chat("hello there.", system=True))
    names = tokenizer.convert_ids_to_tokens(found.ids)
    assert names == ["<|im_start|>", "system", "hello", "there", ".", "<|im_end|>"]
    assert (found.messages, found.opening) == (((2, 5),), 2)


@pytest.fixture(scope="module")
def slow():
    tokenizers = {name: SlowTokenizer(chat_template=family[0]) for name, family in FAMILIES.items()}
    for tokenizer in tokenizers.values():
        tokenizer.add_special_tokens({"additional_special_tokens": MARKERS})
        assert not tokenizer.is_fast
    return tokenizers


@pytest.mark.parametrize("name", ["chatml", "gemma"])
@settings(deadline=None, max_examples=40)
@given(
    contents=st.lists(st.text(alphabet=" \nhilo.ü😀", max_size=9), min_size=1, max_size=3),
    prompt=st.booleans(),
)
@example(contents=["hello\n", ".\n", "hi\n\n"], prompt=True)
def test_a_tokenizer_without_offsets(slow, name: str, contents: list[str], prompt: bool) -> None:
    tokenizer, messages = slow[name], chat(*contents)
    found = render(tokenizer, messages, prompt)
    sizes = [len(token) for token in tokenizer.convert_ids_to_tokens(found.ids)]
    assert owners(found) == expected(FAMILIES[name][1](messages, prompt), sizes, measure=len)


def test_the_messages_are_left_alone_and_a_text_may_hold_private_letters() -> None:
    messages = chat("\U000f5107\U000f5108", "two")
    kept = json.loads(json.dumps(messages))
    tokenizer = bytes_tokenizer(CHATML)
    assert said(tokenizer, render(tokenizer, messages)) == [m["content"] for m in messages]
    assert messages == kept
    assert render(tokenizer, chat("", "\U000f5107", system=True)).opening == len("_system\n")


def test_no_template() -> None:
    with pytest.raises(InputError, match=r"has no chat template.*set tokenizer\.chat_template"):
        render(bytes_tokenizer(None), chat("one"))


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (chat("Be brief.", "one", system=True), "System role not supported"),
        (
            [{"role": "user", "content": "a"}] * 2,
            r"2 messages with the roles user, user \(Conversation roles must alternate user/",
        ),
    ],
)
def test_a_template_that_refuses(messages: Messages, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        render(bytes_tokenizer(GEMMA), messages)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "template", ["{{ 1 / 0 }}", "{{ messages[0]['content'] + 1 }}", "{{ messages[0].a.b }}", "{% if %}"]
)
def test_a_template_that_is_broken(template: str) -> None:
    with pytest.raises(InputError, match="the chat template refuses 1 message with the roles user"):
        render(bytes_tokenizer(template), chat("one"))


def test_a_template_with_a_clock() -> None:
    template = "{{ strftime_now('%f') + messages[0]['content'] }}"
    with pytest.raises(InputError, match="another text each time"):
        render(bytes_tokenizer(template), chat("one"))


def test_a_clock_that_moves_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = bytes_tokenizer("{{ '[INST]' + messages[0]['content'] }}")
    real, days = tokenizer.apply_chat_template, iter(["Mon "])
    monkeypatch.setattr(tokenizer, "apply_chat_template", lambda *a, **k: next(days, "Tue ") + real(*a, **k))
    found = render(tokenizer, chat("one"))
    assert tokenizer.decode(found.ids) == "Tue [INST]one"
    assert said(tokenizer, found) == ["one"]


WRONG = [
    ("hello", "is a str and no list"),
    ({"role": "user", "content": "a"}, "is a dict and no list"),
    ([], "holds no message"),
    (["hello"], "message 0 of .* is a str"),
    (
        [{"role": "user", "content": "a"}, {"role": "user"}],
        r"message 1 of .* has no 'content' \(it has 'role'\)",
    ),
    ([{}], r"has no 'role' \(it has nothing\)"),
    ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], "list of 1 parts: join the texts"),
    ([{"role": "assistant", "content": None}], "the content of message 0 of .* is None and no string"),
    ([{"role": 3, "content": "a"}], "the role of message 0 of .* is 3 and no string"),
    ([{"role": "user", "content": "a\ud800"}], "half a character"),
]


@pytest.mark.parametrize(("messages", "says"), WRONG)
def test_what_is_no_chat(messages, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        render(bytes_tokenizer(CHATML), messages)
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(messages))
    with pytest.raises(InputError, match=says) as caught:
        read_chat(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_chat_from_a_file(tmp_path: Path) -> None:
    file, messages = tmp_path / "chat.json", chat("Grüße", "two")
    for document in (messages, {"model": "any", "messages": messages}):
        file.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
        assert read_chat(file) == read_chat(str(file)) == messages
    file.write_text("\ufeff" + json.dumps(messages), encoding="utf-8")
    assert read_chat(file) == messages


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"Hello,\nworld", r"is not JSON \(line 1, column 1: .*a plain text is no chat"),
        (b'[{"role": "user"', r"is not JSON \(line 1, column 17"),
        (b'"\xff"', "is not UTF-8 text .byte 0xff at offset 1"),
        (b'{"messages": 3}', "is a int and no list"),
    ],
)
def test_what_is_no_chat_file(data: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_bytes(data)
    with pytest.raises(InputError, match=says) as caught:
        read_chat(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_chat_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, says in ((tmp_path / "none.json", "No such file"), (tmp_path, "directory")):
        with pytest.raises(InputError, match=f"cannot read the chat .*{says}"):
            read_chat(path)


@pytest.fixture(scope="module")
def real():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo.model_folder())


@pytest.mark.demo
def test_the_demo_models_prompt(real) -> None:
    """Its template brings a system text along where none is given."""
    messages = chat("Who wrote this novel? 😀\n", "Jane Austen.", "user")
    found = render(real, messages, add_generation_prompt=True)
    opening = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n"
    assert real.decode(found.ids[: found.opening]) == opening
    assert said(real, found) == [message["content"] for message in messages]
    assert real.decode(found.ids[slice(*found.markers[-1])]) == "<|im_end|>\n<|im_start|>assistant\n"
    assert found.ids == list(
        real.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    )
    owners(found)


@pytest.mark.demo
def test_offsets_and_encoding_agree_on_the_demo_tokenizer(real) -> None:
    from sinkpin.sinks import places

    text = real.apply_chat_template(chat("A  truth\n\nuniversally 😀 acknowledged.", "x"), tokenize=False)
    ids, by_offsets = places.encode(real, text)
    by_encoding = places._by_encoding(
        lambda piece: real(piece, add_special_tokens=False)["input_ids"], text, ids
    )
    for start in range(0, len(text), 7):
        for stop in range(start, min(start + 40, len(text)), 5):
            a, b = by_offsets(start, stop), by_encoding(start, stop)
            assert a == b or (a[0] == a[1] and b[0] == b[1]), (text[start:stop], a, b)
