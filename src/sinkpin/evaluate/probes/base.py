"""What a probe is: a frozen value whose fields are its settings, and which writes trials out of a text and a seed.

A trial is a stream of tokens and the questions asked in it. What is right is known beforehand, since the probe put it
there. No torch: a mistake in the settings is told, and a record read, where there is none. Not here: feeding a cache
(`feeding`), scoring answers (`answering`), and what the outcomes amount to (`tally`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from sinkpin.errors import InputError
from sinkpin.evaluate.probes.intervals import Interval, difference_interval, share_interval
from sinkpin.spans import Span

if TYPE_CHECKING:
    from sinkpin.evaluate.probes.pen import Pen
    from sinkpin.evaluate.probes.reader import Reader

Axis = int | float | str
Cell = tuple[tuple[str, Axis], ...]
Ids = tuple[int, ...]

Score = Literal["choice", "exact"]
EXACT: Final = "exact"
CHOICE: Final = "choice"


@dataclass(frozen=True, kw_only=True)
class Question:
    """Asked once the first `at` tokens of a trial were fed, on a copy of the cache, which the stream does not see.

    `feed`: the ids of the question and of how its answer begins, at least one. `answers`: alternatives, ids each, of which
    `answers[right]` is right. `blank`: what stands before an answer when nothing was read, for calibration. `holds`: the
    tokens of the stream that say the answer. `check`: whether a generated text of `length` tokens is right. `cell`: where
    in the grid it stands; `twins`: further cells in which an arm whose choice follows from indices alone would have been
    fed the same tokens, so that its answer counts there too.
    """

    at: int
    feed: Ids
    answers: tuple[Ids, ...]
    right: int
    blank: Ids
    holds: Span
    check: Callable[[str], bool]
    length: int
    cell: Cell
    twins: tuple[Cell, ...] = ()

    @property
    def end(self) -> int:
        """The most tokens that a cache has seen when it is answered."""
        return self.at + len(self.feed) + self.length


@dataclass(frozen=True, kw_only=True)
class Trial:
    """`ids`: the stream, fed once. `group`: trials that share a text share it, and are no independent evidence.
    `by_index`: whether arms whose choice follows from indices alone are to be run on it."""

    ids: Ids
    questions: tuple[Question, ...]
    group: int
    by_index: bool = True


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One answer of one arm, 1 if right; or, where a probe has no questions, a share. `key`: the same for the answers of
    two arms to one question. `held`: share of the answer's tokens still held when it was asked."""

    key: tuple[Any, ...]
    group: int
    cell: Cell
    value: float
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """What every probe derives from. `name`, `summary` and `axes` (what a cell is told by) are its class's; its settings
    are fields, with their defaults, and what they must keep to is checked when it is made."""

    trials: int = 4
    seed: int = 0

    name: ClassVar[str]
    summary: ClassVar[str]
    axes: ClassVar[tuple[str, ...]]
    better: ClassVar[str] = "right answers"
    streams: ClassVar[bool] = (
        False  # whether questions that come before an arm has evicted anything are left out
    )

    def __post_init__(self) -> None:
        whole("trials", self.trials, 1)
        whole("seed", self.seed, 0)

    @property
    def chance(self) -> float:
        """What an arm that knows nothing scores, in the mean."""
        raise NotImplementedError(f"{type(self).__name__} has no chance")

    @property
    def chance_says(self) -> str:
        """Where that number comes from."""
        raise NotImplementedError(f"{type(self).__name__} does not say what chance is")

    @property
    def writes(self) -> int:
        """Tokens that a model writes behind a trial without questions."""
        return 0

    @property
    def exact(self) -> bool:
        """Whether an answer is written, and not chosen."""
        return False

    def interval(self, values: Sequence[float], groups: Sequence[int]) -> Interval:
        """95 % interval of the mean of an arm's `values`, which come in `groups`."""
        return share_interval(values, groups)

    def difference(self, arm: Sequence[float], full: Sequence[float], groups: Sequence[int]) -> Interval:
        """The same of the mean difference between two arms, question by question."""
        return difference_interval(arm, full, groups)

    def write(self, pen: "Pen") -> tuple[Trial, ...]:
        """The trials, of these settings and this text."""
        raise NotImplementedError(f"{type(self).__name__} has no write(pen)")

    def outcomes(self, reader: "Reader", trials: tuple[Trial, ...]) -> list[Outcome]:
        """What one arm makes of the trials."""
        return [outcome for trial in trials for outcome in reader.ask(trial)]

    def settings(self) -> dict[str, Any]:
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


@dataclass(frozen=True)
class Asking(Probe):
    """A probe that asks. `score`: `choice` (the right one of `choices` alternatives is the most likely one) or `exact` (it
    is what the model writes by itself, greedily)."""

    score: Score = CHOICE
    choices: int = 8

    guesses: ClassVar[int] = 90_000

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("score", self.score, (CHOICE, EXACT))
        whole("choices", self.choices, 2)

    @property
    def exact(self) -> bool:
        return self.score == EXACT

    @property
    def chance(self) -> float:
        return 1 / (self.choices if self.score == CHOICE else self.guesses)

    @property
    def chance_says(self) -> str:
        if self.score == CHOICE:
            return f"one of {self.choices} alternatives, told apart by their likelihood"
        return f"the one right of {self.guesses:,} answers, written by the model itself"


def whole(name: str, value: object, least: int) -> None:
    """Raise `InputError` unless `value` is a whole number, `least` or more."""
    if type(value) is not int or value < least:
        raise InputError(f"--{name} {value}: give a whole number, {least} or more")


def each_whole(name: str, values: Iterable[object], least: int) -> None:
    for value in _listed(name, values):
        whole(name, value, least)


def each_share(name: str, values: Iterable[object]) -> None:
    for value in _listed(name, values):
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InputError(f"--{name} {value}: give shares from 0 (the beginning) to 1 (the end)")


def each_of(name: str, values: Iterable[object], known: tuple[str, ...]) -> None:
    for value in _listed(name, values):
        one_of(name, value, known)


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"--{name} {value}: it is {' or '.join(known)}")


def _listed(name: str, values: Iterable[object]) -> list[object]:
    found = list(values)
    if not found or len(set(found)) < len(found):
        raise InputError(
            f"--{name} {','.join(map(str, found)) or 'is empty'}: give each value once, and at least one"
        )
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
