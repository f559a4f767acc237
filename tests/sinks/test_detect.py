"""Detection from end to end on tiny models, and on the demo model, where there is something to find."""

import json

import numpy as np
import pytest
import torch

import families
import sinkpin
from cli.toys import WORDS, toy_tokenizer
from sinkpin.card import Card
from sinkpin.sinks import ablate, detect, experiments
from sinkpin.sinks.experiments import bound_to_the_first_place, kind_of
from sinkpin.sinks.measure import Measurement

TOKENS = 300


def pays(first=0.0, token=None, share=0.5):
    """A stand-in for `measure`: mass for the first place, and for one token wherever it is."""

    def measure(model, ids, *, left_out):
        mass = np.full((2, 2, len(ids)), 0.001, np.float32)
        mass[..., 0] += first
        if token is not None:
            mass[..., (ids == token).numpy()] += share
        return Measurement((0, 1), mass, *[None] * 9, ())

    return measure


def run(monkeypatch, measure, **options):
    monkeypatch.setattr(experiments, "measure", measure)
    ids = torch.arange(100, 160)
    return experiments.run(None, ids, vocabulary=range(200, 260), left_out=0, **options)


def test_a_place_is_told_from_a_token(monkeypatch):
    place = run(monkeypatch, pays(first=0.5))
    assert bound_to_the_first_place(place)
    token = run(monkeypatch, pays(token=100))
    assert not bound_to_the_first_place(token)
    moved = {one.name: one for one in token}["tokens put before"]
    assert moved.first == pytest.approx(0.001, abs=1e-6) and moved.token == pytest.approx(0.501, abs=1e-6)
    assert "does not keep it" in moved.says and "50.1%" in moved.says


def test_with_and_without_bos(monkeypatch):
    names = [one.name for one in run(monkeypatch, pays(first=0.5), bos=1)]
    assert "with BOS" in names and "without BOS" not in names
    names = [one.name for one in run(monkeypatch, pays(first=0.5), bos=100)]
    assert "without BOS" in names and "with BOS" not in names
    names = [one.name for one in run(monkeypatch, pays(first=0.5))]
    assert not {"with BOS", "without BOS"} & set(names)


def test_kinds():
    assert kind_of(0, is_marker=True, leads=True, bound=True) == "true"
    assert kind_of(0, is_marker=True, leads=True, bound=False) == "structural"
    assert kind_of(9, is_marker=True, leads=False, bound=True) == "structural"
    assert kind_of(9, is_marker=False, leads=False, bound=True) == "secondary"


@pytest.fixture
def small(monkeypatch):
    """Blocks and prompts so short that tiny models have time for everything."""
    for module, name, value in [
        (detect, "BLOCK", 16),
        (detect, "SHORT", 48),
        (detect, "PROMPTS", 4),
        (detect, "BUDGET", 24),
        (experiments, "TOKENS", 80),
        (experiments, "RUNS", 1),
    ]:
        monkeypatch.setattr(module, name, value)
    for function in (ablate.windows, ablate.ablate, ablate.restored):
        monkeypatch.setitem(function.__kwdefaults__, "block", 16)


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gpt2", "bloom"])
def test_a_whole_report(name, small, tmp_path):
    model, ids = families.build(name, positions=1024), families.tokens(TOKENS)
    report = sinkpin.detect(model, ids, epsilon=0.05, rate=0.5, ablation=True)
    assert len(report.ids) == TOKENS and report.sink_heat.shape == (len(report.layers), report.heads)
    assert (report.learned is not None) == (name == "gpt_oss")
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["tokens"]["mass"][-1] is None and len(document["tokens"]["mass"]) == TOKENS
    assert Card.from_json(document["card"]) == Card.from_json(report.card)
    assert [one.what for one in report.restored][:4] == ["first 1", "first 2", "first 4", "first 8"]
    for lost in report.ablations:
        assert lost.controls >= 1 and lost.effect.ci95[0] <= lost.effect.ci95[1]
    assert {lost.way for lost in report.ablations} <= set(ablate.ways(model))
    report.save_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html")
    assert str(report)


def test_no_sinks_is_an_answer(small):
    """Keys that are all alike are all paid alike."""
    model = families.build("llama")
    with torch.no_grad():
        for layer in model.base_model.layers:
            layer.self_attn.k_proj.weight.zero_()
    report = sinkpin.detect(model, families.tokens(TOKENS))
    assert not report.sinks and report.card["rules"] == []
    assert "no sinks found" in str(report) and report.cut is None
    assert "No sinks" in report.to_html() or "no sinks" in report.to_html()


def test_markers_are_candidates_whatever_their_mass(small):
    tokenizer = toy_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"
    chat = detect_chat(tokenizer)
    torch.manual_seed(0)
    model = families.build("llama", vocab_size=300)
    report = sinkpin.detect(model, chat.ids, tokenizer=tokenizer, chat=chat, left_out=0)
    markers = [i for start, stop in chat.markers for i in range(start, stop)]
    listed = {sink.index: sink for sink in report.sinks}
    assert set(markers) - {len(chat.ids) - 1} <= set(listed)  # nobody comes after the last one
    assert all(listed[i].kind in ("structural", "true") for i in markers if i in listed)
    rules = [rule for rule in report.card["rules"] if rule["rule"] == "opening"]
    assert rules == [{"rule": "opening", "ids": chat.ids[: chat.opening]}]


def detect_chat(tokenizer):
    from sinkpin.sinks.template import render

    return render(
        tokenizer, [{"role": "user", "content": WORDS * 2}, {"role": "user", "content": "And then?"}]
    )


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([[1, 2], [3, 4]], r"\[2, 2\]"),
        ([0.5, 1.0], "float"),
        ([5] * 200 + [1000], "another tokenizer"),
        ([5] * 20, "nothing would be measured"),
        ("a text", "cannot be read as ids"),
        (None, "cannot be read as ids"),
        (torch.ones(90, dtype=torch.bool), "bool"),
    ],
)
def test_what_is_no_prompt_is_refused(ids, says):
    with pytest.raises(sinkpin.SinkpinError, match=says):
        sinkpin.detect(families.build("llama"), ids)


@pytest.mark.demo
def test_the_demo_model_has_one_true_sink_and_secondary_ones():
    """Measured: token 0 28.8 %; 15 secondary ones of which 11 are " the", all in layers 2 to 10; one token repeated 1.1 %."""
    from sinkpin import demo
    from sinkpin.cli.load import load_model

    loaded = load_model(None)
    ids = loaded.tokenizer(demo.sample_text()[:9000]).input_ids[:2048]
    report = sinkpin.detect(loaded.model, ids, tokenizer=loaded.tokenizer)
    true = [sink for sink in report.sinks if sink.kind == "true"]
    assert [sink.index for sink in true] == [0]
    assert 0.25 < true[0].mass < 0.35 and true[0].payload < 0.1 and true[0].norms["key"] < 0.6
    the = [sink for sink in report.sinks if sink.text == " the"]
    assert len(the) >= 8 and all(
        sink.kind == "secondary" and sink.layers == tuple(range(2, 11)) for sink in the
    )
    said = {one.name: one.first for one in report.experiments}
    assert said["one token repeated"] < 0.1 < said["random tokens"]
    assert report.card["rules"] == [{"rule": "first", "count": 1}]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"epsilon": 2}, "epsilon=2"),
        ({"epsilon": float("nan")}, "epsilon=nan"),
        ({"rate": 0}, "rate=0"),
        ({"left_out": 1.5}, "left_out=1.5"),
        ({"left_out": -3}, "left_out=-3"),
        ({"text": "abc"}, "text cannot be read"),
        ({"text": [500] * 9}, "text reach from 500 to 500"),
        ({"ablation": True}, "80 tokens, and 1281 are the least"),
    ],
)
def test_settings_that_mean_nothing_are_refused_before_anything_is_measured(more, says, monkeypatch):
    monkeypatch.setattr(detect, "measure", lambda *_, **__: pytest.fail("it was measured"))
    with pytest.raises(sinkpin.SinkpinError, match=says):
        sinkpin.detect(families.build("llama"), families.tokens(80), **more)
