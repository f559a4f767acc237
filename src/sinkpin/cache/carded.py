"""Pins that a sink card names by rules: what a cache has to know beforehand, and the spans of the prompt that came.

A rule asks for the ids at a prompt's beginning, so it is resolved once, at the first forward, row by row, by real tokens.
Not here: what the rules are (`sinkpin.card`), what pins do (`policies.pins`), and whether the card is this model's, which
no cache checks: hashing weights takes time (`detect --check` and `compare --pins` do).
"""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from sinkpin.card import Card, Rule
from sinkpin.errors import InputError
from sinkpin.policies.pins import Pins


def read_pins(sinks: int, pins: Sequence[object] | str | Path | Card | None) -> tuple[Pins, Card | None]:
    """The pins that hold until a prompt has come, and the card, if `pins` is one or names its file.

    With a card they are those of a prompt that every rule applies to, of which no prompt has more. Raises `InputError`.
    """
    card = Card.read(pins) if isinstance(pins, str | Path) else pins
    if isinstance(card, Card):
        return Pins.read(sinks, card.spans), card
    return Pins.read(sinks, card), None


def resolve(card: Card, sinks: int, fed: Tensor, index: Tensor) -> tuple[Pins, list[str]]:
    """The pins of each row of a first forward, united with the first `sinks` tokens, and notes on rules that do not apply.

    `fed` is ids `[batch, new]` or embeddings `[batch, new, hidden]`; `index [batch, new]` counts real tokens, -1 is
    padding. Raises `InputError` where a rule asks for ids that are not there.
    """
    asking = [rule for rule in card.rules if rule.reads]
    if not asking:
        return Pins.read(sinks, card.spans), []
    if fed.ndim != 2:
        raise InputError(
            f"inputs_embeds with a card whose rules ask for ids ({', '.join(rule.kind for rule in asking)}): they cannot be "
            "resolved; give input_ids, or pins as spans [(start, stop), …]"
        )
    rows, said = [], dict[str, list[int]]()
    for number, (ids, own) in enumerate(zip(fed, index >= 0, strict=True)):
        begun: list[int] = ids[own][: card.reads].tolist()
        for rule in asking:
            if rule.undecided(begun):
                raise InputError(_too_short(rule, len(begun), number, len(fed)))
        spans, notes = card.resolve(begun)
        rows.append(spans)
        for note in notes:
            said.setdefault(note, []).append(number)
    return Pins.read(sinks, rows), [_where(which, len(fed)) + note for note, which in said.items()]


def _where(rows: list[int], batch: int) -> str:
    """Which rows a note is of; nothing where it is of all."""
    if len(rows) == batch:
        return ""
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows))} of {batch}: "


def _too_short(rule: Rule, brought: int, row: int, batch: int) -> str:
    where = f"row {row}" if batch > 1 else "the first forward"
    return (
        f"{where} brings {brought} tokens, and the card's rule {rule.kind} needs {rule.reads} to tell whether it applies: feed "
        "the prompt's beginning in one forward, or give pins as spans [(start, stop), …]"
    )
