"""The sink card: which tokens of a prompt to pin for one model, as rules, and what is known of them. `sinks.json`.

Plain data: no torch, no transformers, so that any tool can read, check and compare cards. Not here: how sinks are found
(`sinkpin.sinks`), how hashes are made (`sinks.identity`), and the pins of a cache (`cache.carded`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sinkpin.atomic import write_together
from sinkpin.card.changes import Changes, changed
from sinkpin.card.rules import Rule, first, indices, opening, read_rule
from sinkpin.card.schema import KEYS, SCHEMA, mismatch
from sinkpin.errors import InputError
from sinkpin.spans import Span, count, merged

__all__ = ["Card", "Changes", "Rule", "changed", "first", "indices", "opening"]

_LARGEST = 1 << 20  # bytes of a file that is read as a card
_REMEDY = "make it anew with `sinkpin detect`"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What one model's sinks are. `docs/card.md` has the document, field by field.

    `rules`: what is pinned. `needed`: how many first tokens this model needs pinned. `stability`: `jaccard`, `ci95`
    and `prompts`. `sinks`: what was found, each with `index`, `text`, `kind` and `mass`. None: not measured, or not there.
    """

    model: str
    model_hash: str
    tokenizer_hash: str | None = None
    template_hash: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    needed: int | None = None
    stability: Mapping[str, Any] | None = None
    sinks: tuple[Mapping[str, Any], ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA

    def resolve(self, ids: Sequence[int]) -> tuple[list[Span], list[str]]:
        """What to pin in the prompt `ids`, as merged spans, and a note for each rule that does not apply to it."""
        spans: list[Span] = []
        notes = []
        for rule in self.rules:
            if failure := rule.failure(ids):
                notes.append(f"rule {rule.kind} of the card pins nothing here: {failure}")
            else:
                spans += rule.spans
        return merged(spans), notes

    @property
    def spans(self) -> list[Span]:
        """What is pinned in a prompt that every rule applies to."""
        return merged(span for rule in self.rules for span in rule.spans)

    @property
    def most(self) -> int:
        """The most tokens that it can pin, in whatever prompt."""
        return count(self.spans)

    @property
    def reads(self) -> int:
        """How many of a prompt's first tokens decide which rules apply; 0 where none asks for ids."""
        return max((rule.reads for rule in self.rules), default=0)

    def to_json(self) -> dict[str, Any]:
        """The document."""
        document = {name.name: getattr(self, name.name) for name in fields(self)}
        document["rules"] = [rule.to_json() for rule in self.rules]
        document["sinks"] = [dict(sink) for sink in self.sinks]
        document["notes"] = list(self.notes)
        for key in ("settings", "versions", "stability"):
            document[key] = None if document[key] is None else dict(document[key])
        return {"schema": document.pop("schema"), **document}

    @classmethod
    def from_json(cls, document: object, named: str = "the card") -> "Card":
        """The card of a document. Raises `InputError` that begins with `named` for anything but a whole one."""
        if not isinstance(document, dict):
            raise InputError(f"{named} is not an object of JSON, so it is no sink card: {_REMEDY}")
        found = document.get("schema")
        if type(found) is not int or found != SCHEMA:
            raise InputError(
                f"{named} has schema {found!r}, and this sinkpin reads {SCHEMA}: read it with the version that wrote it, "
                f"or {_REMEDY}"
            )
        values = {key: value for key, value in document.items() if key != "schema"}
        if problem := mismatch(values, KEYS):
            raise InputError(f"{named} does not follow schema {SCHEMA} of a sink card ({problem}): {_REMEDY}")
        try:
            rules = tuple(read_rule(rule) for rule in values["rules"])
        except InputError as error:
            raise InputError(f"{named}: {error}; correct it, or {_REMEDY}") from None
        lists = {key: tuple(values[key]) for key in ("sinks", "notes")}
        return cls(**{**values, **lists, "rules": rules})

    @classmethod
    def read(cls, path: str | Path) -> "Card":
        """The card in a file. Raises `InputError`, in one line, for a file that is not there, torn, or no card."""
        path = Path(path)
        if path.is_dir():
            raise InputError(f"{path} is a folder: name the card in it (sinks.json)")
        try:
            with open(path, "rb") as file:
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            raise InputError(
                f"{path} does not exist, so there is no sink card to read: {_REMEDY}, or check the name"
            ) from None
        except OSError as error:
            raise InputError(f"cannot read the card {path} ({error.strerror or error}): {_REMEDY}") from error
        if len(data) > _LARGEST:
            raise InputError(f"{path} is larger than 1 MiB, so it is no sink card: {_REMEDY}")
        try:
            document = json.loads(
                data.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_once_each
            )
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is not UTF-8 (byte {error.start}): {_REMEDY}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not whole JSON ({error}): {_REMEDY}") from None
        return cls.from_json(document, str(path))

    def to_bytes(self) -> bytes:
        """What a card's file holds. Raises `InputError` where it could not be read again."""
        document = self.to_json()
        Card.from_json(document)
        # A lone surrogate, which UTF-8 has no place for, becomes its escape, which JSON has.
        return _text(document).encode("utf-8", "backslashreplace")

    def write(self, path: str | Path) -> None:
        """Write the document, whole or not at all. Raises `InputError` where it could not be read again, or the place
        cannot be written to; an older card then stays as it was."""
        path = Path(path)
        try:
            data = self.to_bytes()
        except InputError as error:
            raise InputError(f"the card is not written to {path}: {error}") from None
        if path.is_dir():
            raise InputError(f"{path} is a folder: name a file in it to write the card to")
        try:
            write_together({path: lambda file: file.write(data)})
        except OSError as error:  # in its own words it names a temporary file
            raise InputError(
                f"cannot write the card to {path} ({error.strerror or error}): name a file in a folder that may be "
                "written to"
            ) from error


def _text(document: Mapping[str, Any]) -> str:
    """JSON with a line for each key, and for each rule and sink: two cards can be read side by side."""

    def line(value: object) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    lines = []
    for key, value in document.items():
        rows = value if key in ("rules", "sinks", "notes") and value else None
        body = line(value) if rows is None else "[\n  " + ",\n  ".join(map(line, rows)) + "\n ]"
        lines.append(f" {line(key)}: {body}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _no_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has {key!r} twice")
        found[key] = value
    return found
