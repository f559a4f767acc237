"""A stream on a tiny model: 20,000 tokens, flat; stopped and continued; told apart when it is not flat."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.conftest import make
from sinkpin.bench import floor, stream, stream_folder
from sinkpin.bench.settings import Stream
from sinkpin.bench.stream_picture import PICTURE, draw
from sinkpin.bench.trend import MEMORY_LIMIT_BYTES, verdict
from sinkpin.errors import InputError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(floor, "READ_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(floor, "_SIDE", {"cpu": 64})


def test_twenty_thousand_tokens_stay_flat(tmp_path):
    """Positions end at 512 in this model: a stream whose positions grew would drift."""
    settings = Stream(entries=64, tokens=20_000, block=2_048, chunk=128, out=str(tmp_path / "out"))
    said: list[str] = []
    subject = make(text=2_500)
    document = stream.run(subject, settings, say=said.append).to_json()
    found = document["verdict"]
    assert found["perplexity"]["flat"], found
    assert found["memory"]["flat"], found
    assert found["bytes_owned"] == {"flat": True, "change": 0, "limit": 0, "how": "largest less smallest"}
    assert found["speed"]["change"] is not None
    assert len(document["rows"]) == len(said) - 1 == 10
    assert [each["whole"] for each in document["passes"]] == [True] * 8  # of 2,500 tokens
    assert sum(each["tokens"] for each in document["passes"]) == 19_999
    draw(document, tmp_path / PICTURE)
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("policy", ["streaming", "h2o"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, policy):
    def run(tokens: int, where: str, **more: object):
        settings = Stream(
            entries=40,
            policy=(policy,),
            tokens=tokens,
            block=256,
            chunk=32,
            out=str(tmp_path / where),
            **more,
        )
        return stream.run(make(), settings).to_json()

    whole = run(1_280, "whole")
    run(513, "parts")
    parts = run(1_280, "parts", resume=True)
    assert [row["nll"] for row in parts["rows"]] == pytest.approx([row["nll"] for row in whole["rows"]])
    assert parts["passes"] == [pytest.approx(each) for each in whole["passes"]]
    assert "continued in a new process after 512 tokens" in parts["notes"]
    assert len(list((tmp_path / "parts").glob("cache-*"))) == 1


def test_a_finished_block_is_there_when_the_next_one_fails(tmp_path, monkeypatch):
    score, calls = stream.score, []

    def interrupted(*args, **more):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(*args, **more)

    monkeypatch.setattr(stream, "score", interrupted)
    settings = Stream(entries=40, tokens=1_000, block=128, chunk=32, out=str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        stream.run(make(), settings)
    document = json.loads((tmp_path / stream_folder.BLOCKS).read_text())
    assert [block["stop"] for block in document["blocks"]] == [128, 256]
    assert (tmp_path / document["cache"]).exists()


def test_a_run_with_other_options_is_not_continued(tmp_path):
    common = {"tokens": 300, "block": 128, "chunk": 32, "out": str(tmp_path)}
    stream.run(make(), Stream(entries=40, **common))
    with pytest.raises(InputError, match="of another run: entries was 40 and is 48"):
        stream.run(make(), Stream(entries=48, resume=True, **common))
    with pytest.raises(InputError, match="of another run: text"):
        stream.run(make(text=600), Stream(entries=40, resume=True, **common))
    with pytest.raises(InputError, match="there is no"):
        stream.run(make(), Stream(entries=40, resume=True, **{**common, "out": str(tmp_path / "elsewhere")}))


def test_passes_are_counted_by_token():
    """Kills: a loss filed under the wrong pass where a block spans two."""
    log = stream_folder.Log({})
    rng = np.random.default_rng(0)
    losses = rng.random(49).astype(np.float32)  # tokens 1 to 49 of a text of 20
    for start, stop in ((0, 7), (7, 30), (30, 49)):
        stream._count(log, losses[start:stop], start, 20)
    assert [each["tokens"] for each in log.passes] == [19, 20, 10]
    assert [each["whole"] for each in log.passes] == [True, True, False]
    assert [each["nll"] for each in log.passes] == pytest.approx(
        [losses[:19].mean(), losses[19:39].mean(), losses[39:].mean()]
    )


def blocks(count: int = 10, **drift: float) -> list[dict[str, float]]:
    rng = np.random.default_rng(1)
    return [
        {
            "nll": 3.0 + 0.01 * rng.standard_normal() + drift.get("nll", 0) * number / count,
            "resident_bytes": int(5e8 + drift.get("resident_bytes", 0) * number / count),
            "nbytes": 1000 + int(drift.get("nbytes", 0) * number),
            "tokens_per_s": 900.0 + drift.get("tokens_per_s", 0) * number / count,
        }
        for number in range(count)
    ]


def test_what_drifts_is_not_flat():
    assert verdict(blocks(), [])["flat"] is True
    for series, drift in (
        ("perplexity", {"nll": 0.5}),
        ("memory", {"resident_bytes": 2 * MEMORY_LIMIT_BYTES}),
        ("bytes_owned", {"nbytes": 1}),
        ("speed", {"tokens_per_s": -300}),
    ):
        found = verdict(blocks(**drift), [])
        assert found[series]["flat"] is False, series
        assert found["flat"] is False
        assert [
            name for name in ("perplexity", "memory", "bytes_owned", "speed") if not found[name]["flat"]
        ] == [series]


def test_passes_over_the_same_tokens_tell_more_than_blocks():
    passes = [
        {"pass": n + 1, "tokens": 9, "nll": nll, "whole": True} for n, nll in enumerate((3.2, 3.0, 3.02))
    ]
    found = verdict(blocks(), passes)["perplexity"]
    assert not found["flat"]
    assert found["change"] == pytest.approx(np.expm1(0.02))
    assert "pass 3" in found["how"] and "pass 2" in found["how"]


def test_few_blocks_tell_nothing():
    assert verdict(blocks(2), [])["flat"] is None
