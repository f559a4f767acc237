"""The text a user names: a UTF-8 file, standard input, or the packaged novel. Read before a model is loaded.

Everything that can be wrong with it is one line that names the remedy. Not here: tokens (`tokens`).
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sinkpin import demo
from sinkpin.errors import InputError

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Text:
    """A text, and what to call it."""

    content: str
    name: str


def read_text(source: str | None) -> Text:
    """The text of a UTF-8 file, of standard input (`-`), or the packaged novel (None)."""
    if source is None:
        return Text(demo.sample_text(), demo.TEXT_NAME)
    name = "standard input" if source == "-" else source
    try:
        if source == "-":
            if sys.stdin is None:
                raise InputError("standard input is closed: name a text file")
            data = _read(sys.stdin.buffer, name)
        elif Path(source).is_dir():
            raise InputError(f"{source} is a folder: name one text file in it")
        else:
            with open(source, "rb") as file:
                data = _read(file, name)
    except OSError as error:
        raise InputError(
            f"cannot read the text {name} ({error.strerror or error}): name a UTF-8 text file"
        ) from error
    try:
        content = data.decode("utf-8-sig")  # a byte order mark is no text, and would become the first sink
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text (byte {data[error.start]:#04x} at offset {error.start}): "
            "convert it first, for example with `iconv -f LATIN1 -t UTF-8`"
        ) from error
    if not content.strip():
        raise InputError(f"{name} is empty: there is no text in it to score")
    return Text(content, name)


def _read(file: IO[bytes], name: str) -> bytes:
    """All of `file`, given up at the first NUL byte: a device would never end."""
    blocks: list[bytes] = []
    while block := file.read(_BLOCK):
        if b"\0" in block:
            offset = len(blocks) * _BLOCK + block.index(b"\0")
            raise InputError(f"{name} is binary (NUL byte at offset {offset}): give UTF-8 text")
        blocks.append(block)
    return b"".join(blocks)
