"""`results.schema.json` says what `schema.py` checks, and documents of today and of earlier versions follow it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from evaluate.documents import comparison, plain
from sinkpin.evaluate.schema import ARM, HEADER, LATER_IN_ARM, LATER_IN_HEADER

SCHEMA: dict[str, Any] = json.loads(
    files("sinkpin.evaluate").joinpath("results.schema.json").read_text("utf-8")
)
ARM_SCHEMA = SCHEMA["$defs"]["arm"]
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("document", [comparison(), plain()], ids=["now", "earlier"])
def test_documents_follow_it(document: dict[str, Any]) -> None:
    VALIDATOR.validate(document)
    VALIDATOR.validate(document | {"a key that joined later": 1})


def test_what_a_record_writes_follows_it(make: Any) -> None:
    VALIDATOR.validate(make().to_json())


def test_every_key_of_the_record_is_in_it() -> None:
    assert set(HEADER) <= set(SCHEMA["properties"])
    assert set(ARM) <= set(ARM_SCHEMA["properties"])


def test_what_the_reader_insists_on_is_required() -> None:
    assert set(SCHEMA["required"]) - {"schema", "arms"} == set(HEADER) - LATER_IN_HEADER
    assert set(ARM_SCHEMA["required"]) == set(ARM) - LATER_IN_ARM


@pytest.mark.parametrize(
    ("key", "value"),
    [("verdict", "good"), ("ci95", [0.1]), ("top1_agreement", 1.2), ("kv_bytes_steady", "2 MiB"), ("frame", "rank"), ("departs", -1)],
)  # fmt: skip
def test_what_it_refuses_of_an_arm(key: str, value: object) -> None:
    document = comparison()
    document["arms"][1][key] = value
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(document)


@pytest.mark.parametrize("key", ["model", "arms", "notes"])
def test_what_it_misses(key: str) -> None:
    document = comparison()
    del document[key]
    with pytest.raises(jsonschema.ValidationError, match=key):
        VALIDATOR.validate(document)
