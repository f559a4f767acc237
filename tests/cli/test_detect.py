"""`sinkpin detect` as it is typed: files, exit codes, one line for what is wrong."""

import json

import pytest

from sinkpin.card import Card
from sinkpin.sinks import experiments


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(experiments, "RUNS", 1)
    monkeypatch.setattr(experiments, "TOKENS", 100)


def detect(cli, folder, *words):
    return cli("detect", str(folder), *words)


def test_three_files_and_a_table(cli, folder, book, tmp_path):
    ran = detect(cli, folder, "--text", str(book), "--tokens", "300", "--out", str(tmp_path / "out"))
    assert ran.code == 0, ran.err
    assert "experiment" in ran.out and "written:" in ran.out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "detect.json",
        "report.html",
        "sinks.json",
    ]
    document = json.loads((tmp_path / "out" / "detect.json").read_text())
    assert document["settings"]["tokens"] == 300 and len(document["tokens"]["texts"]) == 300
    assert Card.read(tmp_path / "out" / "sinks.json").settings["tokens"] == 300


def test_json_alone_on_standard_output(cli, folder, book, tmp_path):
    ran = detect(cli, folder, "--text", str(book), "--tokens", "200", "--out", str(tmp_path), "--json")
    assert ran.code == 0 and ran.out.count("\n") == 1
    assert json.loads(ran.out)["schema"] == 1 and "written:" in ran.err


def test_plain_is_ascii(cli, folder, book, tmp_path):
    ran = detect(cli, folder, "--text", str(book), "--tokens", "200", "--out", str(tmp_path), "--plain")
    assert ran.code == 0 and ran.out.isascii()


def test_a_string_and_a_chat(cli, folder, tmp_path):
    ran = detect(cli, folder, "--prompt", "one two three " * 10, "--out", str(tmp_path))
    assert ran.code == 0, ran.err
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps([{"role": "user", "content": "Hello " * 20}]))
    assert "no chat template" in detect(cli, folder, "--chat", str(chat), "--out", str(tmp_path)).complaint()


def test_check_is_a_gate(cli, folder, book, tmp_path):
    detect(cli, folder, "--text", str(book), "--tokens", "200", "--epsilon", "0.2", "--out", str(tmp_path))
    card = tmp_path / "sinks.json"
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    same = detect(cli, folder, "--text", str(book), "--check", str(card))
    assert same.code == 0 and "the sinks are where they were" in same.out
    assert "setting" not in same.out  # it was made again as the card says
    assert {path: path.read_bytes() for path in before} == before
    document = json.loads(card.read_text())
    document["rules"] = [{"rule": "first", "count": 7}]
    card.write_text(json.dumps(document))
    moved = detect(cli, folder, "--text", str(book), "--check", str(card))
    assert moved.code == 1 and "moved: rule first: 7 -> " in moved.out
    as_json = detect(cli, folder, "--text", str(book), "--check", str(card), "--json")
    assert as_json.code == 1 and json.loads(as_json.out)["moved"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--text", "nowhere.txt"], "nowhere.txt"),
        (["--chat", "nowhere.json"], "nowhere.json"),
        (["--prompt", ""], "--prompt is empty"),
        (["--prompt", "too short"], "nothing would be measured"),
        (["--epsilon", "2"], "--epsilon 2"),
        (["--rate", "0"], "--rate 0"),
        (["--left-out", "-1"], "--left-out -1"),
        (["--tokens", "1"], "--tokens 1"),
        (["--check", "nowhere.json"], "nowhere.json does not exist"),
        (["--text", "a", "--prompt", "b"], "not allowed with"),
        (["--out", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_mistakes_are_one_line(cli, folder, words, says):
    assert says in detect(cli, folder, *words).complaint()
