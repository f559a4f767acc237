"""`sinkpin plan`: refusals before a model is loaded, answers with their exit status, the file, and the gate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from cli.toys import BOS, toy_tokenizer
from sinkpin.card import Card, first
from sinkpin.cli import load, plan_options
from sinkpin.evaluate.advisor.bound import BLOCK, FEWEST
from sinkpin.evaluate.advisor.measure import Measurer
from sinkpin.evaluate.advisor.passages import blocks
from sinkpin.evaluate.advisor.workloads import WORKLOADS

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
STREAM = ("--workload", "stream", "--length", "1024", "--budget", "64,256", "--sinks", "4", "--device", "cpu")
"""40 passages of 1,024 bytes make 20 blocks in each part."""


def words(count: int, seed: int = 0) -> str:
    """`count` bytes of words without order, in paragraphs."""
    import random

    draw = random.Random(seed)
    text = ""
    while len(text) < count:
        text += (
            " ".join(draw.choices(["sink", "pin", "token", "cache", "of", "the", "a", "budget"], k=30))
            + "\n\n"
        )
    return text[:count]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(words(1023 * 41))
    return path


@pytest.fixture
def no_model(monkeypatch):
    def load_model(*args, **options):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(load, "load_model", load_model)


@pytest.fixture(scope="module")
def promised(folder, tmp_path_factory):
    """A promise made once, with a limit that a random model keeps, and what was said about it."""
    from sinkpin.cli.main import main

    place = tmp_path_factory.mktemp("promise")
    (place / "text.txt").write_text(words(1023 * 41))
    argv = ["plan", str(folder), "--text", str(place / "text.txt"), *STREAM, "--max-loss", "500%"]
    assert main([*argv, "--out", str(place)]) == 0
    return place / "sinkpin.json"


def test_the_command_says_the_same_of_workloads_as_the_table():
    assert set(WORKLOADS) == set(plan_options.USES)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "--workload is missing: what is promised depends on the use"),
        (["--workload", "cooking"], "invalid choice: 'cooking'"),
        (["--workload", "stream", "--max-loss", "0.01"], "--max-loss '0.01': write a percentage"),
        (["--workload", "stream", "--max-loss", "0%"], "above zero"),
        (["--workload", "stream", "--max-loss", "-1%"], "--max-loss '-1%'"),
        (["--workload", "stream", "--policy", "h2o"], "only position policies"),
        (["--workload", "chat", "--policy", "snapkv"], "it chooses once, when a prompt ends"),
        (["--workload", "rag", "--policy", "full"], "leave it out"),
        (["--workload", "rag", "--policy", "h20"], "did you mean 'h2o'"),
        (["--workload", "rag", "--policy", "h2o:recnt=1"], "has no option 'recnt'"),
        (["--workload", "rag", "--sinks", "four"], "--sinks 'four': write whole numbers from 0 up"),
        (["--workload", "rag", "--budget", "25%"], "--budget '25%': write whole numbers from 1 up"),
        (["--workload", "rag", "--budget", "0"], "--budget '0'"),
        (["--workload", "rag", "--length", "700"], "--length 769 or more"),
        (["--workload", "stream", "--length", "1000"], "--length 1024 or more"),
        (["--workload", "stream", "--chunk", "0"], "--chunk 0"),
        (["--workload", "stream", "--tokens", "1"], "--tokens 1"),
        (["--workload", "rag", "--system", "x.txt"], "only a chat has a system prompt"),
        (["--workload", "stream", "--text", "nowhere.txt"], "cannot read the text nowhere.txt"),
        (["--workload", "stream", "--pins", "nowhere.json"], "nowhere.json does not exist"),
        (["--check", "nowhere.json"], "nowhere.json does not exist, so there is no promise to check"),
        (["--check", "x.json", "--workload", "rag"], "leave --workload out"),
        (["--check", "x.json", "--max-loss", "1%"], "leave --max-loss out"),
        (["--check", "x.json", "--tokens", "9"], "leave --tokens out, or give a new --text"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_before_a_model_is_loaded(cli, argv, says):
    assert says in cli("plan", *argv).complaint()
    assert not list(Path().iterdir())


@pytest.mark.usefixtures("no_model")
def test_the_same_text_twice_would_certify_what_it_chose_on(cli, text, tmp_path):
    copy = tmp_path / "copy.txt"
    shutil.copy(text, copy)
    said = cli("plan", "--workload", "stream", "--text", text, copy).complaint()
    assert "has the same text as" in said


def test_a_promise_its_file_and_its_words(promised):
    document = json.loads(promised.read_text())
    assert document["verdict"] == "promised"
    assert document["settings"]["policy"] == "streaming"
    assert document["memory"]["session_bytes"] == document["evidence"]["certificate"][-1]["bytes"]
    assert document["memory"]["sessions_per_gib"] == 2**30 // document["memory"]["session_bytes"]
    parts = document["design"]["parts"]
    assert parts["certifying"]["blocks"] >= FEWEST
    assert document["evidence"]["certificate"][0]["blocks"] == parts["certifying"]["blocks"]
    assert document["design"]["block"] == BLOCK
    assert document["serve"] == "--policy streaming --budget 64 --sinks 4 --frame slots"
    assert [len(document[key]) for key in ("model_hash", "tokenizer_hash")] == [64, 64]


def test_the_verdict_comes_first_and_json_is_alone_on_standard_output(cli, folder, text):
    ran = cli("plan", folder, "--text", text, *STREAM, "--max-loss", "500%", "--json")
    document = json.loads(ran.out)
    assert ran.code == 0
    assert document == json.loads(Path("sinkpin-out/sinkpin.json").read_text())
    said = " ".join(
        ran.err[ran.err.index("Promised: ") :].split()
    )  # where a line breaks depends on the folder's name
    assert said.startswith(f"Promised: {document['evidence']['certificate'][-1]['name']} on {folder}")
    assert said.index("Tried on the choosing part") < said.index("Certified on the other part")
    assert document["python"] in said


def losing(monkeypatch, *nats: float) -> None:
    """Every setting differs by these from the full cache, block by block in turns: a tiny random model would not mind."""

    def measure(self, settings, passages):
        return {setting.name: np.resize(nats, blocks(passages)) for setting in settings}

    monkeypatch.setattr(Measurer, "__call__", measure)


@pytest.mark.parametrize(
    ("nats", "verdict", "says"),
    [
        (
            (0.2, 0.3),
            "none qualifies",
            "No setting qualifies on the first part: the limit is 1 %, and streaming-256+4/slots lost 27.1 %",
        ),
        ((-0.1, 0.11), "not enough text", "Not enough text to promise this: on the first part"),
    ],
)
def test_that_nothing_is_promised_is_an_answer_with_status_one_and_no_file(
    cli, folder, text, monkeypatch, nats, verdict, says
):
    losing(monkeypatch, *nats)
    ran = cli("plan", folder, "--text", text, *STREAM, "--json")
    assert ran.code == 1
    document = json.loads(ran.out)
    assert document["verdict"] == verdict
    assert document["settings"] is None
    assert (document["tokens_needed"] is None) == (verdict == "none qualifies")
    assert says in " ".join(ran.err.split())
    assert not Path("sinkpin-out").exists()


def test_an_earlier_promise_is_left_and_told_of(cli, folder, text, promised, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(promised, out)
    ran = cli("plan", folder, "--text", text, *STREAM, "--tokens", "3000", "--out", out)
    assert ran.code == 1
    assert "is of an earlier run, and was left as it is" in ran.out
    assert (out / "sinkpin.json").read_bytes() == promised.read_bytes()


def test_too_little_text_is_told_with_how_much_more(cli, folder, text):
    ran = cli("plan", folder, "--text", text, *STREAM, "--tokens", "10240")
    assert ran.code == 1
    assert " ".join(ran.out.split()).startswith(
        "Not enough text to promise anything: 5 blocks of 512 tokens to choose on and 5 to certify on"
    )
    assert "You need about 30,720 more tokens. Nothing was run." in " ".join(ran.out.split())


def test_a_text_shorter_than_a_passage_is_told(cli, folder, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("sink")
    ran = cli("plan", folder, "--text", short, *STREAM)
    assert ran.code == 1
    assert "is shorter than one passage of 1,024 tokens: left out" in ran.out


def test_passages_longer_than_the_model_was_trained_on_are_refused(cli, folder, text):
    said = cli("plan", folder, "--text", text, "--workload", "stream", "--length", "5000").complaint()
    assert "trained on 4096 positions, past which the full cache is no reference" in said


# the gate


def test_a_promise_that_holds_passes_with_the_numbers_it_was_made_with(cli, promised):
    ran = cli("plan", "--check", promised, "--json")
    assert ran.code == 0, ran.err
    found, document = json.loads(ran.out), json.loads(promised.read_text())
    assert found["holds"] is True
    certificate = document["evidence"]["certificate"][-1]
    assert found["loss_at_most"] == pytest.approx(certificate["loss_at_most"], abs=1e-6)
    assert "The promise holds." in ran.err


def test_it_is_checked_on_a_text_that_it_has_not_seen(cli, promised, tmp_path):
    new = tmp_path / "new.txt"
    new.write_text(words(1023 * 22, seed=1))
    ran = cli("plan", "--check", promised, "--text", new, "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["blocks"] == 22


def test_a_text_that_the_promise_was_made_on_is_said_to_be_no_new_evidence(cli, promised):
    ran = cli("plan", "--check", promised, "--text", promised.parent / "text.txt")
    assert "is a text that the promise was made on: what is found on it is no new evidence" in ran.out


def test_a_promise_that_no_longer_holds_fails_and_says_by_how_much(cli, promised, monkeypatch):
    losing(monkeypatch, 1.8)
    ran = cli("plan", "--check", promised)
    assert ran.code == 1
    assert (
        "broken: the loss may be up to 505 % with 95% confidence, and less than 500 % was promised" in ran.out
    )


def test_other_weights_and_another_tokenizer_fail_and_are_named(cli, folder, promised, tmp_path):
    from transformers import LlamaForCausalLM

    other = tmp_path / "other"
    shutil.copytree(folder, other)
    model = LlamaForCausalLM.from_pretrained(other)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight *= 1.01
    model.save_pretrained(other)
    ran = cli("plan", other, "--check", promised)
    assert ran.code == 1
    assert "broken: the model is another" in ran.out
    assert "tokenizer is another" not in ran.out
    retold = tmp_path / "retold"
    shutil.copytree(folder, retold)
    toy_tokenizer(opening=BOS, additional_special_tokens=["<x>"]).save_pretrained(retold)
    ran = cli("plan", retold, "--check", promised)
    assert ran.code == 1
    assert "broken: the tokenizer is another" in ran.out
    assert "model is another" not in ran.out


def test_more_bytes_a_session_than_promised_fail(cli, promised, tmp_path):
    document = json.loads(promised.read_text())
    document["memory"]["session_bytes"] -= 1
    (tmp_path / "p.json").write_text(json.dumps(document))
    ran = cli("plan", "--check", tmp_path / "p.json")
    assert ran.code == 1
    assert "broken: a session holds" in ran.out


def test_a_text_that_changed_is_no_check(cli, promised, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(promised.parent, moved)
    document = json.loads(promised.read_text())
    document["texts"][0]["source"] = str(moved / "text.txt")
    (moved / "sinkpin.json").write_text(json.dumps(document))
    (moved / "text.txt").write_text(words(1023 * 41, seed=9))
    assert "is another text now" in cli("plan", "--check", moved / "sinkpin.json").complaint()


def test_too_little_new_text_is_no_pass(cli, promised, tmp_path):
    new = tmp_path / "new.txt"
    new.write_text(words(1023 * 5, seed=1))
    ran = cli("plan", "--check", promised, "--text", new)
    assert ran.code == 1
    assert "Not enough text to check this: 5 blocks, and 20 are needed" in ran.out


# workloads


@pytest.fixture
def chatty(folder, tmp_path):
    place = tmp_path / "chatty"
    shutil.copytree(folder, place)
    tokenizer = toy_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(place)
    return place


def test_a_chat_pins_its_system_prompt_and_says_so(cli, chatty, text, tmp_path):
    system = tmp_path / "system.txt"
    system.write_text("Answer briefly.\n")
    text.write_text(words(80_000))
    ran = cli(
        "plan", chatty, "--text", text, "--workload", "chat", "--system", system, "--length", "1024",
        "--policy", "window", "--budget", "64", "--max-loss", "900%", "--json",
    )  # fmt: skip
    document = json.loads(ran.out)
    stop = len("[system]Answer briefly.")
    assert document["settings"]["pins"] == "system"
    assert f"pins=[(0, {stop})]" in document["python"]
    assert document["system"] == "Answer briefly."
    assert cli("plan", chatty, "--check", "sinkpin-out/sinkpin.json").code == 0


def test_a_chat_file_is_taken_as_it_is(chatty, tmp_path):
    from transformers import AutoTokenizer

    from sinkpin.cli import passages

    file = tmp_path / "chat.json"
    content = words(600)
    file.write_text(
        json.dumps([{"role": "system", "content": "Be kind."}] + [{"role": "user", "content": content}] * 4)
    )
    tokenizer = AutoTokenizer.from_pretrained(chatty)
    (found,), texts, notes = passages.passages_of(
        tokenizer, passages.read([str(file)], "chat"), WORKLOADS["chat"], 1024, 9999, None, None
    )
    assert tokenizer.decode(found.ids).startswith("[system]Be kind.\n[user]")
    assert found.spans == {"system": ((0, len("[system]Be kind.")),)}
    assert (len(found.ids), found.first, notes, texts[0]["passages"]) == (1024, 512, [], 1)


def test_a_plain_text_in_turns_says_no_word_twice(chatty, text):
    from transformers import AutoTokenizer

    from sinkpin.cli import passages

    tokenizer = AutoTokenizer.from_pretrained(chatty)
    found, _, _ = passages.passages_of(
        tokenizer, passages.read([str(text)], "chat"), WORKLOADS["chat"], 2048, 99_999, "Be kind.", None
    )
    content = text.read_text()
    shown = [tokenizer.decode(p.ids).split("[user]", 1)[1].split("\n[assistant]")[0] for p in found]
    places = [content.index(piece[:300]) for piece in shown]
    assert places == sorted(set(places))
    assert all("[assistant]" in tokenizer.decode(p.ids) for p in found)


def test_rag_is_scored_after_the_prompt_and_may_choose_at_its_end(cli, folder, text):
    ran = cli(
        "plan", folder, "--text", text, "--workload", "rag", "--length", "1025", "--policy", "snapkv", "--budget", "256",
        "--max-loss", "900%", "--json",
    )  # fmt: skip
    document = json.loads(ran.out)
    assert document["settings"]["policy"] == "snapkv"
    assert document["design"]["first_scored"] == 513


def test_a_sink_card_is_tried_too_and_named_in_what_is_emitted(cli, folder, text):
    card = Card(model="toy", model_hash="ab" * 32, rules=(first(2),))
    card.write("sinks.json")
    ran = cli("plan", folder, "--text", text, *STREAM[:6], "--pins", "sinks.json", "--sinks", "", "--json")
    assert "--sinks ''" in ran.err
    ran = cli(
        "plan", folder, "--text", text, *STREAM[:6], "--pins", "sinks.json", "--max-loss", "500%", "--json"
    )
    document = json.loads(ran.out)
    tried = {trial["name"] for trial in document["evidence"]["choosing"]}
    assert any(name.endswith("+0+card/slots") for name in tried)
    assert any("+16/slots" in name for name in tried)
