"""The record of a probe: the same when read back, refused when it is not whole, and read without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from sinkpin.errors import InputError
from sinkpin.evaluate.probes.record import ProbeArm, ProbeResult


def arm(name="full", **more):
    known = {
        "policy": name.split("-")[0],
        "options": {},
        "sinks": 0,
        "frame": None,
        "budget": None,
        "budget_tokens": None,
        "kv_bytes_steady": 4096,
        "evicted": 0.0,
        "score": 0.9,
        "ci95": (0.8, 0.95),
        "n": 40,
        "delta": 0.0,
        "delta_ci95": None,
        "cells": [{"length": 512, "depth": 0.5, "score": 0.9, "ci95": (0.8, 0.95), "n": 40}],
        "measures": {"held": 1.0},
    }
    return ProbeArm(name=name, **{**known, **more})


def result(**more):
    known = {
        "probe": "needle",
        "model": "a model",
        "versions": {"sinkpin": "0.1.0"},
        "settings": {"lengths": [512]},
        "axes": ["length", "depth"],
        "chance": 0.125,
        "chance_says": "one of 8",
        "can": True,
        "sentence": "It can, with ü.",
        "notes": ["a note"],
        "arms": [arm(), arm("window-64+0", delta=-0.5, delta_ci95=(-0.6, -0.4), score=0.4)],
    }
    return ProbeResult(**{**known, **more})


def test_it_is_the_same_when_read_back(tmp_path):
    path = result().save(tmp_path / "new" / "folder")
    assert path.name == "probe-needle.json" and [each.name for each in path.parent.iterdir()] == [path.name]
    document = json.loads(path.read_text())
    assert (document["schema"], document["probe"]) == (1, "needle")
    again = ProbeResult.load(path)
    assert again.to_json() == document == result().to_json()
    assert again.arms[1].delta_ci95 == (-0.6, -0.4) and again.arms[0].delta_ci95 is None
    assert re.search(
        r"^window-64\+0 +40.0 +80 to 95 +40 +-50.0 +-60 to -40 +0 +0.0 +100$", str(again), re.MULTILINE
    )
    assert "score % by length" not in str(again)


def test_a_key_of_a_later_version_is_left_alone(tmp_path):
    document = result().to_json() | {"later": 1}
    document["arms"][0]["later"] = 2
    assert ProbeResult.from_json(document, "x").to_json() == result().to_json()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(schema=2), "x has schema 2, and this version of sinkpin reads 1"),
        (lambda d: d.pop("chance"), "(chance is missing)"),
        (lambda d: d.update(can="yes"), "(can is 'yes')"),
        (lambda d: d.update(arms=[]), "(it has no arms)"),
        (lambda d: d["arms"][0].pop("score"), "(score is missing)"),
        (lambda d: d["arms"][0].update(ci95=None), "(ci95 is None)"),
        (lambda d: d["arms"][0].update(ci95=[1]), "(ci95 is [1])"),
        (lambda d: d["arms"].__setitem__(0, 3), "(an arm is no object)"),
        (lambda d: d["arms"].pop(0), "(its first arm is window-64+0, not full)"),
    ],
)
def test_what_is_no_record_is_told_in_one_line(change, says):
    document = result().to_json()
    change(document)
    with pytest.raises(InputError) as error:
        ProbeResult.from_json(document, "x")
    assert says in str(error.value) and "\n" not in str(error.value)


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        ProbeResult.load(tmp_path / "missing.json")
    (tmp_path / "half.json").write_text('{"schema": 1, ')
    with pytest.raises(InputError, match="is not whole JSON"):
        ProbeResult.load(tmp_path / "half.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InputError, match="has schema None"):
        ProbeResult.load(tmp_path / "list.json")
    with pytest.raises(InputError, match="so nothing was kept"):
        result().save(tmp_path / "half.json" / "below")


def test_a_number_that_is_none_is_not_written(tmp_path):
    bad = result(arms=[replace(arm(), score=float("nan"))])
    with pytest.raises(InputError, match="holds nan, which is no number"):
        bad.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_records_and_settings_need_no_torch():
    code = (
        "import sys\n"
        "from sinkpin.evaluate.probes import named; from sinkpin.evaluate.probes.record import ProbeResult\n"
        "import sinkpin.evaluate.probes.text, sinkpin.evaluate.probes.tally, sinkpin.evaluate.probes.verdict\n"
        "print(named('needle').settings()['lengths'], {'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[512, 1024] set()\n", done.stderr
