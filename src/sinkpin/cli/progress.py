"""What is shown on standard error while something takes long: a bar on a terminal, elsewhere a line for each arm that is
through, and for one that takes long."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""`(arm, tokens done, tokens in all)`, as `evaluate.compare` calls it when an arm begins and after each forward."""

_SILENT = 30.0  # seconds without a line, where there is no bar


@contextmanager
def progress(arms: int, notes: Sequence[str] = ()) -> Iterator[Progress]:
    """A bar over all `arms` on a terminal; else one line for each arm that is through, and while one takes long.

    `notes` are told once the first arm begins: until then the work may be refused, in one line of its own.
    """
    if not sys.stderr.isatty():
        yield _Lines(arms, notes)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    met: dict[str, None] = {}
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def step(arm: str, done: int, of: int) -> None:
            if not met:
                _tell(notes)  # rich puts what is printed above its bar
            met.setdefault(arm)
            number = len(met)
            text = f"{arm} ({number} of {arms})"
            bar.update(task, description=text, completed=(number - 1) * of + done, total=arms * of)

        yield step


class _Lines:
    """A log's worth of progress: which arm is through, and what it took; and how far a long one is."""

    def __init__(self, arms: int, notes: Sequence[str]) -> None:
        self.arms, self.notes, self.through = arms, notes, 0
        self.started = self.spoke = time.perf_counter()

    def __call__(self, arm: str, done: int, of: int) -> None:
        _tell(self.notes)
        self.notes = ()
        now = time.perf_counter()
        where = f"(arm {self.through + 1} of {self.arms})"
        if done == of:
            self._say(f"{arm}: {of:,} tokens in {now - self.started:.0f} s {where}", now)
            self.through += 1
            self.started = now
        elif now - self.spoke >= _SILENT:
            self._say(f"{arm}: {done:,} of {of:,} tokens {where}", now)

    def _say(self, line: str, now: float) -> None:
        print(line, file=sys.stderr, flush=True)
        self.spoke = now


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr, flush=True)


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal while nothing else moves there; elsewhere a line now and then. What is yielded changes what it
    says is being done."""
    if not sys.stderr.isatty():
        spoke = time.perf_counter()

        def say(doing: str) -> None:
            nonlocal spoke
            if (now := time.perf_counter()) - spoke >= _SILENT:
                print(f"{what}: {doing}", file=sys.stderr, flush=True)
                spoke = now

        yield say
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …") as status:
        yield lambda doing: status.update(f"{what}: {doing} …")
