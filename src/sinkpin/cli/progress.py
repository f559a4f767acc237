"""What is shown on standard error while something takes long: a bar on a terminal, a line per finished arm elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""`(arm, tokens done, tokens in all)`, as `evaluate.compare` calls it after each forward."""


@contextmanager
def progress(arms: int) -> Iterator[Progress]:
    """A bar over all `arms` on a terminal; else one line for each arm that is through."""
    if not sys.stderr.isatty():
        yield _Lines(arms)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    met: dict[str, None] = {}
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def step(arm: str, done: int, of: int) -> None:
            met.setdefault(arm)
            number = len(met)
            text = f"{arm} ({number} of {arms})"
            bar.update(task, description=text, completed=(number - 1) * of + done, total=arms * of)

        yield step


class _Lines:
    """A log's worth of progress: which arm is through, and what it took."""

    def __init__(self, arms: int) -> None:
        self.arms, self.through, self.started = arms, 0, time.perf_counter()

    def __call__(self, arm: str, done: int, of: int) -> None:
        if done < of:
            return
        self.through += 1
        now = time.perf_counter()
        line = f"{arm}: {of:,} tokens in {now - self.started:.0f} s (arm {self.through} of {self.arms})"
        print(line, file=sys.stderr, flush=True)
        self.started = now


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on a terminal while nothing else moves there."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …"):
        yield
