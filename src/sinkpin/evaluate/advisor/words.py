"""An answer on a terminal or in a log: the verdict first, in words, then what was tried, then the certificate.

Not here: where it goes (`cli.plan`).
"""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sinkpin.evaluate.advisor.advice import Advice
from sinkpin.evaluate.advisor.bound import BLOCK, CONFIDENCE, FEWEST
from sinkpin.evaluate.advisor.promise import Checked
from sinkpin.evaluate.advisor.search import Trial


def as_text(advice: Advice, *, width: int = 100) -> str:
    console = Console(width=width, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(Text(verdict(advice)))
        if advice.memory is not None:
            console.print()
            console.print(Text(_memory(advice)))
        for title, trials in (
            (f"Tried on the choosing part ({_amount(advice, 'choosing')})", advice.choosing),
            (
                f"Certified on the other part ({_amount(advice, 'certifying')}), in this order",
                advice.certificate,
            ),
        ):
            if trials:
                console.print()
                console.print(Text(f"{title}:"))
                console.print(_table(trials))
        if advice.emitted:
            console.print()
            console.print(Text(advice.emitted["python"]), soft_wrap=True)
            console.print(Text(f"sinkpin serve {advice.emitted['serve']}"), soft_wrap=True)
        for note in advice.notes:
            console.print(Text(f"note: {note}"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).rstrip()


def verdict(advice: Advice) -> str:
    """The answer, in a sentence or three."""
    limit, model = percent(advice.max_loss), str(advice.about.get("model", "the model"))
    scored = f"tokens {advice.first:,} to {advice.length:,} of a text"
    more = f"about {advice.needed:,} more tokens" if advice.needed else ""
    if held := advice.promised:
        found = held.bound
        return (
            f"Promised: {held.setting.name} on {model} loses less than {limit} of perplexity to the full cache on {advice.workload}, on "
            f"average over {scored}. On {found.blocks} blocks that had no part in choosing it, it lost {percent(found.loss)}, at most "
            f"{percent(found.at_most)} with {CONFIDENCE:.0%} confidence."
        )
    if not advice.choosing:
        parts = advice.parts
        return (
            f"Not enough text to promise anything: {parts['choosing'].blocks} blocks of {BLOCK} tokens to choose on and "
            f"{parts['certifying'].blocks} to certify on, where {FEWEST} are needed to certify. You need {more}. Nothing was run."
        )
    on = "second" if advice.certificate else "first"
    trials = advice.certificate or advice.choosing
    closest = min(trials, key=lambda trial: trial.bound.high)
    best = min(
        (trial for trial in trials if trial.bound.loss < advice.max_loss),
        default=closest,
        key=lambda t: t.bound.high,
    )
    found = best.bound
    numbers = f"{best.setting.name} lost {percent(found.loss)}, at most {percent(found.at_most)} with {CONFIDENCE:.0%} confidence"
    if advice.verdict == "not enough text":
        return (
            f"Not enough text to promise this: on the {on} part {numbers}, so the loss may be below {limit}, but {found.blocks} blocks "
            f"do not show it. You need {more}, and text that was not used here: the same text tried again is no longer unseen."
        )
    return f"No setting qualifies on the {on} part: the limit is {limit}, and {numbers}. Nothing is promised."


def checked_text(checked: Checked) -> str:
    found = checked.bound
    lines = [f"broken: {line}" for line in checked.broken] or ["The promise holds."]
    lines.append(
        f"{checked.setting.name} loses {percent(found.loss)}, at most {percent(found.at_most)} with {CONFIDENCE:.0%} confidence, on "
        f"{found.blocks} blocks of {BLOCK} tokens; {percent(checked.max_loss)} was promised"
    )
    return "\n".join([*lines, *(f"note: {note}" for note in checked.notes)])


def percent(share: float) -> str:
    """Three significant digits, so that 0.999 % does not look like the 1 % it is below."""
    return f"{100 * share:,.3g} %" if abs(share) < 10 else f"{100 * share:,.0f} %"


def size(count: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count} B"


def _memory(advice: Advice) -> str:
    memory = advice.memory
    assert memory is not None
    times = memory.full_bytes / memory.session_bytes
    return (
        f"A session holds {size(memory.session_bytes)} ({memory.session_bytes:,} bytes), {memory.sessions_per_gib:,} sessions fit into "
        f"a GiB; the full cache holds {size(memory.full_bytes)} at {advice.length:,} tokens, {times:.1f} times as much. While a "
        f"passage was fed, the most was {size(memory.peak_bytes)}."
    )


def _amount(advice: Advice, part: str) -> str:
    found = advice.parts[part]
    return f"{found.passages} passages, {found.blocks} blocks"


def _table(trials: Sequence[Trial]) -> Table:
    lines = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    lines.add_column("setting", overflow="fold")
    for header in ("bytes", "blocks", "loss", "at most", ""):
        lines.add_column(header, justify="right", no_wrap=True)
    for trial in sorted(trials, key=lambda trial: -trial.bytes):
        found = trial.bound
        lines.add_row(
            trial.setting.name,
            f"{trial.bytes:,}",
            str(found.blocks),
            percent(found.loss),
            percent(found.at_most),
            "passes" if trial.within else "fails",
        )
    return lines
