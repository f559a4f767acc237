"""`sinkpin compare`: every refusal is one line and leaves nothing, and a run leaves one whole result."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.toys import WORDS, toy_tokenizer
from sinkpin.card import Card, first, indices, opening
from sinkpin.cli import arms, compare, load
from sinkpin.errors import InputError
from sinkpin.evaluate.record import Comparison

FILES = ["nll.npz", "perplexity.png", "report.html", "results.json"]
SMALL = ("--budget", "16", "--tokens", "120", "--device", "cpu")


def left(folder: str | Path = ".") -> list[str]:
    """Every file and folder below, to see that nothing was left behind."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))


@pytest.fixture
def no_model(monkeypatch):
    """Loading a model is waiting, perhaps downloading: these mistakes are told before."""

    def load_model(*args, **options):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(load, "load_model", load_model)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--budget", "0"], "budget 0 leaves room for nothing"),
        (["--budget", "-5"], "budget -5 leaves room for nothing"),
        (["--budget", "-5%"], "budget -5% leaves room for nothing"),
        (["--budget", "64,-5"], "budget -5 leaves room for nothing"),
        (["--budget", "-5,64"], "budget -5 leaves room for nothing"),
        (["--budget", "0%"], "budget 0% leaves room for nothing"),
        (["--budget", "101%"], "is at most 100%"),
        (["--budget", "nonsense"], "budget 'nonsense' cannot be read"),
        (["--budget", ""], "--budget '' has an empty item"),
        (["--budget", "64,,256"], "has an empty item: write a list like 64,256"),
        (["--sinks", ""], "--sinks '' has an empty item: write a list like 0,4"),
        (["--sinks", "-1"], "--sinks '-1' is no number of tokens"),
        (["--sinks", "four"], "--sinks 'four' is no number of tokens"),
        (["--policy", "windo"], "did you mean 'window'?"),
        (["--policy", "window", "--policy", "xyzzy"], "no policy is called 'xyzzy'"),
        (["--policy", "H2O"], "did you mean 'h2o'?"),
        (["--policy", "h2o,tova"], "one policy for each --policy, repeat it: --policy h2o --policy tova"),
        (["--policy", "h2o, tova"], "repeat it: --policy h2o --policy tova"),
        (["--policy", "h2o:recent=0.25,tova"], "one policy for each --policy"),
        (["--policy", "h2o,tova:x=1"], "one policy for each --policy"),
        (["--policy", "snapkv:kernel=5,pool=avg,tova"], "--policy snapkv:kernel=5,pool=avg --policy tova"),
        (["--policy", "h2o,tovaa"], "one policy for each --policy"),
        (["--policy", "random:sed=3"], "policy 'random' has no option 'sed'"),
        (["--policy", "random:seed=x"], "is not of type int"),
        (["--policy", "random:seed"], "is not option=value"),
        (["--policy", "streaming", "--sinks", "0"], "pins at least one"),
        (
            ["--tokens", "1"],
            "--tokens 1: nothing can be predicted in a text of fewer than two tokens; give 2 or more",
        ),
        (
            ["--tokens", "0"],
            "--tokens 0: nothing can be predicted in a text of fewer than two tokens; give 2 or more",
        ),
        (["--tokens", "-1"], "--tokens -1: nothing can be predicted"),
        (
            ["--policy", "snapkv"],
            "snapkv-64+0 chooses once, when the prompt ends, and this text has no prompt: say how "
            "many of its first tokens are one, --prompt N",
        ),
        (["--policy", "adakv:base=snapkv"], "are one, --prompt N"),
        (["--chunk", "0"], "--chunk 0: a forward has at least one token"),
        (["--prompt", "0"], "--prompt 0: a prompt has at least one token"),
        (["--prompt", "-1"], "--prompt -1: a prompt has at least one token; give 1 or more"),
        (["--text", "missing.txt"], "cannot read the text missing.txt (No such file or directory)"),
        (["--text", "."], ". is a folder"),
        (["--pins", "missing.json"], "missing.json does not exist, so there is no sink card to read"),
        (["--pins", "."], ". is a folder: name the card in it"),
    ],
)
def test_told_before_a_model_is_loaded(cli, argv, says):
    assert says in cli("compare", *argv).complaint()
    assert left() == []


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("content", "says"), [(b"", "is empty"), (b"\x7fELF\0", "is binary"), (b"\xff", "is not UTF-8")]
)
def test_texts_that_are_none(cli, monkeypatch, content, says):
    Path("text").write_bytes(content)
    assert says in cli("compare", "--text", "text").complaint()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert says in cli("compare", "--text", "-").complaint()
    assert left() == ["text"]


@pytest.mark.usefixtures("no_model")
def test_an_output_folder_that_cannot_be_written(cli):
    Path("file").write_text("")
    for out in ("file", "file/below", "file/below/deeper"):
        assert f"cannot write into the output folder {out} (" in cli("compare", "--out", out).complaint()
    assert left() == ["file"]
    Path("out/results.json").mkdir(parents=True)
    assert "results.json is a folder" in cli("compare", "--out", "out").complaint()


@pytest.mark.usefixtures("no_model")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_without_permission(cli):
    Path("mine").mkdir(mode=0o500)
    assert "Permission denied" in cli("compare", "--out", "mine").complaint()
    assert "Permission denied" in cli("compare", "--out", "mine/below").complaint()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--budget", "4", "--sinks", "4"], "does not exceed the 4 pinned"),
        (["--budget", "16", "--tokens", "17"], "evicts nothing"),
        (["--budget", "64", "--tokens", "9999", "--text", "short.txt"], "evicts nothing"),
        (["--prompt", "120"], "must leave at least one token to score"),
        (["--replace-first", "two"], "--replace-first 'two' is 3 tokens"),
    ],
)
def test_told_before_anything_is_run(cli, folder, book, argv, says):
    Path("short.txt").write_text("Too short.")
    words = cli("compare", folder, "--text", book, *SMALL, *argv).complaint()
    assert says in words
    assert left() == ["short.txt"]


def test_a_model_folder_without_weights(cli, folder):
    Path("bare").mkdir()
    (Path("bare") / "config.json").write_text((folder / "config.json").read_text())
    assert "bare holds no weights" in cli("compare", "bare").complaint()
    assert left() == ["bare", "bare/config.json"]


def test_learned_positions_that_the_text_would_outrun(cli, book):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=260, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained("gpt2")
    toy_tokenizer().save_pretrained("gpt2")
    words = cli("compare", "gpt2", "--text", book, *SMALL).complaint()
    assert "64" in words
    assert not Path("sinkpin-out").exists()


def test_a_run(cli, folder, book):
    """The whole thing on a random model: table, sentence, warning, notes, files, and a line for each arm."""
    ran = cli("compare", folder, "--text", book, *SMALL)
    assert ran.code == 0
    assert left("sinkpin-out") == FILES
    result = Comparison.load(Path("sinkpin-out"))
    names = ["full", "window-16+0", "streaming-16+4", "random-16+0", "random-16+4"]
    assert [arm.name for arm in result.arms] == names
    assert (result.model, result.tokens, result.chunk) == (str(folder), 120, 16)
    assert f"text: {book}" in result.notes
    lines = ran.err.splitlines()
    assert len(lines) == len(names)
    for number, (line, name) in enumerate(zip(lines, names, strict=True), 1):
        assert re.fullmatch(rf"{re.escape(name)}: 119 tokens in \d+ s \(arm {number} of 5\)", line)
    words = " ".join(ran.out.split())
    for said in (*names, *(f"note: {note}" for note in result.notes), "warning: the first tokens"):
        assert " ".join(said.split()) in words
    assert not re.search(r"[ \t]$", ran.out, re.MULTILINE)
    assert (
        "written: sinkpin-out/results.json, sinkpin-out/nll.npz, sinkpin-out/report.html, sinkpin-out/perplexity.png\n"
        in ran.out
    )


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--budget", "16,16"], "--budget 16 was given twice and taken once"),
        (["--policy", "window", "--policy", "window"], "2 arms were asked for twice and run once"),
        (
            ["--policy", "window", "--policy", "streaming", "--sinks", "4"],
            "1 arm was asked for twice and run once (streaming is window with sinks)",
        ),
        (["--policy", "streaming"], "streaming with 0 sinks is left out: it pins at least one"),
        (["--policy", "window"], None),
    ],
)
def test_what_is_not_run_of_what_was_asked_for_is_noted(cli, folder, book, argv, says):
    ran = cli("compare", folder, "--text", book, *SMALL, *argv, "--json")
    notes = json.loads(ran.out)["notes"]
    noted = [note for note in notes if "twice" in note or "left out" in note]
    assert noted == [] if says is None else len(noted) == 1 and says in noted[0]


def test_json_is_one_document_and_everything_else_is_on_stderr(cli, folder, book):
    ran = cli("compare", folder, "--text", book, *SMALL, "--out", "here", "--json")
    assert ran.code == 0
    document = json.loads(ran.out)
    assert ran.out.count("\n") == 1
    assert document == json.loads(Path("here/results.json").read_text())
    assert "window-16+0" in ran.err
    assert left("here") == FILES


def test_lists_and_options_make_the_product(cli, folder, book):
    policies = ["--policy", "streaming", "--policy", "random:seed=3"]
    sinks = ["--sinks", "1,2", "--frame", "original"]
    ran = cli("compare", folder, "--text", book, *SMALL, *policies, *sinks, "--budget", "16,25%,16", "--json")
    names = [arm["name"] for arm in json.loads(ran.out)["arms"]]
    assert len(names) == 1 + 2 * 2 * 2
    assert "random[seed=3]-25%+2/original" in names


def test_standard_input_and_a_text_shorter_than_asked(cli, folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(WORDS.encode())))
    ran = cli("compare", folder, "--text", "-", "--budget", "16", "--policy", "window", "--json")
    document = json.loads(ran.out)
    assert document["tokens"] == len(WORDS) + 1
    assert "text: standard input" in document["notes"]
    told = f"the text has {len(WORDS) + 1} tokens, fewer than the 4,096 asked for: used whole"
    assert told in document["notes"]
    assert ran.err.startswith(f"note: {told}\nfull: "), "before the work"


def test_replaced_tokens_are_on_record(cli, folder, book):
    argv = ("compare", folder, "--text", book, *SMALL, "--policy", "window", "--json")
    plain, replaced = (json.loads(cli(*argv, *more).out) for more in ([], ["--replace-first", "\\n"]))
    assert r"the first 4 tokens were replaced by '\n'" in replaced["notes"]
    assert plain["arms"][0]["nll"] != replaced["arms"][0]["nll"]


def a_card(*rules, **more):
    """Written to sinks.json in the working directory."""
    card = Card(**{"model": "toy", "model_hash": "ab" * 32, "rules": rules, **more})
    card.write("sinks.json")
    return card


PINS = ("--pins", "sinks.json", "--policy", "window", "--policy", "h2o")


def test_a_card_adds_an_arm_to_each_setting(cli, folder, book):
    """What it pins is resolved on this text, and what is to be said of it is on record."""
    ids = load.load_model(str(folder), device="cpu").tokenizer(WORDS)["input_ids"]
    a_card(opening(ids[:3]), indices([7, 8], ids[7:9]), opening([5, 6, 7]))
    ran = cli("compare", folder, "--text", book, *SMALL, *PINS, "--sinks", "0", "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    names = [arm["name"] for arm in document["arms"]]
    assert names == ["full", "window-16+0", "streaming-16+3+7:9", "h2o-16+0", "h2o-16+3+7:9"]
    for arm, sinks, pins in ((2, 3, [[7, 9]]), (4, 3, [[7, 9]]), (1, 0, [])):
        assert (document["arms"][arm]["sinks"], document["arms"][arm]["pins"]) == (sinks, pins)
    for said in (
        "--pins sinks.json, a card of toy: pins 0:3, 7:9 of this text",
        f"rule opening of the card pins nothing here: token 0 is {ids[0]}, not 5",
        "sinks.json is not of these weights: its model hash differs, so its sinks may be others",
    ):
        assert said in document["notes"]
    assert Comparison.load("sinkpin-out").arms[2].pinned_tokens == 5


def test_a_card_of_this_model_that_pins_what_sinks_pin(cli, folder, book):
    """Kills: one arm under two names; a remark on a model that is the right one."""
    from sinkpin.sinks.identity import model_hash, tokenizer_hash

    loaded = load.load_model(str(folder), device="cpu")
    hashes = {
        "model_hash": model_hash(loaded.model),
        "tokenizer_hash": tokenizer_hash(loaded.tokenizer),
    }
    a_card(first(4), **hashes)
    document = json.loads(cli("compare", folder, "--text", book, *SMALL, *PINS, "--json").out)
    names = [arm["name"] for arm in document["arms"]]
    assert names == ["full", "window-16+0", "streaming-16+4", "h2o-16+0", "h2o-16+4"]
    assert "2 arms of --pins are arms of --sinks too: run once" in document["notes"]
    assert not any("hash" in note for note in document["notes"])
    a_card(first(2), **{**hashes, "tokenizer_hash": "cd" * 32})
    document = json.loads(cli("compare", folder, "--text", book, *SMALL, *PINS, "--json").out)
    assert "streaming-16+2" in [arm["name"] for arm in document["arms"]]
    assert not any("run once" in note for note in document["notes"])
    [said] = [note for note in document["notes"] if "hash" in note]
    assert said.startswith("sinks.json is not of this tokenizer")


def test_a_card_that_pins_nothing_or_more_than_the_budget_holds(cli, folder, book):
    a_card(opening([5, 6, 7]))
    words = cli("compare", folder, "--text", book, *SMALL, *PINS).complaint()
    assert "sinks.json pins nothing in this text (rule opening" in words and "leave --pins out" in words
    a_card()
    assert "it has no rule" in cli("compare", folder, "--text", book, *SMALL, *PINS).complaint()
    a_card(first(16))
    words = cli("compare", folder, "--text", book, *SMALL, *PINS).complaint()
    assert "budget 16 tokens does not exceed the 16 pinned" in words
    assert left() == ["sinks.json"]


def test_without_matplotlib_the_numbers_are_complete(cli, folder, book, monkeypatch):
    Path("sinkpin-out").mkdir()
    Path("sinkpin-out/perplexity.png").write_text("of an earlier run")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = cli("compare", folder, "--text", book, *SMALL)
    assert ran.code == 0
    assert "sinkpin[plot]" in ran.err
    assert len([line for line in ran.err.splitlines() if line.startswith("sinkpin: ")]) == 1
    assert left("sinkpin-out") == ["nll.npz", "report.html", "results.json"]
    assert "perplexity.png" not in ran.out


def test_a_disk_that_fills_up_shows_the_table_at_least(cli, folder, book, monkeypatch):
    def full_disk(self, out):
        raise InputError(f"cannot write the results into {out} (No space left on device)")

    monkeypatch.setattr(Comparison, "save", full_disk)
    ran = cli("compare", folder, "--text", book, *SMALL)
    assert ran.code == 2
    assert "window-16+0" in ran.out
    assert "written:" not in ran.out
    *_, last = ran.err.splitlines()
    assert last == "sinkpin: cannot write the results into sinkpin-out (No space left on device)"


def test_ctrl_c_in_the_middle_leaves_nothing(cli, folder, book, monkeypatch):
    from sinkpin.evaluate import compare as run_compare  # the function; its module is patched below

    assert callable(run_compare)

    def interrupted(model, ids, arms, *, progress, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["sinkpin.evaluate.compare"], "compare", interrupted)
    ran = cli("compare", folder, "--text", book, *SMALL)
    assert (ran.code, ran.out, ran.err) == (130, "", "sinkpin: interrupted\n")
    assert left() == []


def test_ctrl_c_from_outside(folder, tmp_path):
    """A real signal to a real process, while it computes."""
    (tmp_path / "long.txt").write_text(WORDS * 300)
    argv = [
        "compare",
        str(folder),
        "--text",
        "long.txt",
        "--tokens",
        "4000",
        "--chunk",
        "1",
        "--policy",
        "random",
    ]
    # a test run in the background ignores SIGINT, and so would its children
    heard = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{heard}; from sinkpin.cli.main import main; sys.exit(main({argv}))"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "sinkpin: interrupted"
    assert "Traceback" not in err
    assert left(tmp_path) == ["long.txt"]


def test_out_of_memory_is_one_line(cli, folder, book, monkeypatch):
    import torch

    import sinkpin.evaluate.compare  # noqa: F401 - so that it can be patched

    def too_much(*args, **options):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20 GiB")

    monkeypatch.setattr(sys.modules["sinkpin.evaluate.compare"], "compare", too_much)
    assert (
        "runs out of memory on cpu with 120 tokens"
        in cli("compare", folder, "--text", book, *SMALL).complaint()
    )


def test_defaults_are_the_documented_ones():
    import argparse

    parser = argparse.ArgumentParser()
    compare.configure(parser)
    args = parser.parse_args([])
    assert (args.model, args.text, args.budget, args.sinks) == (None, None, "64,256", "0,4")
    assert (args.tokens, args.out, arms.POLICIES) == (4096, Path("sinkpin-out"), ("window", "random"))
