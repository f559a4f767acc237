"""What a user names as a model: each mistake is one line that says what to do."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch

from cli.toys import BOS, toy_tokenizer
from sinkpin.cli import load
from sinkpin.errors import InputError, ModelError


def one_line(raised: pytest.ExceptionInfo[BaseException]) -> str:
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_a_folder(folder):
    loaded = load.load_model(str(folder), device="cpu")
    assert loaded.name == str(folder)
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training
    assert loaded.tokenizer.bos_token == BOS


def test_dtype(folder, tmp_path):
    """`auto` on a CPU is float32 whatever the checkpoint holds; a dtype that is asked for is obeyed."""
    half = tmp_path / "half"
    load.load_model(str(folder), dtype="bfloat16").model.save_pretrained(half)
    toy_tokenizer().save_pretrained(half)
    assert load.load_model(str(half), device="cpu").model.dtype == torch.float32
    assert load.load_model(str(half), dtype="float16").model.dtype == torch.float16


def without(folder: Path, target: Path, *names: str) -> str:
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*names))
    return str(target)


def refused(named: str, **options: str) -> str:
    with pytest.raises(ModelError) as raised:
        load.load_model(named, **options)
    return one_line(raised)


def test_a_folder_that_is_no_model(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "holds no config.json" in refused(str(tmp_path / "empty"))
    assert "holds no weights" in refused(without(folder, tmp_path / "bare", "*.safetensors"))
    assert "is a file" in refused(str(folder / "config.json"))
    assert "there is no folder" in refused(str(tmp_path / "missing"))
    assert "there is no folder ./missing" in refused("./missing")


def test_a_folder_without_a_tokenizer(folder, tmp_path):
    message = refused(without(folder, tmp_path / "mute", "tokenizer*", "special_tokens*"))
    assert message.startswith(
        f"{tmp_path / 'mute'} holds no tokenizer (no tokenizer.json): save the model's there"
    )
    assert len(message) < len(str(tmp_path)) * 2 + 150


def test_torn_files(folder, tmp_path):
    torn = Path(without(folder, tmp_path / "torn"))
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    damaged = "it may be damaged or not downloaded whole: fetch or save it again"
    message = refused(str(torn))
    assert f"cannot load {torn}" in message
    assert message.endswith(damaged)
    (torn / "tokenizer.json").write_text("{")
    assert f"cannot load the tokenizer of {torn}" in refused(str(torn))
    (torn / "config.json").write_text("{")
    assert refused(str(torn)).endswith(damaged)


def test_weights_that_are_not_all_there(folder, tmp_path):
    """transformers fills what is missing with random numbers and warns; a comparison of those would mean nothing."""
    config = json.loads((folder / "config.json").read_text())
    longer = Path(without(folder, tmp_path / "longer"))
    (longer / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert "would stay random" in refused(str(longer))


def test_an_architecture_that_is_no_language_model(folder, tmp_path):
    other = Path(without(folder, tmp_path / "other"))
    (other / "config.json").write_text(json.dumps({"model_type": "vit"}))
    message = refused(str(other))
    assert len(message) < 500


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No connection can be made, and none is claimed to be forbidden: what a train ride looks like."""

    def unreachable(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    monkeypatch.setattr(socket, "create_connection", unreachable)


def test_a_hub_name_without_network(offline, capfd):
    message = refused("nobody-here/nothing-there")
    assert "the hub cannot be reached" in message
    assert capfd.readouterr().err == ""


def test_a_name_that_the_hub_does_not_know(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError

    def unknown(*args, **kwargs):
        raise HFValidationError("no such thing")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unknown)
    assert "neither a folder here nor a model on the Hugging Face hub" in refused("nobody-here/nothing-there")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(folder):
    with pytest.raises(InputError, match="sees no GPU"):
        load.load_model(str(folder), device="cuda")
