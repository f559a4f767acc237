"""The two files of a result in one folder: written together, read whole or refused.

Complete copies are made first and then moved into place one after the other; if the second move fails, the first is
taken back. Only a process killed between the two moves can leave files of two runs, which whoever reads them has to
see (`record` does). Not here: what the files say.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sinkpin.atomic import write_together
from sinkpin.errors import InputError

RESULTS = "results.json"
LOSSES = "nll.npz"


def write(folder: Path, document: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Both files into `folder` (made if absent), or leave what was there and raise `InputError`."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    named: dict[str, Any] = dict(arrays)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_together(
            {
                folder / LOSSES: lambda file: np.savez(file, **named),
                folder / RESULTS: lambda file: file.write(text.encode()),
            }
        )
    except OSError as error:
        raise InputError(
            f"cannot write the results into {folder} ({error.strerror or error}), so nothing was kept; "
            "choose another folder (--out)"
        ) from error


def read(folder: Path) -> tuple[object, dict[str, npt.NDArray[Any]]]:
    """The document and the arrays, unchecked. Raises `InputError`, in one line, where either file is not whole."""
    remedy = "run `sinkpin compare` again"
    try:
        text = (folder / RESULTS).read_text(encoding="utf-8")
        with np.load(folder / LOSSES, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise InputError(f"{error.filename} does not exist, so {folder} holds no result; {remedy}") from error
    except OSError as error:
        raise InputError(f"cannot read the result in {folder}: {error}") from error
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError) as error:
        raise InputError(f"the result in {folder} cannot be read ({error}); {remedy}") from error
    try:
        return json.loads(text, parse_constant=_refuse_constant), arrays
    except ValueError as error:
        raise InputError(f"{folder / RESULTS} is not whole JSON ({error}); {remedy}") from error


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")
