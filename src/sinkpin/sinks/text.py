"""A report on a terminal, or in a log: what was found, in one sentence and a few tables.

Not here: the page (`page`), and where the text goes (`cli.detect`).
"""

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sinkpin.card.advice import advice
from sinkpin.sinks.report import Effect, Report
from sinkpin.spans import merged

_LISTED, _CANDIDATES = 24, 8
"""Sinks, and candidates, in the table; the page and the JSON have all."""


def as_text(report: Report, *, width: int = 120, plain: bool = True) -> str:
    """The report for a terminal of `width` columns; `plain`: ASCII and no colour."""
    console = Console(
        width=width,
        color_system=None if plain else "standard",
        force_terminal=not plain,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(Text(sentence(report)))
        console.print()
        for table in _tables(report, plain):
            console.print(table)
            console.print()
        for note in report.notes:
            console.print(Text(f"note: {note}"))
    text = captured.get().rstrip()
    return text.encode("ascii", "replace").decode() if plain else text


def sentence(report: Report) -> str:
    """What was found."""
    found = [sink for sink in report.sinks if sink.outlier]
    where = f"{report.model}, {report.prompt} ({len(report.ids):,} tokens)"
    if not found:
        return f"{where}: no sinks found; no token receives more attention than its place explains."
    words = []
    for kind, says in (
        ("true", "bound to the first place"),
        ("structural", "of the chat template"),
        ("secondary", "elsewhere in the text"),
    ):
        some = [sink for sink in found if sink.kind == kind]
        if some:
            words.append(f"{len(some)} {kind} ({says}), {report.share(some):.1%} of all attention")
    secondary = sum(sink.kind == "secondary" for sink in found)
    counted = f"{where}: {len(found)} sink{'s' * (len(found) != 1)}: {'; '.join(words)}."
    return f"{counted} {advice(report.card, secondary)}"


def _tables(report: Report, plain: bool) -> Iterable[Table]:
    style = box.ASCII2 if plain else box.SIMPLE_HEAD
    if report.sinks:
        yield _sinks(report, style, plain)
    if report.experiments:
        table = Table(
            "experiment",
            "first place",
            "old first token",
            "says",
            box=style,
            title="What kind of sink: the prompt changed",
        )
        for one in report.experiments:
            table.add_row(one.name, _share(one.first), _share(one.token), one.says)
        yield table
    if report.ablations:
        table = Table(
            "lost", "how", "costs, nats per token", "matched controls", "KL", "same top token", box=style
        )
        table.title = "What losing it costs"
        for lost in report.ablations:
            table.add_row(
                lost.what,
                lost.way,
                _effect(lost.effect),
                f"{_effect(lost.control)} ({lost.controls})",
                f"{lost.effect.kl:.3f}",
                f"{lost.effect.agreement:.1%}",
            )
        yield table
    if report.restored:
        table = Table(
            "pinned",
            "window",
            "without",
            "with",
            box=style,
            title="What pinning gives back: nats per token above the full cache",
        )
        for given in report.restored:
            table.add_row(given.what, f"{given.budget}", _effect(given.without), _effect(given.pinned))
        yield table


def _sinks(report: Report, style: box.Box, plain: bool) -> Table:
    table = Table(
        "token",
        "text",
        "kind",
        "mass",
        "largest head",
        "heads over",
        "z",
        "outlier in layers",
        "key norm",
        "payload",
        box=style,
    )
    found = [sink for sink in report.sinks if sink.outlier]
    others = sorted((sink for sink in report.sinks if not sink.outlier), key=lambda sink: -sink.mass)
    shown = [*found[:_LISTED], *others[:_CANDIDATES]]
    left = len(report.sinks) - len(shown)
    table.title = "Sinks" + (f", {left} more in the page" if left else "")
    if others:
        table.caption = "?: a candidate by its place in the template, whose mass is no outlier"
    heads = len(report.layers) * report.heads
    for sink in shown:
        table.add_row(
            f"{sink.index}",
            Text(ascii(sink.text), overflow="crop", no_wrap=True)
            if plain
            else Text(repr(sink.text), overflow="ellipsis", no_wrap=True),
            sink.kind if sink.outlier else f"{sink.kind}?",
            f"{sink.mass:.2%}",
            f"{sink.most:.1%}",
            f"{sink.heads} of {heads}",
            f"{sink.z:.1f}",
            ", ".join(
                f"{a}-{b - 1}" if b - a > 1 else f"{a}" for a, b in merged((i, i + 1) for i in sink.layers)
            )
            or "-",
            f"{sink.norms['key']:.2f}",
            f"{sink.payload:.2%}",
        )
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _effect(effect: Effect) -> str:
    low, high = effect.ci95
    return f"{effect.delta_nll:+.3f} [{low:+.3f}, {high:+.3f}]"
