"""`sinkpin probe`: refusals before a model is loaded, one whole file, one document."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from sinkpin.cli import load, probe
from sinkpin.errors import InputError
from sinkpin.evaluate.probes import TABLE
from sinkpin.evaluate.probes.record import ProbeResult

SMALL = ("--lengths", "500", "--depths", "0.5", "--trials", "2", "--budget", "64", "--device", "cpu")


@pytest.fixture
def no_model(monkeypatch):
    def load_model(*args, **options):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(load, "load_model", load_model)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "the following arguments are required: NAME"),
        (["neddle"], "no probe is called 'neddle' (there are streameval, needle"),
        (["needle", "--distances", "5"], "--distances is no setting of the probe needle (it has --trials, --seed"),
        (["needle", "--lengths", "five"], "argument --lengths: invalid list of whole numbers value: 'five'"),
        (["needle", "--lengths", "512,"], "argument --lengths: invalid list of whole numbers value: '512,'"),
        (["needle", "--depths", "2"], "--depths 2.0: give shares from 0"),
        (["needle", "--question", "both"], "--question both: it is hidden or visible"),
        (["needle", "--trials", "0"], "--trials 0: give a whole number, 1 or more"),
        (["needle", "--budget", "0"], "budget 0 leaves room for nothing"),
        (["needle", "--policy", "h2o,tova"], "one policy for each --policy"),
        (["needle", "--policy", "nothing"], "no policy is called 'nothing'"),
        (["needle", "--chunk", "0"], "--chunk 0: a forward has at least one token"),
        (["needle", "--text", "missing.txt"], "cannot read the text missing.txt"),
        (["needle", "--seed", "-1"], "--seed -1: give a whole number, 0 or more"),
    ],
)  # fmt: skip
def test_told_before_a_model_is_loaded(cli, argv, says):
    assert says in cli("probe", *argv).complaint()
    assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("no_model")
def test_an_output_folder_that_cannot_be_written(cli):
    Path("file").write_text("")
    assert "cannot write into the output folder file" in cli("probe", "needle", "--out", "file").complaint()


def test_every_setting_of_every_probe_is_an_option():
    fields = {field.name for kind in TABLE.values() for field in dataclasses.fields(kind)}
    assert fields == set(probe.SETTINGS)


def test_help_lists_every_probe():
    assert probe.DESCRIPTION.endswith(
        "\n".join(f"  {name:<14}{kind.summary}" for name, kind in TABLE.items())
    )


def test_a_run(cli, folder, book):
    ran = cli("probe", "needle", folder, "--text", book, *SMALL, "--policy", "window", "--policy", "snapkv")
    assert ran.code == 0, ran.err
    assert [path.name for path in Path("sinkpin-out").iterdir()] == ["probe-needle.json"]
    result = ProbeResult.load("sinkpin-out/probe-needle.json")
    assert [arm.name for arm in result.arms] == ["full", "streaming-64+4", "snapkv-64+4"]
    assert (result.model, result.settings["text"]) == (str(folder), str(book))
    assert all(arm.evicted > 400 for arm in result.arms[1:])
    words = " ".join(ran.out.split())
    assert " ".join(result.sentence.split()) in words and "written: sinkpin-out/probe-needle.json" in words
    assert len(ran.err.splitlines()) == 3


def test_json_is_one_document_and_everything_else_is_on_stderr(cli, folder, book):
    ran = cli("probe", "passkey", folder, "--text", book, *SMALL, "--out", "here", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == json.loads(Path("here/probe-passkey.json").read_text())
    assert "streaming-64+4" in ran.err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["needle", "--lengths", "50"], "--lengths 50:"),
        (
            ["needle", "--budget", "600"],
            "streaming-600+4 holds 600 entries and would be asked after 500 tokens",
        ),
        (["instructions"], "this tokenizer has no chat template"),
        (["needle", "--style", "chat"], "this tokenizer has no chat template"),
    ],
)
def test_told_before_anything_is_run(cli, folder, book, argv, says):
    small = SMALL if argv[0] == "needle" else SMALL[4:]
    words = cli("probe", argv[0], folder, "--text", book, *small, *argv[1:]).complaint()
    assert says in words
    assert not Path("sinkpin-out").exists()


def test_a_result_that_cannot_be_written_is_shown_all_the_same(cli, folder, book, monkeypatch):
    def save(result, out):
        raise InputError("no space left")

    monkeypatch.setattr(ProbeResult, "save", save)
    ran = cli("probe", "needle", folder, "--text", book, *SMALL, "--policy", "window")
    assert ran.code == 2 and "streaming-64+4" in ran.out and ran.err.endswith("sinkpin: no space left\n")


@pytest.mark.demo
@pytest.mark.slow
def test_the_demo_model_finds_what_its_cache_holds(cli):
    argv = [
        "--lengths",
        "300",
        "--depths",
        "0,1",
        "--trials",
        "4",
        "--question",
        "hidden",
        "--score",
        "exact",
    ]
    ran = cli("probe", "passkey", *argv, "--policy", "window", "--json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    full, window = result["arms"]
    assert result["can"] and full["score"] == 1.0
    assert [cell["score"] for cell in window["cells"]] == [0.0, 1.0]
    assert window["delta_ci95"][1] < 0
