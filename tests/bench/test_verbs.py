"""Each verb on a tiny model: what it reports is about what it ran."""

from __future__ import annotations

import json

import numpy as np
import pytest

from families import build, tokens
from sinkpin.bench import compiled, decode, floor, memory, perplexity, prefill, stepping
from sinkpin.bench.arms import arms_of
from sinkpin.bench.gate import GateError
from sinkpin.bench.settings import Decode, Memory, Perplexity, Prefill
from sinkpin.bench.subject import Subject
from sinkpin.bench.table import as_text
from sinkpin.errors import InputError
from sinkpin.evaluate import Arm, compare


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(floor, "READ_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(floor, "_SIDE", {"cpu": 64})
    monkeypatch.setattr(memory, "MARKS", 2)  # each reading begins with a collection of all garbage


def document(report):
    """As JSON, which it must survive."""
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    fields = (
        "schema",
        "bench",
        "model",
        "device",
        "dtype",
        "threads",
        "versions",
        "hardware",
        "date",
        "seed",
    )
    assert found.keys() >= {*fields, "settings", "floor", "rows", "notes"}
    for row in found["rows"]:
        assert row.keys() >= {"name", "unit", "median", "p10", "p90", "repeats", "ratio", "times_floor"}
    assert all(row["name"] in as_text(found, width=200) for row in found["rows"])
    return found


def test_decode(subject):
    settings = Decode(
        entries=24, policy=("streaming", "h2o@slots", "snapkv"), batch=(1, 3), repeats=4, warmup=1
    )
    rows = {row["name"]: row for row in document(decode.run(subject, settings))["rows"]}
    arms = ("DynamicCache", "streaming", "h2o slots", "snapkv")
    assert list(rows) == [*(f"{arm} × {n}" for n in (1, 3) for arm in arms), "recompute"]
    for batch in (1, 3):
        assert rows[f"DynamicCache × {batch}"]["ratio"] == 1.0
        assert rows[f"streaming × {batch}"]["tokens_per_s"] == pytest.approx(
            batch / rows[f"streaming × {batch}"]["median"]
        )
    assert rows["streaming × 1"]["batch_gain"] == 1.0
    assert rows["streaming × 3"]["batch_gain"] > 0
    assert rows["recompute"]["repeats"] == 2  # of 4 rounds, every second
    assert rows["streaming × 1"]["recompute_ratio"] > 0
    assert rows["DynamicCache × 3"]["kv_bytes"] == 3 * 24 * 2 * 2 * 2 * 8 * 4
    assert rows["streaming × 3"]["kv_bytes"] > rows["DynamicCache × 3"]["kv_bytes"]


def test_decode_times_a_full_cache_that_evicts_at_every_step(subject):
    """Kills: steps below the budget, or of a cache that is not the one that was filled."""
    settings = Decode(entries=24)
    (arm,) = arms_of(["h2o"])
    with stepping.full(subject, arm, settings, 2) as cache:
        step = stepping.stepper(subject, subject.model, cache, cache.seen, 2)
        for _ in range(3):
            seen = cache.seen
            assert cache.kept() == 24
            step()
            assert (cache.kept(), cache.seen) == (24, seen + 1)


def test_decode_compiled_without_recompiles(subject):
    """A stand-in for 2,000 steps: what is compiled after the warm-up is counted, and there is none."""
    settings = Decode(
        entries=24,
        policy=("streaming",),
        repeats=20,
        warmup=4,
        compile=True,
        backend="eager",
        recompute=False,
    )
    rows = {row["name"]: row for row in document(decode.run(subject, settings))["rows"]}
    assert rows["streaming, compiled"]["recompiles"] == 0
    assert rows["streaming, compiled"]["compiled_gain"] > 0
    assert rows["DynamicCache, compiled"]["recompiles"] == 0


def test_recompiles_are_counted(subject, monkeypatch):
    """Kills: a counter that never counts. Without warm-up the compilation itself falls into the run."""
    monkeypatch.setattr(compiled.gate, "require_close", lambda *_: None)
    monkeypatch.setattr(compiled.gate, "steps", lambda *_: None)
    settings = Decode(entries=24, repeats=3, backend="eager")
    monkeypatch.setattr(
        compiled,
        "interleave",
        lambda steps, rounds, real=compiled.interleave, **more: (
            real(steps, rounds, **more) if more.get("what") else None
        ),
    )
    least = floor.measure(subject)
    (arm,) = arms_of(["streaming"])
    found = compiled.row(subject, settings, arm, least, lambda *_: None)
    assert found.more["recompiles"] > 0


def test_prefill(subject):
    settings = Prefill(entries=24, tokens=(64, 128, 400), quadratic=128, repeats=2)
    found = document(prefill.run(subject, settings))
    rows = {row["name"]: row for row in found["rows"]}
    arms = ("DynamicCache", "streaming", "snapkv", "h2o")
    assert list(rows) == [*(f"{arm}, {n}" for n in (64, 128) for arm in arms), "streaming, 400"]
    assert rows["streaming, 400"]["ratio"] is None
    assert rows["streaming, 64"]["growth"] == 1.0
    assert rows["streaming, 400"]["growth"] > 0
    assert all(row["chunk"] == row["tokens"] for row in rows.values())
    assert any("more than 128 tokens" in note for note in found["notes"])


def test_prefill_in_chunks_where_the_whole_does_not_fit(subject, monkeypatch):
    monkeypatch.setattr(prefill, "_free", lambda device: 1 << 20)
    monkeypatch.setattr(prefill, "CHUNK", 50)
    found = document(
        prefill.run(subject, Prefill(entries=24, policy=("streaming",), tokens=(40, 400), repeats=1))
    )
    assert [row["chunk"] for row in found["rows"]] == [40, 40, 50, 50]
    assert any("400 tokens were fed 50 at a time" in note for note in found["notes"])


def test_memory(subject):
    settings = Memory(entries=24, policy=("streaming", "h2o"), tokens=200, step=8, prefill=600, chunk=32)
    rows = document(memory.run(subject, settings))["rows"]
    assert [row["name"] for row in rows[:2]] == [
        "streaming, growth over 200 tokens",
        "streaming, peak of 600 tokens",
    ]
    growth, peak = rows[:2]
    assert growth["nbytes_growth"] == 0
    assert len(growth["growth_at_marks"]) == memory.MARKS
    assert growth["dynamic_bytes"] == 200 * 256
    assert peak["budget_bytes"] == peak["held_bytes"] <= peak["cache_peak_bytes"]
    assert peak["allowed_bytes"] == peak["budget_bytes"] + peak["chunk_bytes"] + peak["workspace_bytes"]


def test_memory_that_grows_is_seen(subject, monkeypatch):
    """Kills: a reading of something else than this process."""
    kept: list[np.ndarray] = []
    feed = memory._feed

    def leaky(*args):
        kept.append(np.ones(1 << 17))  # 1 MiB
        feed(*args)

    monkeypatch.setattr(memory, "_feed", leaky)
    rows = memory.run(subject, Memory(entries=24, policy=("streaming",), tokens=200)).rows
    assert rows[0].median >= 2 << 20


def test_memory_that_cannot_be_read_is_one_line(subject, monkeypatch):
    monkeypatch.setattr(memory.Resident, "now", lambda self: None)
    with pytest.raises(InputError, match="cannot be read here"):
        memory.run(subject, Memory(entries=24))


def test_perplexity(subject):
    settings = Perplexity(entries=40, tokens=500, loop_tokens=257, chunk=64)
    found = document(perplexity.run(subject, settings))
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == [
        perplexity.BAND,
        perplexity.LOOP,
        perplexity.BAND_ORIGINAL,
        perplexity.PLAIN,
        "by chunks, all 500 tokens",
    ]
    assert rows[perplexity.BAND]["ppl"] == pytest.approx(rows[perplexity.LOOP]["ppl"], rel=1e-4)
    assert rows[perplexity.BAND_ORIGINAL]["ppl"] == pytest.approx(rows[perplexity.PLAIN]["ppl"], rel=1e-4)
    assert rows[perplexity.BAND]["ppl"] != pytest.approx(rows[perplexity.BAND_ORIGINAL]["ppl"], rel=1e-4)
    assert rows[perplexity.BAND]["tokens"] == 256
    assert rows[perplexity.LOOP]["faster_than_loop"] == 1.0
    assert max(found["largest_difference_nats"].values()) < 1e-2


def test_perplexity_is_that_of_compare(subject):
    """The loss of each token that `compare` scores is the one counted here."""
    whole = perplexity.run(subject, Perplexity(entries=40, tokens=300, loop_tokens=100, chunk=64)).rows[-1]
    arms = [Arm("window", budget=40, sinks=4)]
    compared = compare(subject.model, subject.tokens(0, 300), arms)
    before = perplexity.run(subject, Perplexity(entries=40, tokens=41, loop_tokens=30, chunk=64)).rows[-1]
    total = np.log(whole.more["ppl"]) * 299 - np.log(before.more["ppl"]) * 40
    assert total == pytest.approx(compared.losses[compared.arms[1].name].sum(), rel=1e-4)


def test_perplexity_is_not_timed_where_the_ways_disagree(subject, monkeypatch):
    cut = perplexity.Way._cut
    monkeypatch.setattr(perplexity.Way, "_cut", lambda self, ids: cut(self, ids) + 0.01)
    with pytest.raises(GateError, match="losses differ by"):
        perplexity.run(subject, Perplexity(entries=40, tokens=100, loop_tokens=50))


def test_the_plain_loop_is_left_out_where_it_cannot_cut():
    hybrid = Subject(build("gemma2"), tokens(300)[0], "hybrid")
    found = document(perplexity.run(hybrid, Perplexity(entries=40, tokens=120, loop_tokens=60, chunk=16)))
    assert perplexity.PLAIN not in {row["name"] for row in found["rows"]}
    assert any("left out" in note for note in found["notes"])


def test_settings_that_cannot_be():
    with pytest.raises(InputError, match="--entries 4 with --sinks 4"):
        Decode(entries=4)
    with pytest.raises(InputError, match="--batch 0: give 1 or more"):
        Decode(batch=(1, 0))
    with pytest.raises(InputError, match="--loop-tokens 1"):
        Perplexity(loop_tokens=1)


def test_a_number_that_is_not_finite_is_no_result(subject):
    report = decode.run(
        subject, Decode(entries=24, policy=("streaming",), repeats=1, warmup=1, recompute=False)
    )
    report.rows[0] = report.rows[0].__class__(**{**vars(report.rows[0]), "ratio": float("nan")})
    with pytest.raises(InputError, match="not a finite number"):
        report.to_json()


def test_hybrid_and_learned_models_can_be_measured():
    for family in ("gemma2", "gpt2"):
        subject = Subject(build(family), tokens(300)[0], family)
        policy = ("streaming@original",) if family == "gpt2" else ("streaming", "h2o")
        settings = Decode(entries=24, policy=policy, repeats=2, warmup=1, recompute=False)
        assert document(decode.run(subject, settings))["rows"]
