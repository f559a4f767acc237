"""The model `sinkpin` of lm-eval: with `full` it is lm-eval's own `hf`, below the budget too; above it, the plain loops.

A tiny random model with a byte tokenizer, and a task file made here: nothing is fetched.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig

pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")

from lm_eval import simple_evaluate
from lm_eval.api.registry import get_model
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from cli.toys import BOS, toy_tokenizer
from families import from_config
from naive import evidence
from naive.h2o import h2o_choice
from naive.snapkv import snapkv_choice
from naive.streaming import pinned, stream
from sinkpin import demo
from sinkpin.card import Card, first
from sinkpin.errors import BudgetError, InputError, ModelError, PolicyError, SinkpinError
from sinkpin.evaluate.lm_eval import SinkpinLM
from sinkpin.evaluate.lm_eval.__main__ import main
from sinkpin.policies import TABLE, resolve

POSITIONS = 96
STORY = "It is a truth universally acknowledged, that a man must want a wife."
PAIRS = [
    (STORY, " Indeed."),
    (STORY, " N"),
    (STORY, " No."),
    ("", "A letter came"),
    ("A", "n"),
    ("Ends with a space ", "and goes on"),
    (STORY * 2, " too long to be read whole"),
]


def model_of(**options: Any) -> Any:
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
        **options,
    )
    return from_config(config)


MODEL = model_of()


def hf(**options: Any) -> HFLM:
    return HFLM(pretrained=MODEL, tokenizer=toy_tokenizer(opening=BOS), **options)


def bounded(**options: Any) -> SinkpinLM:
    return SinkpinLM(pretrained=MODEL, tokenizer=toy_tokenizer(opening=BOS), **options)


def asked(*arguments: tuple[Any, ...]) -> list[Any]:
    """Requests, as far as a model reads them: releases of lm-eval differ in what else stands in one."""
    return [SimpleNamespace(args=each) for each in arguments]


def scores(lm: HFLM, *pairs: tuple[str, str]) -> list[tuple[float, bool]]:
    return lm.loglikelihood(asked(*pairs), disable_tqdm=True)


def same(mine: list[tuple[float, bool]], theirs: list[tuple[float, bool]]) -> None:
    assert [each[0] for each in mine] == pytest.approx([each[0] for each in theirs], abs=1e-4)
    assert [each[1] for each in mine] == [each[1] for each in theirs]


def greedy_pair(lm: HFLM, context: str, tokens: int) -> tuple[str, str]:
    """A context and what the model itself would go on with, of which the byte tokenizer makes the same ids."""
    for length in range(len(context), 5, -1):
        (text,) = lm.generate_until(
            asked((context[:length], {"until": [], "max_gen_toks": tokens})),
            disable_tqdm=True,
        )
        if len(text) == tokens and text.isascii() and not context[:length].endswith(" "):
            return context[:length], text
    raise AssertionError("the random model never answers in plain letters: take another seed")


# with nothing evicted: hf


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "full"},
        {"budget": 500},
        {"policy": "h2o", "budget": 500, "chunk": 3},
        {"policy": "snapkv", "budget": 500},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_log_likelihoods_are_those_of_hf_where_nothing_is_evicted(options: dict[str, Any]) -> None:
    same(scores(bounded(**options), *PAIRS), scores(hf(), *PAIRS))


def test_what_greedy_decoding_would_say_is_told() -> None:
    pair = greedy_pair(hf(), STORY, 3)
    wrong = (pair[0], pair[1][:2] + chr(ord(pair[1][2]) % 90 + 33))
    mine = scores(bounded(policy="full"), pair, wrong)
    assert [greedy for _, greedy in mine] == [True, False]
    same(mine, scores(hf(), pair, wrong))


def test_generations_are_those_of_hf_where_nothing_is_evicted() -> None:
    requests = [
        (STORY, {"until": ["zz"], "max_gen_toks": 12}),
        ("A", {"until": ["\n"], "max_gen_toks": 5}),
        (STORY * 2, {"until": [], "max_gen_toks": 10}),
        (STORY, {"until": [], "max_gen_toks": 8, "num_beams": 3}),
        (STORY, {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 0.8}),
    ]
    for options in ({"policy": "full"}, {"policy": "tova", "budget": 500}):
        said = []
        for lm in (bounded(**options), hf()):
            torch.manual_seed(7)
            said.append(lm.generate_until(asked(*requests), disable_tqdm=True))
        assert said[0] == said[1]


def test_rolling_log_likelihoods_are_those_of_hf() -> None:
    requests = asked((STORY * 4,), ("Short.",))
    mine = bounded(policy="full").loglikelihood_rolling(requests, disable_tqdm=True)
    assert mine == pytest.approx(hf().loglikelihood_rolling(requests, disable_tqdm=True), abs=1e-3)


def test_contexts_are_cut_where_hf_cuts_them() -> None:
    lm = bounded(policy="full", max_length=40)
    same(scores(lm, *PAIRS), scores(hf(max_length=40), *PAIRS))
    assert lm.get_model_info()["sinkpin"]["loglikelihoods_truncated"] == 4
    with pytest.raises(InputError, match=r"a continuation of 40\b.*at most max_length=20"):
        scores(bounded(policy="full", max_length=20), ("a", "b" * 40))


# with something evicted: the plain loops


def loop(policy: str, ids: Tensor, budget: int, sinks: int, chunk: int, prompt: int) -> Tensor:
    """Logits `[tokens, vocabulary]` of the prompt at once, then up to each multiple of `chunk`."""
    if policy == "window":
        return stream(MODEL, ids, budget=budget, pins=pinned(sinks)).logits
    ends = [prompt, *(end for end in range(chunk, len(ids), chunk) if end > prompt), len(ids)]
    sizes = [stop - start for start, stop in zip([0, *ends], ends, strict=False)]
    if policy == "snapkv":
        choose = snapkv_choice(budget, pinned(sinks), prompt=prompt)
    else:
        choose = h2o_choice(budget, pinned(sinks))
    return evidence.walk(MODEL, ids, sizes, choose).logits


@pytest.mark.parametrize("policy", ["window", "h2o", "snapkv"])
@pytest.mark.parametrize("chunk", [1, 16])
def test_the_context_is_evicted_from_before_the_continuation_is_scored(policy: str, chunk: int) -> None:
    lm = bounded(policy=policy, budget=12, sinks=2, chunk=chunk)
    pairs = PAIRS[:3]  # of several tokens, and of two; one context for all
    mine = scores(lm, *pairs)
    for (context, continuation), (score, greedy) in zip(pairs, mine, strict=True):
        before, after = lm._encode_pair(context, continuation)
        ids = torch.tensor(before + after)
        logits = loop(policy, ids[:-1], 12, 2, chunk, len(before) - 1)[len(before) - 1 :]
        losses = F.cross_entropy(logits, ids[len(before) :], reduction="none")
        assert score == pytest.approx(-float(losses.sum()), abs=1e-3)
        assert greedy == bool((logits.argmax(-1) == ids[len(before) :]).all())
    full = scores(hf(), *pairs)
    assert all(abs(each[0] - other[0]) > 0.01 for each, other in zip(mine, full, strict=True))


@pytest.mark.parametrize("policy", ["window", "h2o", "snapkv", "pyramidkv", "adakv"])
def test_even_a_continuation_of_one_token_is_predicted_from_what_is_left(policy: str) -> None:
    """The prompt's own forward would predict it from the whole context, and no eviction would ever be seen."""
    lm = bounded(policy=policy, budget=12, sinks=2)
    assert len(lm._encode_pair(STORY, "N")[1]) == 1
    (mine,), (full,) = scores(lm, (STORY, "N")), scores(hf(), (STORY, "N"))
    assert abs(mine[0] - full[0]) > 0.01
    assert lm.counts["evicted"] == 1


def test_continuations_of_one_context_do_not_touch_each_other() -> None:
    """They share a prompt's forward; alone, in another order, and twice, each is what it was."""
    for options in (
        {"budget": 12},
        {"policy": "h2o", "budget": 12, "chunk": 1},
        {"policy": "snapkv", "budget": 12},
    ):
        together = scores(bounded(**options), *PAIRS[:3], PAIRS[0])
        alone = [scores(bounded(**options), pair)[0] for pair in PAIRS[:3]]
        assert together == [*alone, alone[0]]
        assert scores(bounded(**options), *reversed(PAIRS[:3])) == alone[::-1]


def test_one_context_is_fed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lm, fed = bounded(budget=12), []
    feed = lm._feed
    monkeypatch.setattr(lm, "_feed", lambda cache, ids, keep: fed.append(len(ids)) or feed(cache, ids, keep))
    scores(lm, *PAIRS[:3])
    prompt = len(lm._encode_pair(*PAIRS[0])[0]) - 1
    assert fed == [prompt, 8, 2, 4]


def test_generation_is_bounded_too() -> None:
    request = asked((STORY, {"until": [], "max_gen_toks": 16}))
    lm = bounded(policy="h2o", budget=12, sinks=2)
    (mine,), (full,) = (each.generate_until(request, disable_tqdm=True) for each in (lm, hf()))
    assert mine != full
    assert lm.get_model_info()["sinkpin"]["requests_evicted"] == 1


def test_what_is_generated_is_what_a_score_of_it_calls_greedy() -> None:
    """Scoring and generating go through the same cache: fed one at a time, the generated tokens are each the likeliest."""
    for options in ({"budget": 12}, {"policy": "h2o", "budget": 12}, {"policy": "snapkv", "budget": 12}):
        lm = bounded(chunk=1, **options)
        context, text = greedy_pair(lm, STORY, 4)
        assert scores(lm, (context, text))[0][1]


def test_a_share_is_of_each_context() -> None:
    lm = bounded(policy="h2o", budget="25%", sinks=2)
    scores(lm, PAIRS[0], ("x" * 39, "y"))
    tokens = [len(lm._encode_pair(*pair)[0]) for pair in (PAIRS[0], ("x" * 39, "y"))]
    assert tokens[1] == 40
    assert lm.get_model_info()["sinkpin"]["budget_tokens"] == [10, tokens[0] // 4]


def test_a_card_pins(tmp_path: Path) -> None:
    bare, pinning = bounded(budget=12, sinks=0), scores(bounded(budget=12, sinks=2), PAIRS[0])
    path = tmp_path / "sinks.json"
    Card(model="toy", model_hash="ab" * 32, rules=(first(2),)).write(path)
    lm = bounded(budget=12, sinks=0, pins=str(path))
    assert scores(lm, PAIRS[0]) == pinning != scores(bare, PAIRS[0])
    assert lm.get_model_info()["sinkpin"]["pins"] == str(path)


def test_rolling_is_the_plain_loop_in_each_window() -> None:
    lm = bounded(budget=12, sinks=2)
    (mine,) = lm.loglikelihood_rolling(asked((STORY,)), disable_tqdm=True)
    ids = torch.tensor([lm.prefix_token_id, *lm.tok_encode(STORY)])
    losses = F.cross_entropy(loop("window", ids[:-1], 12, 2, 16, 1), ids[1:], reduction="none")
    assert mine == pytest.approx(-float(losses.sum()), abs=1e-3)


@pytest.mark.parametrize("options", [{"budget": "25%"}, {"policy": "snapkv", "budget": 12}])
def test_rolling_is_refused_where_it_would_need_a_context(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="rolling log-likelihood has no context"):
        bounded(**options).loglikelihood_rolling(asked((STORY,)))


# what is said of it


def test_what_was_evicted_is_counted_and_a_budget_never_reached_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("lm_eval"), "propagate", True)  # lm-eval's command sets it to False
    caplog.set_level(logging.INFO, logger="lm_eval.models.sinkpin")
    lm = bounded(policy="h2o", budget=40, sinks=2, normalize=True)
    scores(lm, ("A", "n"), ("B", "c"))
    assert "budget never reached, nothing was evicted in any of 2 log-likelihoods" in caplog.messages[-1]
    assert caplog.records[-1].levelno == logging.WARNING
    scores(lm, PAIRS[0], ("A", "n"))
    assert caplog.messages[-1] == "h2o[normalize=True]-40+2 evicted in 1 of 2 log-likelihoods"
    info = lm.get_model_info()["sinkpin"]
    assert (info["requests"], info["requests_evicted"], info["loglikelihoods_truncated"]) == (4, 1, 0)
    assert (info["policy"], info["options"], info["budget"], info["sinks"]) == (
        "h2o",
        {"normalize": True},
        "40",
        2,
    )
    assert (info["budget_tokens"], info["chunk"], info["frame"]) == ([40, 40], 16, "original")
    json.dumps(info)
    scores(bounded(policy="full"), PAIRS[0])
    said = [record for record in caplog.records if record.name == "lm_eval.models.sinkpin"]
    assert len(said) == 2, "full has no budget to reach"


def test_a_request_whose_last_forward_evicts_behind_it_is_not_counted() -> None:
    """h2o sees all of a forward before it chooses: a context below the budget scores as the full cache does."""
    lm = bounded(policy="h2o", budget=len(STORY) + 2, sinks=2)
    same(scores(lm, (STORY, " Indeed.")[:2]), scores(hf(), (STORY, " Indeed.")))
    assert lm.counts["evicted"] == 0


# what is refused


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"bugdet": 3},
            InputError,
            "no argument is called 'bugdet': did you mean 'budget'?.*policy, budget, sinks.*dtype",
        ),
        ({"budget": 64, "kernel": 5}, InputError, "no argument is called 'kernel'"),
        ({"policy": "h20", "budget": 64}, PolicyError, "did you mean 'h2o'"),
        ({"policy": "h2o", "budget": 64, "normalize": 3}, PolicyError, "normalize=3 is not of type bool"),
        ({"policy": "h2o"}, BudgetError, "'h2o' has no budget"),
        ({"policy": "full", "budget": 64}, BudgetError, "leave it out"),
        ({"budget": "lots"}, BudgetError, "'lots' cannot be read"),
        ({"budget": 64, "sinks": "four"}, PolicyError, "sinks='four'"),
        ({"budget": 64, "frame": "both"}, PolicyError, "frame='both'"),
        ({"budget": 64, "chunk": 0}, InputError, "chunk=0"),
        ({"budget": 64, "batch_size": 8}, InputError, "batch_size=8: contexts are fed one at a time"),
        ({"budget": 64, "batch_size": "auto"}, InputError, "batch_size='auto'"),
        ({"budget": 64, "parallelize": True}, InputError, "parallelize=True of lm-eval's hf"),
        ({"budget": 64, "pins": "nowhere.json"}, InputError, "nowhere.json"),
        ({"policy": "full", "pins": "nowhere.json"}, BudgetError, "evicts nothing"),
        ({"policy": "streaming", "budget": 64, "sinks": 0}, PolicyError, "pins at least 1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_no_model_could_do_is_refused_before_one_is_loaded(
    options: dict[str, Any], error: type[SinkpinError], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        SinkpinLM(pretrained="no/such/folder", **options)
    assert "\n" not in str(caught.value)


def test_what_this_model_cannot_do_is_refused_before_it_is_asked_anything() -> None:
    with pytest.raises(BudgetError, match="does not exceed the 4 pinned"):
        bounded(budget=4)
    windowed = model_of(architectures=None)
    windowed.config.is_encoder_decoder = True
    with pytest.raises(ModelError, match="encoder-decoder"):
        SinkpinLM(pretrained=windowed, tokenizer=toy_tokenizer(), budget=64)


def test_no_option_of_a_policy_is_an_argument_of_something_else() -> None:
    from dataclasses import fields

    from sinkpin.evaluate.lm_eval import arguments, model

    for name in TABLE:
        options = {field.name for field in fields(resolve(name)) if field.init}
        assert not options & {*arguments._OWN, *arguments._NOT_TAKEN, *model._OF_HF}, name


# lm-eval's own ends


def test_both_ways_to_its_name_lead_to_the_class() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    value = pyproject["project"]["entry-points"]["lm_eval.models"]["sinkpin"]
    assert EntryPoint("sinkpin", value, "lm_eval.models").load() is SinkpinLM
    assert value == f"{SinkpinLM.__module__}:{SinkpinLM.__name__}", (
        "else lm-eval takes it for two models of one name"
    )
    assert get_model("sinkpin") is SinkpinLM


TASK = """\
task: which_end
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list: [{{metric: acc}}]
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one multiple-choice task of six documents, and a cache of data sets beside it."""
    place = tmp_path_factory.mktemp("tasks")
    documents = [
        {"context": STORY[: 50 + number], "choices": [" Indeed.", "N", " No, sir"], "label": number % 3}
        for number in range(6)
    ]
    data = place / "documents.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    (place / "which_end.yaml").write_text(TASK.format(data=data))
    return place


@pytest.fixture
def evaluate(tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], dict[str, Any]]:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")

    def run(lm: HFLM) -> dict[str, Any]:
        manager = TaskManager(include_path=str(tasks), include_defaults=False)
        return simple_evaluate(model=lm, tasks=["which_end"], task_manager=manager, bootstrap_iters=0)

    return run


def test_a_task_of_its_own_gives_what_hf_gives_and_less_below_the_context(
    evaluate: Callable[[Any], Any],
) -> None:
    full, own, less = (
        evaluate(lm) for lm in (hf(), bounded(policy="full"), bounded(policy="h2o", budget="25%", sinks=2))
    )

    def said(result: Any) -> list[float]:
        return [score for sample in result["samples"]["which_end"] for ((score, _),) in sample["resps"]]

    assert said(own) == pytest.approx(said(full), abs=1e-4)
    assert own["results"]["which_end"]["acc,none"] == full["results"]["which_end"]["acc,none"]
    assert max(abs(a - b) for a, b in zip(said(less), said(full), strict=True)) > 0.01
    assert less["config"]["sinkpin"]["requests_evicted"] == less["config"]["sinkpin"]["requests"] == 18
    assert own["config"]["sinkpin"]["requests_evicted"] == 0


def test_the_example_is_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    folder = Path(__file__).parents[2] / "examples" / "lm_eval"
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    lm = bounded(budget=32)
    result = simple_evaluate(model=lm, tasks=["continues"], task_manager=manager, limit=2, bootstrap_iters=0)
    for sample in result["samples"]["continues"]:
        sentences, label = sample["doc"]["sentences"], sample["doc"]["label"]
        text = " ".join(demo.sample_text().split())
        assert f"{sample['doc']['passage']} {sentences[label]}" in text
        assert len(set(sentences)) == 4
        assert max(map(len, sentences)) - min(map(len, sentences)) < 7
    assert result["config"]["sinkpin"]["requests"] == 16


def test_the_command_runs_lm_evals_own(tmp_path: Path, tasks: Path) -> None:
    """In a process of its own, as a user would: `--model_args` as text, results in a file."""
    model = tmp_path / "model"
    MODEL.save_pretrained(model)
    toy_tokenizer(opening=BOS).save_pretrained(model)
    words = ["--model_args", f"pretrained={model},policy=h2o,budget=25%,sinks=2,chunk=1,dtype=float32"]
    words += [
        "--tasks",
        "which_end",
        "--include_path",
        tasks,
        "--output_path",
        tmp_path / "out",
        "--device",
        "cpu",
    ]
    ran = command(tmp_path, *words)
    assert ran.returncode == 0, ran.stderr
    assert "which_end" in ran.stdout
    assert "h2o-25%+2 evicted in 18 of 18 log-likelihoods" in ran.stderr
    (path,) = (tmp_path / "out").rglob("results_*.json")
    config = json.loads(path.read_text())["config"]
    assert config["model"] == "sinkpin"
    assert config["sinkpin"]["arm"] == "h2o-25%+2"
    assert config["sinkpin"]["requests_evicted"] == 18


def command(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    import os

    environment = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    line = [sys.executable, "-m", "sinkpin.evaluate.lm_eval", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, env=environment, check=False, timeout=300)


def test_the_command_refuses_in_one_line(
    tasks: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["python"])
    code = main(
        ["--model_args", "pretrained=x,bugdet=3", "--tasks", "which_end", "--include_path", str(tasks)]
    )
    assert code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sinkpin: ")]
    assert "no argument is called 'bugdet': did you mean 'budget'?" in line


def test_without_lm_eval_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sinkpin.evaluate.lm_eval.__main__.find_spec", lambda name: None)
    assert main([]) == 2
    assert (
        capsys.readouterr().err
        == "sinkpin: there is no lm_eval and no accelerate here: pip install 'sinkpin[eval]'\n"
    )
