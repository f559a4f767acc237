"""What README.md and docs/ show is run: Python blocks as they stand, commands against the parser and the Makefile.

A reader's models come from a hub; here every name loads one tiny random model and a tokenizer made of the
text's own letters. So the code is held to run, its numbers are not checked.
"""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [body for _, language, body in found if language in languages]


def commands(tool: str) -> list[str]:
    """Every line of a shell block that runs `tool`, without its prompt and comment."""
    lines = [line for page in PAGES for body in blocks(page, "sh", "console") for line in body.splitlines()]
    lines = [line.removeprefix("$ ").split("  #")[0].strip() for line in lines]
    return [line for line in lines if line.split(" ")[0] == tool]


@pytest.fixture
def any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever name is asked for, a tiny Llama and a tokenizer with one id for each ASCII character."""
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=8192,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    ).eval()
    letters = Tokenizer(models.WordLevel({chr(i): i for i in range(128)}, unk_token="?"))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=letters, model_input_names=["input_ids", "attention_mask"]
    )
    for cls, loaded in (
        (transformers.AutoModelForCausalLM, model),
        (transformers.AutoTokenizer, tokenizer),
    ):
        monkeypatch.setattr(cls, "from_pretrained", lambda *_, loaded=loaded, **__: loaded)


@pytest.fixture
def finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory in which `sinkpin compare` has left its result."""
    from evaluate.conftest import build

    monkeypatch.chdir(tmp_path)
    build(scored=1600).save(tmp_path / "sinkpin-out")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name
)
@pytest.mark.usefixtures("any_model", "finished_run")
def test_python_blocks_run_in_order(page: Path) -> None:
    import transformers
    from packaging.version import Version

    names: dict[str, object] = {"__name__": "__main__"}
    for number, body in enumerate(blocks(page, "python"), 1):
        if Version(transformers.__version__) < Version("5.24"):
            body = body.replace("cache=cache", "past_key_values=cache")
        exec(compile(body, f"{page.name}, Python block {number}", "exec"), names)


def test_there_is_something_to_check() -> None:
    assert len(blocks(ROOT / "README.md", "python")) >= 2
    assert commands("sinkpin")
    assert commands("make")


@pytest.mark.parametrize("command", commands("sinkpin"))
def test_commands_use_options_that_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from sinkpin.cli.main import main

    _, verb, *words = shlex.split(command)
    try:
        code = main([verb, "--help"])
    except SystemExit as exit_:  # argparse leaves this way once it has printed the help
        code = int(exit_.code or 0)
    assert code == 0
    text = capsys.readouterr().out
    for word in words:
        if word.startswith("--"):
            assert re.search(rf"{re.escape(word.partition('=')[0])}\b", text), word


@pytest.mark.parametrize("command", commands("make"))
def test_make_targets_exist(command: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in shlex.split(command)[1:]:
        variable, is_set, _ = word.partition("=")
        pattern = rf"^{variable} \?=" if is_set else rf"^{word}:"
        assert re.search(pattern, makefile, re.MULTILINE), word
