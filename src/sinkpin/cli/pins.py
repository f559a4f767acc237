"""`compare --pins`: the arms that a sink card asks for on one text, and what is to be said of it.

Rules are resolved here, on the ids that are compared, so that an arm holds plain spans. Not here: the card itself
(`sinkpin.card`), and which other arms there are (`arms`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sinkpin.card import Card
from sinkpin.errors import InputError

if TYPE_CHECKING:
    from sinkpin.cli.load import Loaded
    from sinkpin.evaluate.arms import Arm


def pinned_by(
    card: Card, path: Path, arms: "Sequence[Arm]", ids: Sequence[int], loaded: "Loaded"
) -> tuple["list[Arm]", list[str]]:
    """`arms` with those that the card pins in the text `ids`, and notes. Raises `InputError` where it pins nothing."""
    from sinkpin.evaluate.arms import with_pins

    spans, failed = card.resolve(ids)
    if not spans:
        raise InputError(
            f"{path} pins nothing in this text ({'; '.join(failed) or 'it has no rule that pins'}): give a text that begins as "
            "the card's prompts do, or leave --pins out"
        )
    listed = ", ".join(f"{start}:{stop}" for start, stop in spans)
    notes = [f"--pins {path}, a card of {card.model}: pins {listed} of this text", *failed]
    more = with_pins(arms, spans)
    settings = len(with_pins(arms, [(0, len(ids) + 1)])) - len(arms)  # as nobody has pinned before
    if (twice := settings - (len(more) - len(arms))) > 0:
        same = "arm of --pins is an arm" if twice == 1 else "arms of --pins are arms"
        notes.append(f"{twice} {same} of --sinks too: run once")
    return more, notes + _of_another(card, path, loaded)


def _of_another(card: Card, path: Path, loaded: "Loaded") -> list[str]:
    """Whether the card was made for another model or tokenizer: remarkable, and no mistake."""
    from sinkpin.sinks.identity import model_hash, tokenizer_hash

    notes = []
    if model_hash(loaded.model) != card.model_hash:
        notes.append(f"{path} is not of these weights: its model hash differs, so its sinks may be others")
    if card.tokenizer_hash is not None and tokenizer_hash(loaded.tokenizer) != card.tokenizer_hash:
        notes.append(f"{path} is not of this tokenizer: its tokenizer hash differs, so its ids may be others")
    return notes
