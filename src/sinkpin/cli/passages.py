"""`plan`: the files a user names as documents, and documents as the passages of a workload.

For a chat, a file that ends in `.json` is one (a list of {"role", "content"}); any other text is put into turns, user and
assistant by turns, of whole paragraphs and at least `TURN` characters. The chat template writes them, and what it writes up to
the end of the first system message (or before the first content, where there is none) is pinned as the system prompt. Not
here: cutting and splitting themselves (`evaluate.advisor.passages`).
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sinkpin.card import Card
from sinkpin.cli import tokens
from sinkpin.cli.text import Text, read_text
from sinkpin.errors import InputError
from sinkpin.spans import merged

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sinkpin.evaluate.advisor.passages import Passage
    from sinkpin.evaluate.advisor.workloads import Workload

TURN = 800


@dataclass(frozen=True)
class Document:
    """One file's text. `source`: what names it on a command line, None for the packaged novel. `chat`: its messages, where
    it is a chat already."""

    text: Text
    source: str | None
    chat: list[dict[str, Any]] | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.content.encode("utf-8", "surrogatepass")).hexdigest()


def read(sources: Sequence[str] | None, workload: str) -> list[Document]:
    """Every file, before a model is loaded. Raises `InputError` for one that cannot be read, and for a text given twice, which
    would choose and certify on the same words."""
    found: list[Document] = []
    for source in [None] if sources is None else sources:
        text = read_text(source)
        chat = None
        if workload == "chat" and source is not None and source.endswith(".json"):
            from sinkpin.sinks.chat import read_chat

            chat = read_chat(source)
        document = Document(text, source, chat)
        for other in found:
            if other.sha256 == document.sha256:
                raise InputError(
                    f"{text.name} has the same text as {other.text.name}: a setting would be certified on what it was chosen on; "
                    "give it once"
                )
        found.append(document)
    return found


def passages_of(
    tokenizer: "PreTrainedTokenizerBase",
    documents: Sequence[Document],
    workload: "Workload",
    length: int,
    limit: int,
    system: str | None,
    card: Card | None,
) -> tuple[list["Passage"], list[dict[str, Any]], list[str]]:
    """The passages of all documents, what there is to record of each document, and notes. `limit`: tokens taken of all
    documents together, the same share of each."""
    share = max(limit // len(documents), length)
    passages: list[Passage] = []
    texts: list[dict[str, Any]] = []
    notes: list[str] = []
    for document in documents:
        if workload.name == "chat":
            found = list(_chats(tokenizer, document, workload, length, system))[: max(share // length, 1)]
        else:
            found = _pieces(tokenizer, document, workload, length, share)
        if not found:
            notes.append(f"{document.text.name} is shorter than one passage of {length:,} tokens: left out")
        passages += found
        texts.append(
            {
                "name": document.text.name,
                "source": document.source,
                "sha256": document.sha256,
                "tokens": sum(len(passage.ids) for passage in found),
                "passages": len(found),
            }
        )
    if card is not None:
        passages, of_card = _pinned(passages, card)
        notes += of_card
    return passages, texts, notes


def _pieces(
    tokenizer: "PreTrainedTokenizerBase", document: Document, workload: "Workload", length: int, share: int
) -> list["Passage"]:
    from sinkpin.evaluate.advisor.passages import cut

    ids = tokens.encode(tokenizer, document.text, share)
    opening = tokens.opening_of(tokenizer, document.text.content)
    return cut(document.source or document.text.name, ids, workload, length, opening)


def _chats(
    tokenizer: "PreTrainedTokenizerBase",
    document: Document,
    workload: "Workload",
    length: int,
    system: str | None,
) -> Iterator["Passage"]:
    """Passages of `length` tokens, each a chat from its beginning on; a chat that is one already makes one at most."""
    from sinkpin.evaluate.advisor.passages import Passage
    from sinkpin.sinks.template import render

    first = [] if system is None else [{"role": "system", "content": system}]
    turns = [] if document.chat is not None else _turns(document.text.content)
    encoded = tokenizer(turns, add_special_tokens=False, verbose=False)["input_ids"] if turns else []
    lengths = [len(ids) for ids in encoded]
    at = 0
    while document.chat is not None or at < len(turns):
        if document.chat is not None:
            messages = document.chat
        else:
            count, held = 0, 0
            while at + count < len(turns) and held < length:
                held += lengths[at + count]  # less than with the template's own tokens, so enough
                count += 1
            messages = first + [
                {"role": ("user", "assistant")[i % 2], "content": turn}
                for i, turn in enumerate(turns[at : at + count])
            ]
            at += count
        prompt = render(tokenizer, messages)
        if len(prompt.ids) >= length:
            told = messages[0]["role"] == "system" and prompt.messages[0][1] > 0
            pinned = prompt.messages[0][1] if told else prompt.opening
            spans = {"system": ((0, pinned),)} if pinned else {}
            name = document.source or document.text.name
            yield Passage(name, tuple(prompt.ids[:length]), workload.warm(length), spans=spans)
        if document.chat is not None:
            return


def _turns(content: str) -> list[str]:
    """Whole paragraphs, as many as make `TURN` characters."""
    turns, held = [], ""
    for paragraph in content.split("\n\n"):
        if stripped := paragraph.strip():
            held = f"{held}\n\n{stripped}" if held else stripped
        if len(held) >= TURN:
            turns.append(held)
            held = ""
    return turns


def _pinned(passages: Sequence["Passage"], card: Card) -> tuple[list["Passage"], list[str]]:
    """Passages that know what the card pins in them, on top of their system prompt. Raises `InputError` where it is nothing in
    any of them."""
    found: list[Passage] = []
    failures: dict[str, None] = {}
    for passage in passages:
        spans, failed = card.resolve(passage.ids)
        failures.update(dict.fromkeys(failed))
        both = tuple(merged([*passage.spans.get("system", ()), *spans]))
        found.append(replace(passage, spans={**passage.spans, "card": both}))
    if passages and not any(card.resolve(passage.ids)[0] for passage in passages):
        raise InputError(
            f"the card pins nothing in any passage ({'; '.join(failures) or 'it has no rule that pins'}): leave --pins out"
        )
    return found, list(failures)


def system_prompt(path: str | None) -> str | None:
    """The text of `--system FILE`."""
    return None if path is None else read_text(path).content.strip()


def sources_of(texts: Sequence[dict[str, Any]]) -> list[str] | None:
    """Those of a promise's texts, as a command line would give them; None for the packaged novel."""
    sources = [text.get("source") for text in texts]
    if sources == [None]:
        return None
    if "-" in sources or not all(isinstance(source, str) for source in sources):
        raise InputError(
            f"the promise was made on {json.dumps([text['name'] for text in texts])}, which cannot be read again: give --text FILE"
        )
    return [str(source) for source in sources]


def same_texts(documents: Sequence[Document], texts: Sequence[dict[str, Any]]) -> None:
    """Raises `InputError` where a text is no longer what it was when the promise was made."""
    for document, text in zip(documents, texts, strict=True):
        if document.sha256 != text["sha256"]:
            raise InputError(
                f"{document.text.name} is another text now (sha256 {document.sha256[:12]}…, it was {text['sha256'][:12]}…): put it "
                "back, or check on it as a new text, --text"
            )
