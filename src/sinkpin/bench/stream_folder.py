"""The folder of a long run: its blocks, and the cache as it was after the last of them.

The cache is written first, under a name that says how much it has seen; then the blocks, which name it; then the older
cache is removed. So whatever the moment at which a run is killed, the blocks and the cache they name belong
together. Not here: what a block holds (`stream`).
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkpin.atomic import write_together
from sinkpin.cache.bounded import BoundedCache
from sinkpin.errors import InputError

BLOCKS = "blocks.json"
_SCHEMA = 1


@dataclass
class Log:
    """`header`: what must be the same for a run to be continued. `passes`: of each pass over the texts, what was
    scored. `resumed`: after how many tokens the run began again in a new process."""

    header: dict[str, Any]
    blocks: list[dict[str, Any]] = field(default_factory=list)
    passes: list[dict[str, Any]] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)

    @property
    def fed(self) -> int:
        return int(self.blocks[-1]["stop"]) if self.blocks else 0


def save(folder: Path, log: Log, cache: BoundedCache) -> None:
    """Put away what is done so far."""
    name = f"cache-{log.fed}.safetensors"
    document = {"schema": _SCHEMA, "cache": name, **vars(log)}
    words = json.dumps(document, indent=1, allow_nan=False).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        cache.save(folder / name)
        write_together({folder / BLOCKS: lambda file: file.write(words)})
    except OSError as error:
        raise InputError(
            f"cannot write into {folder} ({error.strerror or error}) after {log.fed:,} tokens: choose another --out"
        ) from error
    for old in folder.glob("cache-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)


def load(folder: Path, header: dict[str, Any]) -> tuple[Log, Path]:
    """The log in `folder` and the file of its cache. Raises `InputError` where there is none, or one of another run."""
    path = folder / BLOCKS
    try:
        document = json.loads(path.read_text())
        if document.pop("schema") != _SCHEMA:
            raise InputError(f"{path} has another schema: run without --resume")
        cache = folder / document.pop("cache")
        log = Log(**document)
    except FileNotFoundError:
        raise InputError(f"--resume: there is no {path} to continue; run without it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read ({error}): run without --resume") from error
    if other := sorted(key for key in header if log.header.get(key) != header[key]):
        raise InputError(
            f"{path} is of another run: {other[0]} was {log.header.get(other[0])!r} and is {header[other[0]]!r}; "
            "give the same options, or another --out"
        )
    return log, cache
