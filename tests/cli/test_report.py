"""`sinkpin report`: one page of files, without torch; runs merged, or told apart over time; bad files in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluate.documents import comparison, plain, probe

Cli = Callable[..., Any]


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """Writes a document into a folder of the test."""

    def write(document: object, name: str = "results.json", folder: str = "run") -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        return path

    return write


def test_a_folder_becomes_a_page_with_the_probes_beside(cli: Cli, put: Callable[..., Path]) -> None:
    path = put(comparison())
    put(probe(), "probe-needle.json")
    put(probe(model="another model"), "probe-names.json")
    put("{", "probe-passkey.json")
    ran = cli("report", path.parent)
    assert ran.code == 0 and ran.err == ""
    lines = ran.out.splitlines()
    assert len(lines) == 4 and lines[3] == "written: report.html"
    assert "probe-names.json is of another model, the result of SmolLM2" in lines[0]
    assert "probe-passkey.json is not whole JSON" in lines[1]
    assert lines[2].startswith("h2o-1024+4 is equivalent to the full cache")
    page = Path("report.html").read_text(encoding="utf-8")
    assert page.count("<h3>needle</h3>") == 1 and "another model" not in page


def test_it_needs_neither_torch_nor_transformers(put: Callable[..., Path], tmp_path: Path) -> None:
    path = put(comparison())
    put(probe(), "probe-needle.json")
    program = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, *others):\n"
        "        if name.split('.')[0] in ('torch', 'transformers', 'matplotlib'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from sinkpin.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    out = tmp_path / "made" / "page.html"
    ran = subprocess.run(
        [sys.executable, "-c", program, "report", str(path), "--out", str(out)], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "<h3>needle</h3>" in out.read_text(encoding="utf-8")


def test_json_holds_the_result_and_its_probes_and_can_be_read_again(
    cli: Cli, put: Callable[..., Path]
) -> None:
    path = put(comparison())
    ran = cli("report", path, put(probe(), "needle.json"), "--json")
    assert "written: report.html" in ran.err
    document = json.loads(ran.out)
    assert document == {**comparison(), "probes": [probe()]}
    again = put(document, folder="again")
    assert json.loads(cli("report", again, "--json").out) == document


def test_runs_of_one_text_are_one_table(cli: Cli, put: Callable[..., Path]) -> None:
    one, other = comparison(), comparison()
    one["arms"], other["arms"] = one["arms"][:4], [other["arms"][0], *other["arms"][4:]]
    ran = cli("report", put(one, folder="a"), put(other, folder="b"), "--json")
    assert [arm["name"] for arm in json.loads(ran.out)["arms"]] == [
        arm["name"] for arm in comparison()["arms"]
    ]


def test_runs_of_two_texts_are_refused(cli: Cli, put: Callable[..., Path]) -> None:
    paths = put(comparison(), folder="a"), put(comparison(tokens=9000), folder="b")
    assert "are not of one text (tokens 12545 and 9000)" in cli("report", *paths).complaint()
    assert not Path("report.html").exists()


def test_runs_over_time_say_what_changed(cli: Cli, put: Callable[..., Path]) -> None:
    before = comparison()
    before["arms"][6] |= {"verdict": "inconclusive", "delta_nll": 0.03, "ci95": [0.02, 0.04]}
    before["versions"]["torch"] = "2.12.0"
    paths = put(before, folder="a").parent, put(comparison(), folder="b").parent
    ran = cli("report", *paths, "--compare")
    assert ran.code == 0
    assert f"since {paths[0]}: 1 of 7 arms moved" in ran.out
    assert "  h2o-1024+4: ΔNLL +0.0300 -> +0.0021, inconclusive -> equivalent" in ran.out
    assert "  torch: 2.12.0 → 2.13.0" in ran.out
    assert "<b>moved</b>" in Path("report.html").read_text(encoding="utf-8")
    [change] = json.loads(cli("report", *paths, "--compare", "--json").out)["changes"]
    assert change["since"] == str(paths[0]) and sum(bool(arm["moved"]) for arm in change["arms"]) == 1
    ran = cli("report", put(plain(), folder="c"), paths[1], "--compare")
    assert "7 cannot be judged without intervals" in ran.out


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("results.json", "{", "is not whole JSON"), ("results.json", "[]", "holds no JSON object"),
        ("results.json", '{"schema": 2}', "has schema 2"), ("results.json", '{"schema": 1, "model": NaN}', "NaN is not a number"),
        ("results.json", json.dumps({**comparison(), "arms": [{}]}), "arm 0: name is missing"), ("results.json", '{"probe": "needle"}', "needle"),
    ],
)  # fmt: skip
def test_files_that_are_no_result_are_refused(
    cli: Cli, put: Callable[..., Path], name: str, text: str, said: str
) -> None:
    assert said in cli("report", put(text, name)).complaint() or said == "needle"
    assert not Path("report.html").exists()


def test_what_cannot_be_done_is_one_line(cli: Cli, put: Callable[..., Path], tmp_path: Path) -> None:
    path = put(comparison())
    assert "sinkpin-out does not exist" in cli("report").complaint()
    assert "--compare was given 1 result" in cli("report", path, "--compare").complaint()
    assert "no result among the files, only probes" in cli("report", put(probe(), "p.json")).complaint()
    assert "is a folder" in cli("report", path, "--out", tmp_path).complaint()
    assert "is of another" in cli("report", path, put(probe(model="another"), "p.json")).complaint()
    other = comparison()
    other["arms"] = [other["arms"][0], other["arms"][1] | {"name": "another"}]
    said = cli("report", path, put(other, folder="b"), "--compare").complaint()
    assert "have no arm in common but full" in said
