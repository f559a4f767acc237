"""`sinkpin bench`: options of each verb, what is printed, and the exit codes."""

from __future__ import annotations

import json

import pytest

from sinkpin.bench import floor, gate, memory
from sinkpin.bench.settings import VERBS
from sinkpin.cli import bench

SMALL = {
    "decode": ["--entries", 24, "--repeats", 2, "--warmup", 1],
    "prefill": ["--entries", 24, "--tokens", "40,80", "--repeats", 1],
    "memory": ["--policy", "streaming", "--entries", 24, "--tokens", 100, "--prefill", 100, "--chunk", 16],
    "perplexity": ["--entries", 40, "--tokens", 120, "--loop-tokens", 60, "--chunk", 16],
    "stream": ["--entries", 40, "--tokens", 200, "--block", 64, "--chunk", 16, "--out", "run"],
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(floor, "READ_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(floor, "_SIDE", {"cpu": 64})
    monkeypatch.setattr(memory, "MARKS", 2)  # each reading begins with a collection of all garbage


@pytest.mark.parametrize("verb", VERBS)
def test_a_table_and_one_json_line(cli, folder, book, verb):
    ran = cli("bench", verb, folder, "--text", book, "--no-novel", "--dtype", "float32", *SMALL[verb])
    assert ran.code == 0, ran.err
    table, _, last = ran.out.rstrip("\n").rpartition("\n")
    document = json.loads(last)
    assert document["bench"] == verb
    assert document["rows"] and document["rows"][0]["name"] in table
    assert max(map(len, table.splitlines())) <= 120
    assert any(str(book) in note for note in document["notes"])


@pytest.mark.parametrize("verb", ["decode", "stream"])
def test_json_alone_on_standard_output(cli, folder, book, verb):
    ran = cli("bench", verb, folder, "--text", book, "--no-novel", "--json", *SMALL[verb])
    assert ran.code == 0, ran.err
    assert ran.out.count("\n") == 1
    assert json.loads(ran.out)["settings"]["entries"] == SMALL[verb][1]
    assert "× floor" in ran.err


def test_stream_leaves_a_picture_and_can_be_continued(cli, folder, book, tmp_path):
    argv = ["bench", "stream", folder, "--text", book, "--no-novel", *SMALL["stream"]]
    assert cli(*argv).code == 0
    assert (tmp_path / "work" / "run" / "stream.png").exists()
    argv[argv.index("--tokens") + 1] = 300
    ran = cli(*argv, "--resume")
    assert ran.code == 0, ran.err
    assert any("continued" in note for note in json.loads(ran.out.splitlines()[-1])["notes"])


def test_the_novel_comes_first(cli, folder, book, monkeypatch):
    monkeypatch.setattr("sinkpin.demo.sample_text", lambda: "abc " * 50)
    ran = cli("bench", "decode", folder, "--text", book, *SMALL["decode"])
    assert f"Pride and Prejudice, {book}" in json.loads(ran.out.splitlines()[-1])["notes"][-1]


def test_a_red_gate_is_one_line_and_no_number(cli, folder, book, monkeypatch):
    monkeypatch.setattr(gate, "difference", lambda mine, theirs: 0.5)
    ran = cli("bench", "decode", folder, "--text", book, "--no-novel", *SMALL["decode"])
    assert (ran.code, ran.out) == (bench.RED, "")
    assert ran.err.startswith("sinkpin: streaming below its budget")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "the following arguments are required: VERB"),
        (["decod"], "invalid choice: 'decod'"),
        (["decode", "--block", "5"], "--block is an option of stream, not of decode"),
        (["prefill", "--no-recompute"], "--no-recompute is an option of decode, not of prefill"),
        (["decode", "--batch", "1,x"], "--batch '1,x': write whole numbers"),
        (["stream", "--tokens", "1,2"], "--tokens 1,2: this verb takes one number"),
        (["decode", "--entries", "4"], "--entries 4 with --sinks 4"),
        (["decode", "--repeat", "3"], "did you mean '--repeats'?"),
        (["decode", "--threads", "0"], "--threads 0: give 1 or more"),
        (["decode", "--no-novel"], "--no-novel without --text"),
    ],
)
def test_mistakes_are_one_line(cli, argv, says):
    assert says in cli("bench", *argv).complaint()


def test_a_policy_that_is_not_there(cli, folder, book):
    ran = cli("bench", "decode", folder, "--text", book, "--no-novel", "--policy", "h20", *SMALL["decode"])
    assert "no policy is called 'h20'" in ran.complaint()


def test_help_says_every_default(cli, capfd):
    with pytest.raises(SystemExit):
        cli("bench", "--help")
    words = " ".join(capfd.readouterr().out.split())
    for said in (
        "decode, prefill, memory, perplexity, stream",
        "(default: 1024)",
        "(default: 4096,8192,32768)",
    ):
        assert said in words
    assert "does not extend the context window" in words
