"""What README.md and docs/ show is run: Python blocks as they stand, commands against the parser and the Makefile.

A reader's models come from a hub; here every name loads one tiny random model and a tokenizer made of the
text's own letters. So the code is held to run, its numbers are not checked.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [body for _, language, body in found if language in languages]


def prose(page: Path) -> str:
    """The page without its fenced blocks and inline code, in which nothing is a link."""
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings: lower case, hyphens for spaces, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def commands(tool: str) -> list[str]:
    """Every command of a shell block that runs `tool`, on one line, without its prompt and comment."""
    bodies = [body.replace("\\\n", " ") for page in PAGES for body in blocks(page, "sh", "console")]
    lines = [line for body in bodies for line in body.splitlines()]
    lines = [line.removeprefix("$ ").split("  #")[0].strip() for line in lines]
    return [line for line in lines if line.split(" ")[0] == tool]


@pytest.fixture
def any_model(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever name is asked for, a tiny Llama and a tokenizer with one id for each ASCII character."""
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from torch._inductor import config as inductor

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
    monkeypatch.setattr("sinkpin.demo.model_folder", lambda: Path("a folder"))
    # What a page may set is as before afterwards.
    with inductor.patch(freezing=inductor.freezing, max_autotune=inductor.max_autotune):
        yield


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


def test_the_statistics_give_each_token_the_same_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kills: a mean of blocks of which the last, of 7 tokens, counts as much as one of 512."""
    from evaluate.conftest import build

    monkeypatch.chdir(tmp_path)
    result = build(scored=2 * 512 + 7)
    result.save("sinkpin-out")
    (body,) = blocks(ROOT / "docs/compare.md", "python")
    exec(compile(body, "compare.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    for arm, line in zip(result.arms[1:], lines, strict=True):
        difference = result.losses[arm.name].astype(float) - result.losses["full"]
        first, second = difference[:512].mean(), difference[512:1024].mean()
        assert line.split()[:4] == [arm.name, "Δ", "NLL", f"{arm.delta_nll:+.3f}"]
        assert f"± {abs(first - second) / 2:.3f} nats, from 2 blocks" in line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_and_images_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        assert file.is_relative_to(ROOT), f"{page.name} links out of the tree: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}"


def test_the_picture_is_one() -> None:
    """Not an empty file or a pointer to one stored elsewhere."""
    data = (ROOT / "docs/assets/perplexity.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) > 10_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_placeholder_is_left(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(
        r"to be (replaced|written|done)|\bTODO\b|\bTBD\b|\bFIXME\b|\bXXX\b|lorem ipsum", text, re.IGNORECASE
    )
    assert not re.search(r"^(TABLE|SEEN|PICTURE)$", text, re.MULTILINE)


def test_the_table_in_the_readme_is_one_that_was_printed() -> None:
    """Its columns are today's, its perplexities and their ratios agree."""
    (shown,) = re.findall(r"<!-- table -->\n```text\n(.*?)```\n<!-- /table -->", README, re.DOTALL)
    rows = [line.replace(" !", "").split() for line in shown.splitlines() if re.match(r"\S+ .*\d$", line)]
    arms = {row[0]: row for row in rows if row[0] == "full" or re.search(r"-\d+\+\d+$", row[0])}
    assert {"full", "window-64+0", "streaming-64+4"} <= set(arms)
    number = {name: [float(cell.replace(",", "")) for cell in row[4:6]] for name, row in arms.items()}
    for perplexity, ratio in number.values():
        assert perplexity / number["full"][0] == pytest.approx(ratio, rel=0.01)
    assert number["window-64+0"][0] > 5 * number["streaming-64+4"][0]


def test_the_table_of_policies_is_what_they_say_of_themselves() -> None:
    from sinkpin.cli.policies import describe
    from sinkpin.policies import TABLE

    section = (
        (ROOT / "docs/library.md").read_text(encoding="utf-8").split("\n## Policies\n")[1].split("\n## ")[0]
    )
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    expected = []
    for facts in map(describe, TABLE):
        options = ", ".join(f"`{key}={value}`" for key, value in facts["options"].items())
        reads = ", ".join(facts["needs"]).replace("_", " ")
        expected.append([f"`{facts['name']}`", facts["kind"], reads, options, facts["paper"]])
    assert [[row[0], row[1], *row[3:]] for row in rows] == expected


def test_every_clause_of_the_contract_is_explained() -> None:
    """What `docs/support.md` sums over; and no clause that no test stands behind."""
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| (C\d+) \| \S.*\. \|$", text, re.MULTILINE)
    files = {path.name.split("_")[1] for path in (ROOT / "tests/contract").glob("test_c[0-9]*.py")}
    assert told == sorted({f"C{int(clause[1:])}" for clause in files}, key=lambda clause: int(clause[1:]))


def test_every_page_is_linked_from_the_index() -> None:
    linked = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        path = page.relative_to(ROOT / "docs").as_posix()
        assert path == "index.md" or f"]({path})" in linked, path


def test_the_source_distribution_has_what_its_tests_need() -> None:
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    included = settings["hatch"]["build"]["targets"]["sdist"]["include"]
    needed = {*settings["pytest"]["ini_options"]["testpaths"], "src", "Makefile"}
    needed |= {page.relative_to(ROOT).parts[0] for page in PAGES}
    assert {f"/{path}" for path in needed} <= set(included)


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
