"""Where a comparison goes: a folder, checked before the run and written after it, and the screen.

Not here: what is written (`evaluate.record`, `evaluate.picture`, `evaluate.page`) and what is shown (`evaluate.text`).
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sinkpin.errors import InputError

if TYPE_CHECKING:
    from sinkpin.evaluate.record import Comparison

PICTURE = "perplexity.png"
PAGE = "report.html"

PIPE = 120  # columns where there is no terminal to ask
_WIDEST = 120


def check_folder(out: Path, names: Sequence[str] = ("results.json", "nll.npz", PICTURE, PAGE)) -> None:
    """Raise `InputError` unless files of these names (a comparison's) can be written into `out`. Leaves nothing behind."""
    nearest = out.absolute()
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest), tempfile.TemporaryDirectory(dir=nearest):
            pass
    except OSError as error:
        raise InputError(
            f"cannot write into the output folder {out} ({error.strerror or error}): "
            "choose another with --out"
        ) from error
    for name in names:
        if (out / name).is_dir():
            raise InputError(
                f"{out / name} is a folder, so no result can be written there: choose another with --out"
            )


def deliver(result: "Comparison", out: Path, *, as_json: bool) -> None:
    """Write the result, then show it: `sinkpin compare | head` has its files too."""
    from sinkpin.evaluate import picture
    from sinkpin.evaluate.documents import probes_beside
    from sinkpin.evaluate.folder import LOSSES, RESULTS
    from sinkpin.evaluate.page import render

    failure: InputError | None = None
    remarks: list[str] = []
    missing: InputError | None = None
    written = [RESULTS, LOSSES, PAGE, PICTURE]
    try:
        result.save(out)
        document = result.to_json()
        probes, remarks = probes_beside(out, document["model"])
        write_page(out / PAGE, render(document, probes))
        picture.draw(result, out / PICTURE)
    except InputError as error:
        if isinstance(error.__cause__, ImportError):
            missing = error  # no matplotlib: the numbers are complete without the picture
            written.remove(PICTURE)
            (out / PICTURE).unlink(missing_ok=True)  # of an earlier run, whose numbers were just replaced
        else:
            failure = error
    stream = sys.stderr if as_json else sys.stdout
    print(_shown(result, on_terminal=stream.isatty()), file=stream)
    if failure is not None:
        raise failure  # after the table: the run was long, and its numbers are on the screen at least
    print(f"written: {', '.join(str(out / name) for name in written)}", file=stream)
    for remark in remarks:
        print(f"note: {remark}", file=sys.stderr)
    if missing is not None:
        print(f"sinkpin: {missing}", file=sys.stderr)
    if as_json:
        print(json.dumps(result.to_json(), allow_nan=False))


def write_page(path: Path, page: str) -> None:
    """`page` into `path`, whole, or leave what was there and raise `InputError`."""
    from sinkpin.atomic import write_together

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_together({path: lambda file: file.write(page.encode())})
    except OSError as error:
        raise InputError(
            f"cannot write {path} ({error.strerror or error}): choose another with --out"
        ) from error


def _shown(result: "Comparison", *, on_terminal: bool) -> str:
    from rich.console import Console

    from sinkpin.evaluate.text import as_text

    console = Console()
    if not on_terminal:
        width = console.width if os.environ.get("COLUMNS", "").isdecimal() else PIPE
        return as_text(result, width=width, notes=True)
    colour = console.color_system is not None and not console.no_color
    return as_text(result, width=min(console.width, _WIDEST), colour=colour, notes=True)
