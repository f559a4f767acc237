"""The dispatcher: quick answers, one line for each mistake, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import sinkpin
from sinkpin.cli import compare, main
from sinkpin.errors import InputError
from sinkpin.policies import names


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "argv", [["--help"], ["--version"], ["compare", "--help"], ["compare", "--nope"], ["policies", "--help"]]
)
def test_answers_without_importing_anything_heavy(argv):
    heavy = ("torch", "transformers", "numpy", "rich", "matplotlib")
    done = python(
        f"import sys; from sinkpin.cli.main import main\ntry: main({argv})\nexcept SystemExit: pass\n"
        f"print('heavy:', [name for name in {heavy} if name in sys.modules])"
    )
    assert "heavy: []" in done.stdout, done.stdout + done.stderr


def test_help_ends_with_examples_and_says_what_sinkpin_does_not_do(cli):
    ran = cli("--help")
    assert ran.code == 0
    assert ran.out.rstrip().endswith("sinkpin compare --help")
    assert "does not extend the context window" in ran.out


def test_help_of_a_verb(cli, capfd):
    with pytest.raises(SystemExit) as stopped:
        cli("compare", "--help")
    assert stopped.value.code == 0
    out = capfd.readouterr().out
    assert "does not extend the context window" in out
    words = " ".join(out.split())
    for said in (
        *names(),
        "`sinkpin policies`",
        "(default: 16)",
        "its rank in the cache (slots)",
        "or of --prompt",
    ):
        assert said in words
    assert out.rstrip().endswith("are the first tokens sinks for what they say, or for where they stand?")


def test_version_and_module(cli):
    assert cli("--version").out == f"sinkpin {sinkpin.__version__}\n"
    done = subprocess.run(
        [sys.executable, "-m", "sinkpin", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"sinkpin {sinkpin.__version__}\n")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "no verb given"),
        (["compar"], "did you mean 'compare'?"),
        (["xyzzy"], "no verb is called 'xyzzy': verbs: compare"),
        (["--verison"], "did you mean '--version'?"),
        (
            ["compare", "--bugdet", "64"],
            "no option of `sinkpin compare` is called '--bugdet': did you mean '--budget'?",
        ),
        (["compare", "--bugdet=64"], "did you mean '--budget'?"),
        (["compare", "--out", "x", "--xyzzy"], "no option of `sinkpin compare` is called '--xyzzy'"),
        (["compare", "--polic", "window"], "did you mean '--policy'?"),
        (["compare", "one", "two"], "'two' is one argument too many"),
        (["compare", "--tokens"], "argument --tokens: expected one argument"),
        (["compare", "--tokens", "many"], "argument --tokens: invalid int value: 'many'"),
        (["compare", "--dtype", "fp8"], "argument --dtype: invalid choice: 'fp8'"),
        (["compare", "--frame", "slot"], "argument --frame: invalid choice: 'slot'"),
    ],
)
def test_a_mistyped_command_is_one_line(cli, argv, says):
    assert says in cli(*argv).complaint()


def test_a_message_of_many_lines_becomes_one(cli, monkeypatch):
    def fail(args):
        raise InputError("first\n  second\n\nthird")

    monkeypatch.setattr(compare, "run", fail)
    assert cli("compare").complaint() == "sinkpin: first second third"


def test_ctrl_c_is_130_without_traceback(cli, monkeypatch):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "run", interrupt)
    ran = cli("compare")
    assert (ran.code, ran.out, ran.err) == (main.INTERRUPTED, "", "sinkpin: interrupted\n")


def test_a_bug_keeps_its_traceback(cli, monkeypatch):
    def broken(args):
        raise ZeroDivisionError

    monkeypatch.setattr(compare, "run", broken)
    with pytest.raises(ZeroDivisionError):
        cli("compare")


def test_a_reader_that_went_away_is_no_traceback():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "sinkpin", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (main.BROKEN_PIPE, "")


def test_an_ascii_terminal_gets_an_answer():
    done = subprocess.run(
        [sys.executable, "-m", "sinkpin", "compare", "--text", "fünf.txt", "--tokens", "0"],
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"sinkpin: ")
