"""Which tokens of a chat prompt are the template's own, and which came with the messages. Found by experiment.

A content's place is where the text changes when that content alone is replaced by a character that occurs nowhere else:
no template is known by name, and a content that looks like a marker, or stands elsewhere too, is no trouble. What is left
when all contents are taken away is the template's: turn markers, roles, a BOS, a system text that it brings along, today's
date, the prompt to generate.

Not here: how places in the text become tokens (`places`), images, tool calls and other fields of a message (the template
sees them, and what it makes of them counts as its own), and whether a marker inside a content should be one (transformers
encodes it as a marker, and so do we; its characters are the message's).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sinkpin.errors import InputError
from sinkpin.sinks.chat import Message, check
from sinkpin.sinks.chat import (
    read_chat as read_chat,
)  # the other half of a prompt: where its messages come from
from sinkpin.sinks.places import encode
from sinkpin.spans import Span

if TYPE_CHECKING:
    import transformers


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A chat as the model reads it. Spans are `(first, one past the last)` token.

    `messages`: of each message, the tokens wholly inside its content, as far as the template kept it (most strip it). Empty
    where there are none, and where the template dropped or rewrote the content; what it rewrote it to is in no span. A
    content that the template writes twice is here where it stands first.
    `markers`: everything else, in order and apart. A token that straddles a border belongs to the template, so a content of
    one token can have none: " Hi" with the template's space.
    `opening`: tokens before the content that stands first in the prompt, which need not be that of the first message; all
    where the template kept no content.
    """

    ids: list[int]
    markers: tuple[Span, ...]
    opening: int
    messages: tuple[Span, ...]


@dataclass(frozen=True)
class _Place:
    """Characters of the text that came with one message. `kept`: they are a piece of its content, as it was given."""

    span: Span
    kept: bool


def render(
    tokenizer: "transformers.PreTrainedTokenizerBase",
    messages: list[Message],
    add_generation_prompt: bool = False,
) -> Prompt:
    """The prompt that the tokenizer's chat template makes of `messages`, with exactly the BOS that the template writes.

    `messages`: dicts with "role" and "content", both strings. The chat is rendered once a message and twice more. Raises
    `InputError` where they are not that, the tokenizer has no template, or the template refuses them or is no function of
    them.
    """
    check(messages, "messages")
    if tokenizer.chat_template is None:
        raise InputError(
            "this tokenizer has no chat template, so it cannot write a chat: give a plain text, or set "
            "tokenizer.chat_template"
        )
    text = _write(tokenizer, messages, add_generation_prompt)
    for _ in range(2):  # a clock in the template may move on once: that is chance
        before = text
        places = [_place(tokenizer, messages, i, add_generation_prompt, text) for i in range(len(messages))]
        text = _write(tokenizer, messages, add_generation_prompt)
        if text == before:
            break
    else:
        raise InputError(
            "the chat template writes another text each time, so the place of a message cannot be told by comparing two: "
            "take what changes (a clock?) out of tokenizer.chat_template"
        )
    ids, tokens_of = encode(tokenizer, text)
    spans = [tokens_of(*place.span) for place in places]
    own = [True] * len(ids)
    for start, stop in spans:
        own[start:stop] = [False] * (stop - start)
    standing = [
        span[0]
        for place, span in zip(places, spans, strict=True)
        if place.kept or place.span[0] < place.span[1]
    ]
    return Prompt(
        ids=ids,
        markers=_runs(own),
        opening=min(standing, default=len(ids)),
        messages=tuple(
            span if place.kept else (span[0], span[0]) for place, span in zip(places, spans, strict=True)
        ),
    )


def _write(
    tokenizer: "transformers.PreTrainedTokenizerBase", messages: list[Message], add_generation_prompt: bool
) -> str:
    from jinja2 import TemplateError

    try:
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        )
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"the chat template refuses {len(messages)} message{'s' * (len(messages) != 1)} with the roles "
            f"{', '.join(message['role'] for message in messages)} ({' '.join(str(error).split())}): give them as it wants"
        ) from error


def _place(
    tokenizer: "transformers.PreTrainedTokenizerBase",
    messages: list[Message],
    i: int,
    add_generation_prompt: bool,
    text: str,
) -> _Place:
    """Where the content of message `i` stands in `text`, the chat with all contents.

    It is replaced whole; and where the text around it does not stay as it was (a template may look at how a content begins
    and ends), it is cut in two and keeps its ends.
    """
    content = messages[i]["content"]
    given = text + "".join(message["content"] for message in messages)
    # Private use: no letter case, no white space, nothing that JSON or HTML escapes.
    mark = next(letter for letter in map(chr, range(0xF5107, 0xFFFFE)) if letter not in given)
    half = len(content) // 2
    changed = None
    for probe in (mark, content[:half] + mark + content[half:]):
        chat = [*messages[:i], {**messages[i], "content": probe}, *messages[i + 1 :]]
        other = _write(tokenizer, chat, add_generation_prompt)
        for written in (probe, probe.strip()):
            span = _instead(text, other.split(written))
            if span is not None and text[slice(*span)] in content:
                return _Place(span, kept=True)
        changed = changed or _difference(text, other)
    assert changed is not None
    return _Place(changed, kept=False)


def _instead(text: str, around: list[str]) -> Span | None:
    """Where the text has what the pieces `around` leave out, if it is the same thing between all of them."""
    start, times = len(around[0]), len(around) - 1
    room = len(text) - sum(map(len, around))
    if not times or room < 0:
        return None
    stop = start + room // times
    return (start, stop) if text[start:stop].join(around) == text else None


def _difference(text: str, other: str) -> Span:
    """The part of the text without its longest beginning and then its longest end in common with the other."""
    start = _common(text, other)
    return start, len(text) - _common(text[start:][::-1], other[start:][::-1])


def _common(a: str, b: str) -> int:
    """How many first characters two strings share."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _runs(flags: list[bool]) -> tuple[Span, ...]:
    """`(start, stop)` of each longest run of True."""
    edges = [
        i for i in range(len(flags) + 1) if (flags[i - 1] if i else False) != (i < len(flags) and flags[i])
    ]
    return tuple(zip(edges[::2], edges[1::2], strict=True))
