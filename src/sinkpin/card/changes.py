"""What moved from one sink card to another, apart from what merely differs: the gate that `detect --check` is.

Moved is what changes which tokens are pinned, or ought to be: the rules, how many first tokens the model needs, and
where its true sinks are. Everything else is a remark: hashes and settings say that something is another, not that a sink
is elsewhere. Not compared: versions, notes, and the text and mass of a sink.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sinkpin.card.rules import RULES, Rule

if TYPE_CHECKING:
    from sinkpin.card import Card

_TRUE = "true"  # the kind of a sink that attention itself shows, in `sinks`


@dataclass
class Changes:
    """In words: `moved` is what a check fails on, `remarks` what it only mentions."""

    moved: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def changed(old: "Card", new: "Card") -> Changes:
    """What `new` has otherwise than `old`."""
    found = Changes()
    for kind in dict.fromkeys([*RULES, *(rule.kind for rule in (*old.rules, *new.rules))]):
        before, after = ([rule for rule in card.rules if rule.kind == kind] for card in (old, new))
        if before != after:
            found.moved.append(_rules(kind, before, after))
    if old.needed != new.needed:
        said = f"needed: {_or_none(old.needed)} -> {_or_none(new.needed)}"
        (found.remarks if None in (old.needed, new.needed) else found.moved).append(said)
    for kind in dict.fromkeys([_TRUE, *(sink["kind"] for sink in (*old.sinks, *new.sinks))]):
        before_at, after_at = (_places(card, kind) for card in (old, new))
        if before_at != after_at:
            said = f"{kind} sinks at: {_listed(before_at)} -> {_listed(after_at)}"
            (found.moved if kind == _TRUE else found.remarks).append(said)
    found.remarks += _remarks(old, new, moved=bool(found.moved))
    return found


def _rules(kind: str, before: Sequence[Rule], after: Sequence[Rule]) -> str:
    if len(before) > 1 or len(after) > 1:
        return f"rules {kind}: {len(before)} -> {len(after)}" + (
            ", others" if len(before) == len(after) else ""
        )
    if kind == "opening" and before and after:
        (old,), (new,) = before, after
        place = next(
            (i for i, (a, b) in enumerate(zip(old.asks, new.asks, strict=False)) if a != b),
            min(len(old.asks), len(new.asks)),
        )
        return f"the template's opening changed: {len(old.asks)} tokens -> {len(new.asks)}, from token {place} on"
    return f"rule {kind}: {_said(before)} -> {_said(after)}"


def _said(rules: Sequence[Rule]) -> str:
    """A rule's fields, short."""
    if not rules:
        return "none"
    [rule] = rules
    if rule.kind == "opening":
        return f"{len(rule.asks)} tokens"
    if rule.asks:
        return ", ".join(f"token {token} at {index}" for index, token in rule.asks)
    return ", ".join(str(value) for _, value in rule.fields)


def _remarks(old: "Card", new: "Card", *, moved: bool) -> list[str]:
    remarks = []
    stay = "" if moved else ", and the sinks are where they were"
    for what, one, other in (
        ("model", old.model_hash, new.model_hash),
        ("tokenizer", old.tokenizer_hash, new.tokenizer_hash),
        ("template", old.template_hash, new.template_hash),
    ):
        if one != other:
            remarks.append(f"the {what}'s hash differs{stay}")
    if old.model != new.model:
        remarks.append(f"model: {old.model} -> {new.model}")
    for key in sorted(old.settings.keys() | new.settings.keys()):
        one, other = (card.settings.get(key, "none") for card in (old, new))
        if one != other:
            remarks.append(f"setting {key}: {one} -> {other}: the two were not measured alike")
    was, now = (None if card.stability is None else card.stability["jaccard"] for card in (old, new))
    if was != now:
        remarks.append(f"stability: {_or_none(was, '.2f')} -> {_or_none(now, '.2f')}")
    return remarks


def _places(card: "Card", kind: str) -> list[int]:
    return sorted({sink["index"] for sink in card.sinks if sink["kind"] == kind})


def _listed(places: Sequence[int]) -> str:
    return ", ".join(map(str, places)) or "none"


def _or_none(value: float | None, form: str = "") -> str:
    return "not measured" if value is None else format(value, form)
