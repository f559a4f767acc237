"""benchmarks/: the README shows what the kept files say, and the jobs are ones that `sinkpin bench` takes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2] / "benchmarks"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", ROOT / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A run of two arms, and a peer."""
    row = {"unit": "seconds", "p10": 0.01, "p90": 0.03, "repeats": 9, "times_floor": 2.0}
    document = {
        "job": "decode",
        "commit": "abc123",
        "bench": "decode",
        "model": "a model",
        "dtype": "float32",
        "threads": 2,
        "versions": {"torch": "2.13.0", "transformers": "5.24.0", "sinkpin": "0.1.0"},
        "hardware": {"cpu": "a processor", "card": None},
        "date": "2026-01-02T03:04:05+00:00",
        "rows": [
            {"name": "DynamicCache", "median": 0.02, "ratio": 1.0, "tokens_per_s": 50.0, **row},
            {"name": "streaming", "median": 0.0208, "ratio": 1.04, "tokens_per_s": 48.1, **row},
        ],
        "notes": ["a note"],
    }
    (tmp_path / "decode.json").write_text(json.dumps(document) + "\n")
    peers = [
        {"peer": "one", "decode_ratio": 1.5, "second_turn_bounded": False},
        {"peer": "two", "failed": "why"},
    ]
    (tmp_path / "peers.jsonl").write_text("".join(json.dumps(peer) + "\n" for peer in peers))
    return tmp_path


def test_the_readme_is_what_the_kept_results_say():
    table = script("table")
    assert table.put(
        table.README.read_text(encoding="utf-8"), table.render(table.read(ROOT / "results"))
    ) == (table.README.read_text(encoding="utf-8"))


def test_a_run_and_its_peers(kept):
    table = script("table")
    words = table.render(table.read(kept))
    assert "| streaming | 20.8 ms | 10 ms | 30 ms | 1.04 | 2.00 | 48.1 |" in words
    assert "sinkpin 0.1.0 at abc123; 2026-01-02." in words
    assert "- a note" in words
    assert "| one | 1.5 | - | - | - | no |" in words
    assert "| two | failed: why |" in words
    readme = "x\n<!-- results -->\nold\n<!-- /results -->\ny"
    assert table.put(readme, words) == f"x\n<!-- results -->\n{words}<!-- /results -->\ny"


def test_of_many_rows_the_ends_are_shown(kept):
    table = script("table")
    document = table.read(kept)[0]
    document["rows"] = [{**document["rows"][0], "name": f"to {number}"} for number in range(20)]
    lines = [line for line in table.render([document]).splitlines() if line.startswith("| to ")]
    assert [line.split(" | ")[0] for line in lines] == [f"| to {number}" for number in (0, 1, 2, 17, 18, 19)]


@pytest.mark.parametrize("quick", [False, True])
def test_the_jobs_are_ones_that_the_command_takes(quick):
    """Kills: an option that was renamed in `sinkpin bench` and not here."""
    import argparse

    from sinkpin.cli import bench, bench_options

    run = script("run")
    assert run.QUICK.keys() == run.JOBS.keys()
    parser = argparse.ArgumentParser(allow_abbrev=False)
    bench.configure(parser)
    for name, argv in run.JOBS.items():
        args = parser.parse_args(argv + (run.QUICK[name] if quick else []))
        bench_options.settings_of(args)


def test_a_failing_job_is_said_and_leaves_no_file(tmp_path, monkeypatch, capfd):
    run = script("run")
    argv = ["run.py", "--only", "decode,prefill", "--to", str(tmp_path), "--", "--xyzzy"]
    monkeypatch.setattr("sys.argv", argv)
    assert run.main() == 1
    assert "failed: decode, prefill" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
