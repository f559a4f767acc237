"""The record on disk: its schema, its round trip, and that a folder never holds half a result."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sinkpin.errors import InputError
from sinkpin.evaluate import schema
from sinkpin.evaluate.folder import LOSSES, RESULTS
from sinkpin.evaluate.record import ArmResult, Comparison

# The schema that other programs read, spelt out a second time on purpose.
HEADER = [
    "schema",
    "model",
    "versions",
    "tokens",
    "scored_tokens",
    "chunk",
    "trained_length",
    "notes",
    "arms",
]
ARM = [
    "name",
    "policy",
    "options",
    "sinks",
    "pins",
    "frame",
    "budget",
    "budget_tokens",
    "budget_bytes",
    "chunk",
    "kv_bytes_peak",
    "kv_bytes_steady",
    "evicted",
    "sink_kept",
    "nll",
    "ppl",
    "delta_nll",
    "ci95",
    "kl",
    "top1_agreement",
    "verdict",
    "tokens_per_s",
]

LIGHT = (
    "sinkpin.evaluate.record",
    "sinkpin.evaluate.text",
    "sinkpin.evaluate.picture",
    "sinkpin.sinks.report",
    "sinkpin.sinks.text",
    "sinkpin.sinks.page",
)


def changed(result: Comparison, name: str, **values: object) -> Comparison:
    arms = [dataclasses.replace(arm, **values) if arm.name == name else arm for arm in result.arms]
    return dataclasses.replace(result, arms=arms)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def assert_equal(one: Comparison, other: Comparison) -> None:
    assert one.to_json() == other.to_json()
    assert one.arms == other.arms
    np.testing.assert_array_equal(one.positions, other.positions)
    assert one.positions.dtype == other.positions.dtype == np.int64
    assert list(one.losses) == list(other.losses)
    for name, losses in one.losses.items():
        assert losses.dtype == other.losses[name].dtype == np.float32
        np.testing.assert_array_equal(losses, other.losses[name])


def test_keys_are_the_schemas(make):
    document = make().to_json()
    assert list(document) == HEADER
    assert document["schema"] == 1
    assert [list(arm) for arm in document["arms"]] == [ARM] * 3


def test_what_is_saved_is_what_is_loaded(make, tmp_path):
    result = changed(
        make({"full": 22.0, "random[seed=3]-64+4": 60.0, "window-25%+0/slots": 51.0}),
        "random[seed=3]-64+4",
        ci95=(0.1, 0.25),
        kl=0.5,
        verdict="worse",
        options={"seed": 3},
    )
    folder = tmp_path / "made" / "on the way"
    result.save(folder)
    assert sorted(contents(folder)) == [LOSSES, RESULTS]
    assert json.loads((folder / RESULTS).read_text(encoding="utf-8")) == result.to_json()
    with np.load(folder / LOSSES, allow_pickle=False) as file:
        assert set(file.files) == {"positions", "full", "random[seed=3]-64+4", "window-25%+0/slots"}
    assert_equal(Comparison.load(folder), result)


def test_saving_twice_gives_the_same_bytes(make, tmp_path):
    make().save(tmp_path / "a")
    make().save(tmp_path / "b")
    Comparison.load(tmp_path / "a").save(tmp_path / "a")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("field", ["nll", "ppl", "delta_nll", "kl", "tokens_per_s", "evicted"])
def test_numbers_that_are_not_finite_are_refused(make, tmp_path, field, value):
    result = changed(make(), "window-64+0", **{field: value})
    with pytest.raises(InputError, match=rf"'window-64\+0' has {field} = "):
        result.to_json()
    with pytest.raises(InputError, match=field):
        result.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_interval_that_is_not_finite_is_refused(make):
    with pytest.raises(InputError, match="ci95"):
        changed(make(), "window-64+0", ci95=(0.1, float("inf"))).to_json()


def test_nan_in_a_file_is_refused(make, tmp_path):
    make().save(tmp_path)
    text = (tmp_path / RESULTS).read_text()
    (tmp_path / RESULTS).write_text(text.replace('"kl": null', '"kl": NaN', 1))
    with pytest.raises(InputError, match="NaN"):
        Comparison.load(tmp_path)


def test_losses_that_are_nan_are_refused(make, tmp_path):
    result = make()
    result.losses["window-64+0"][5] = np.nan
    with pytest.raises(InputError, match="average nan"):
        result.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("failing", ["second write", "second move", "fsync"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_save_that_fails_leaves_what_was_there(make, tmp_path, monkeypatch, failing, error):
    before = make({"full": 20.0, "window-64+0": 200.0})
    before.save(tmp_path)
    old = contents(tmp_path)
    break_at(monkeypatch, failing, error)
    with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt):
        make().save(tmp_path)
    monkeypatch.undo()
    assert contents(tmp_path) == old
    assert_equal(Comparison.load(tmp_path), before)


@pytest.mark.parametrize("failing", ["second write", "second move"])
def test_a_first_save_that_fails_leaves_nothing(make, tmp_path, monkeypatch, failing):
    break_at(monkeypatch, failing, OSError(28, "No space left on device"))
    with pytest.raises(InputError, match=r"cannot write the results into .*No space left.*--out"):
        make().save(tmp_path)
    assert contents(tmp_path) == {}


def break_at(monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException) -> None:
    """Raise `error` when the results file is written, moved into place, or flushed to the disk."""
    replace, fsync = os.replace, os.fsync

    def refuse_move(source, target):
        if Path(target).name == RESULTS and Path(source).suffix == ".new":
            raise error
        replace(source, target)

    def refuse_write(descriptor):
        if failing == "fsync" or RESULTS in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise error
        fsync(descriptor)

    if failing == "second move":
        monkeypatch.setattr(os, "replace", refuse_move)
    else:
        monkeypatch.setattr(os, "fsync", refuse_write)


KILL = """
import os, signal, sys
from pathlib import Path
from sinkpin.evaluate.record import Comparison
name, folder, other = sys.argv[1:]
call, when = name.split("@")
real, calls = getattr(os, call), 0
def deadly(*args):
    global calls
    calls += 1
    if calls == int(when):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)
result = Comparison.load(Path(other))
setattr(os, call, deadly)
result.save(Path(folder))
"""


def kill_while_saving(folder: Path, other: Path, when: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILL, when, str(folder), str(other)], check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("when", ["fsync@1", "fsync@2", "replace@1"])
def test_a_process_killed_before_the_files_move_leaves_the_old_result(make, tmp_path, when):
    before = make({"full": 20.0, "window-64+0": 200.0})
    before.save(tmp_path / "out")
    make({"full": 21.0, "window-64+0": 201.0}).save(tmp_path / "other")
    kill_while_saving(tmp_path / "out", tmp_path / "other", when)
    assert_equal(Comparison.load(tmp_path / "out"), before)


@pytest.mark.parametrize("when", ["replace@2", "replace@3", "replace@4"])
def test_a_process_killed_between_the_moves_leaves_no_result_that_loads(make, tmp_path, when):
    make({"full": 20.0, "window-64+0": 200.0}).save(tmp_path / "out")
    make({"full": 21.0, "window-64+0": 201.0}).save(tmp_path / "other")
    kill_while_saving(tmp_path / "out", tmp_path / "other", when)
    with pytest.raises(InputError, match=r"not of one run|does not exist"):
        Comparison.load(tmp_path / "out")
    make().save(tmp_path / "out")  # and the next run is not disturbed by what is lying about
    assert_equal(Comparison.load(tmp_path / "out"), make())


def test_files_of_two_runs_are_told_apart(make, tmp_path):
    make().save(tmp_path / "a")
    make({"full": 22.0, "window-64+0": 230.0, "streaming-64+4": 31.1}).save(tmp_path / "b")
    os.replace(tmp_path / "b" / LOSSES, tmp_path / "a" / LOSSES)
    with pytest.raises(InputError, match=r"not of one run \(streaming-64\+4 has nll"):
        Comparison.load(tmp_path / "a")


@pytest.mark.parametrize("name", [RESULTS, LOSSES])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_torn_file_is_one_line(make, tmp_path, name, share):
    make().save(tmp_path)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(share * len(data))])
    with pytest.raises(InputError) as error:
        Comparison.load(tmp_path)
    assert "sinkpin compare" in str(error.value)
    assert "\n" not in str(error.value)


def edit(folder: Path, change) -> None:
    document = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    change(document)
    (folder / RESULTS).write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(schema=2), "has schema 2, and this version of sinkpin reads 1"),
        (lambda d: d.pop("schema"), "has schema None"),
        (lambda d: d.pop("chunk"), "chunk is missing"),
        (lambda d: d.update(tokens="many"), "tokens is 'many'"),
        (lambda d: d.update(tokens=True), "tokens is True"),
        (lambda d: d.update(arms=None), "arms is not a list"),
        (lambda d: d["arms"].clear(), "losses of full, window-64"),
        (lambda d: d["arms"][1].pop("kl"), "arm 1: kl is missing"),
        (lambda d: d["arms"][1].update(nll=None), "arm 1: nll is None"),
        (lambda d: d["arms"][1].update(ci95=[1.0]), r"arm 1: ci95 is \[1.0\]"),
        (lambda d: d["arms"][1].update(ci95=["a", "b"]), "arm 1: ci95 is"),
        (lambda d: d["arms"][1].update(pins=[[5]]), r"arm 1: pins is \[\[5\]\]"),
        (lambda d: d["arms"][1].update(budget=64), "arm 1: budget is 64"),
        (lambda d: d["arms"][1].update(options=[]), r"arm 1: options is \[\]"),
        (lambda d: d["arms"][1].update(policy=None), "arm 1: policy is None"),
        (lambda d: d.update(scored_tokens=959), "959 scored tokens but positions are int64"),
        (lambda d: d["arms"].reverse(), "the first arm is streaming-64"),
    ],
)
def test_another_schema_is_one_line(make, tmp_path, change, says):
    make().save(tmp_path)
    edit(tmp_path, change)
    with pytest.raises(InputError, match=says):
        Comparison.load(tmp_path)


def test_keys_that_joined_or_will_join_do_no_harm(make, tmp_path):
    """Keys may join within a schema: an older file lacks some, a newer one has more."""
    make().save(tmp_path)
    before = Comparison.load(tmp_path)

    def older_and_newer(document):
        document.pop("trained_length")
        document["colour"] = "blue"
        for line in document["arms"]:
            for key in ("budget", "chunk", "pins"):
                line.pop(key)
            line["seconds"] = 3

    edit(tmp_path, older_and_newer)
    after = Comparison.load(tmp_path)
    assert after.arms[2] == dataclasses.replace(before.arms[2], budget=None, chunk=None, pins=[])
    assert after.arms[1].setting == before.arms[1].setting == after.arms[2].setting
    assert "colour" not in after.to_json()


def test_the_schema_and_the_records_have_the_same_fields():
    assert list(schema.ARM) == [field.name for field in dataclasses.fields(ArmResult)]
    own = [field.name for field in dataclasses.fields(Comparison)]
    assert [*schema.HEADER, "arms", "positions", "losses"] == own


def test_a_repr_is_short_and_a_print_is_the_table(make):
    result = make()
    assert "array" not in repr(result)
    assert "positions" not in repr(result)
    text = str(result)
    assert "streaming-64+4" in text
    assert "At 64 entries, window" in " ".join(text.split())
    assert "\x1b" not in text


def test_pins_are_counted_once(make):
    arm = make({"full": 22.0, "window-64+4+2:6+10:12": 30.0}).arms[1]
    assert (arm.pins, arm.pinned_tokens, arm.pinned) == ([[2, 6], [10, 12]], 8, True)
    assert json.loads(json.dumps(make({"full": 22.0, "window-64+0+5:9": 30.0}).to_json()))["arms"][1][
        "pins"
    ] == [[5, 9]]


@pytest.mark.parametrize(
    ("trained", "past"),
    [
        (None, []),
        (1023, []),
        (1022, ["full", "random-256+4"]),
        (200, ["full", "streaming-256+4", "random-256+4"]),
    ],
)
def test_what_extrapolates(make, trained, past):
    """Index in the text counts for the full cache and `original`, the budget for `slots`; the last token is never fed."""
    result = make({"full": 22.0, "streaming-256+4": 26.0, "random-256+4": 27.0}, trained=trained)
    assert [arm.name for arm in result.arms if result.extrapolates(arm)] == past


def test_whole_numbers_are_numbers_too(make, tmp_path):
    """A JSON writer may shorten 1.0 to 1."""
    make().save(tmp_path)
    edit(tmp_path, lambda d: d["arms"][0].update(sink_kept=1, evicted=0))
    assert Comparison.load(tmp_path).arms[0].sink_kept == 1


def test_a_folder_without_a_result_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"results\.json does not exist"):
        Comparison.load(tmp_path)


def test_a_folder_that_is_a_file_is_one_line(make, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="--out"):
        make().save(tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("module", LIGHT)
def test_reading_a_result_needs_no_torch(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_functions_whatever_was_imported_before():
    code = (
        "import sinkpin.evaluate.compare, sinkpin.evaluate.classic\n"
        "from sinkpin.evaluate import Arm, Comparison, classic, compare\n"
        "import sinkpin\n"
        "assert callable(compare) and callable(classic) and sinkpin.compare is compare\n"
        "from sinkpin.evaluate.compare import compare as same\n"
        "assert same is compare\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
