"""A chat as a list of messages: what is one, and reading it from a file. Not here: what a template makes of it."""

import json
from pathlib import Path
from typing import Any

from sinkpin.errors import InputError

Message = dict[str, Any]


def read_chat(path: str | Path) -> list[Message]:
    """The messages of a JSON file: a list of them, or `{"messages": [...]}`. Raises `InputError`, one line, for any other
    file; what else the object holds is not looked at."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(
            f"cannot read the chat {path} ({error.strerror or error}): name a JSON file"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text (byte {error.object[error.start]:#04x} at offset {error.start}): convert it first"
        ) from error
    if not text.strip():
        raise InputError(f'{path} is empty: write a JSON list of {{"role", "content"}} into it')
    try:
        chat = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path} is not JSON (line {error.lineno}, column {error.colno}: {error.msg}): "
            'give a list of {"role", "content"}; a plain text is no chat'
        ) from error
    if isinstance(chat, dict) and "messages" in chat:
        chat = chat["messages"]
    check(chat, str(path))
    return list(chat)


def check(messages: Any, name: str) -> None:
    """Raises `InputError` unless `messages`, called `name`, are dicts with a role and a content, both strings."""
    wanted = 'give a list of {"role": "user", "content": "..."}'
    if not isinstance(messages, list | tuple):
        raise InputError(f"{name} is a {type(messages).__name__} and no list of messages: {wanted}")
    if not messages:
        raise InputError(f"{name} holds no message, so there is nothing to write: {wanted}")
    for number, message in enumerate(messages):
        which = f"message {number} of {name}"
        if not isinstance(message, dict):
            raise InputError(f"{which} is a {type(message).__name__}: {wanted}")
        for field in ("role", "content"):
            if field not in message:
                raise InputError(
                    f"{which} has no {field!r} (it has {', '.join(map(repr, message)) or 'nothing'}): {wanted}"
                )
            value = message[field]
            if isinstance(value, list | tuple):
                raise InputError(
                    f"the {field} of {which} is a list of {len(value)} parts: join the texts of its parts into one string; "
                    "images and sound have no place here"
                )
            if not isinstance(value, str):
                raise InputError(f"the {field} of {which} is {value!r:.40} and no string: {wanted}")
            if any("\ud800" <= letter <= "\udfff" for letter in value):
                raise InputError(
                    f"the {field} of {which} holds half a character (a lone surrogate): take it out"
                )
