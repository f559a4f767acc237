"""A tiny random Llama in a folder, a text, and `cli`, which runs the command in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from cli.toys import BOS, WORDS, toy_tokenizer
from sinkpin.cli.main import main


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: a random Llama of two layers and a byte tokenizer that adds a BOS."""
    import torch

    place = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(place)
    toy_tokenizer(opening=BOS, model_max_length=64).save_pretrained(place)
    return place


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(WORDS * 30, encoding="utf-8")
    return path


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    def complaint(self) -> str:
        """The one line of a run that was refused."""
        assert self.code == 2, (self.code, self.err)
        assert self.out == ""
        assert self.err.startswith("sinkpin: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Ran]:
    """Run `sinkpin` with these arguments in an empty working directory."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def run(*argv: object) -> Ran:
        capfd.readouterr()
        code = main([str(word) for word in argv])
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
