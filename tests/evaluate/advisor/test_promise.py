"""A promise's file: written whole, read back as it was, refused where it is not one; and a setting in its three spellings."""

from __future__ import annotations

import json

import pytest

from sinkpin.errors import InputError
from sinkpin.evaluate.advisor import promise
from sinkpin.evaluate.advisor.settings import Setting, setting


@pytest.fixture
def document():
    return {
        "schema": 1,
        "model": "m",
        "model_hash": "0" * 64,
        "tokenizer_hash": "1" * 64,
        "workload": "rag",
        "max_loss": 0.01,
        "settings": setting("h2o:recent=0.25", 4, None, None).with_budget(512).to_json(),
        "design": {"length": 2561, "chunk": 16},
        "texts": [{"name": "a.txt", "source": "a.txt", "sha256": "2" * 64, "tokens": 9}],
    }


def test_what_is_written_is_read(document, tmp_path):
    promise.write(document, tmp_path / "new" / "sinkpin.json")
    found = promise.read(tmp_path / "new" / "sinkpin.json")
    assert found.document == document
    assert found.setting == setting("h2o:recent=0.25", 4, None, None).with_budget(512)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["sinkpin.json"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 2}, "schema 2, and this version of sinkpin reads 1"),
        ({"schema": True}, "schema True"),
        ({"settings": None}, "settings is None"),
        ({"workload": "cooking"}, "workload is 'cooking'"),
        ({"max_loss": "1%"}, "max_loss is '1%'"),
        ({"max_loss": -1}, "max_loss is -1"),
        ({"design": {"length": 5}}, "design.chunk is missing"),
        ({"texts": [{}]}, "texts: name is missing"),
    ],
)
def test_what_is_no_promise_is_refused_in_one_line(document, tmp_path, change, says):
    path = tmp_path / "sinkpin.json"
    path.write_text(json.dumps(document | change))
    with pytest.raises(InputError) as told:
        promise.read(path)
    assert says in str(told.value)
    assert "sinkpin plan" in str(told.value)


@pytest.mark.parametrize(
    ("key", "value"), [("policy", "h20"), ("budget", 0), ("pins", "tape"), ("sinks", -1)]
)
def test_settings_that_there_are_not_are_refused(document, tmp_path, key, value):
    document["settings"][key] = value
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"p\.json"):
        promise.read(tmp_path / "p.json")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"schema": NaN}'])
def test_a_torn_file_is_refused(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(InputError):
        promise.read(tmp_path / "p.json")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        promise.read(tmp_path / "p.json")


def test_a_setting_in_its_spellings():
    chat = setting("window", 4, "slots", "system").with_budget(1024)
    assert chat.name == "streaming-1024+4+system/slots"
    assert chat.as_python([(0, 57)]) == (
        "cache = sinkpin.BoundedCache(model, budget=1024, policy='streaming', sinks=4, pins=[(0, 57)], frame='slots')"
    )
    assert chat.as_flags() == "--policy streaming --budget 1024 --sinks 4 --frame slots"
    wrapped = setting("adakv:base=snapkv,base.kernel=5", 4, None, "card").with_budget(64)
    assert wrapped.as_flags("s.json") == (
        "--policy adakv:base=snapkv,base.kernel=5 --budget 64 --sinks 4 --pins s.json"
    )
    assert Setting.from_json(json.loads(json.dumps(wrapped.to_json()))) == wrapped
