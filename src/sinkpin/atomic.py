"""Files that appear whole or not at all, several of them together.

Each is written under a temporary name in its own folder and then moved into place, which replaces a file in
one step. Not covered: a process killed between two moves leaves files of two writes; whoever reads them must
check that they belong together.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO


def write_together(writers: Mapping[Path, Callable[[BinaryIO], object]]) -> None:
    """Write several files so that all of them or none are replaced, whatever is raised on the way (Ctrl-C
    included)."""
    new = {path: path.with_name(f".{path.name}.{os.getpid()}.new") for path in writers}
    old = {path: path.with_name(f".{path.name}.{os.getpid()}.old") for path in writers}
    existed = {path: path.is_file() for path in writers}
    for left in old.values():
        left.unlink(missing_ok=True)  # of a process with this id that was killed: not ours to put back
    try:
        for path, write in writers.items():
            with open(new[path], "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
        for path in writers:
            if existed[path]:
                os.replace(path, old[path])
            os.replace(new[path], path)
    except BaseException:
        for path in writers:
            if old[path].exists():
                os.replace(old[path], path)
            elif not existed[path] and path.is_file():
                path.unlink()
        raise
    finally:
        for left in new.values():
            left.unlink(missing_ok=True)
    for left in old.values():
        left.unlink(missing_ok=True)
