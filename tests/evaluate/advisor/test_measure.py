"""Settings on a tiny model: differences are those of a comparison, bytes are those of a full cache, and the emitted Python runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sinkpin
from families import build, tokens
from sinkpin.cache.compat import CACHE_KEYWORD
from sinkpin.errors import InputError, ModelError, PolicyError
from sinkpin.evaluate.advisor.measure import Measurer, trained_length
from sinkpin.evaluate.advisor.passages import Passage
from sinkpin.evaluate.advisor.settings import setting
from sinkpin.evaluate.advisor.workloads import WORKLOADS, lines

POLICIES = ["window", "h2o", "tova", "keydiff", "lagkv", "expected", "adakv", "random"]


@pytest.fixture(scope="module")
def model():
    return build("llama", positions=4096)


def passage(length=1100, seed=0, *, first=512, prompt=None, spans=None):
    return Passage("a", tuple(tokens(length, seed=seed)[0].tolist()), first, prompt, spans or {})


def test_differences_are_block_means_of_a_comparison_from_the_first_scored_token_on(model):
    own, other = passage(1700), passage(1100, seed=1)
    h2o, window = (setting(name, 4, None, None).with_budget(64) for name in ("h2o", "window"))
    found = Measurer(model, 16)([h2o, window], [own, other])
    for each in (h2o, window):
        expected = []
        for text in (own, other):
            result = sinkpin.compare(model, torch.tensor(text.ids), arms=[each.arm], chunk=16)
            by_position = dict(zip(result.positions.tolist(), result.losses[each.arm.name], strict=True))
            full = dict(zip(result.positions.tolist(), result.losses["full"], strict=True))
            for start in range(512, len(text.ids) - 511, 512):
                block = range(start, start + 512)
                expected.append(np.mean([float(by_position[i]) - float(full[i]) for i in block]))
        assert found[each.name] == pytest.approx(expected, abs=1e-6)
        assert len(found[each.name]) == 3


@pytest.mark.parametrize("policy", [*POLICIES, "snapkv", "pyramidkv"])
@pytest.mark.parametrize("pins", [None, "system"])
def test_predicted_bytes_are_those_of_a_full_cache(model, policy, pins):
    text = passage(700, prompt=300, spans={"system": ((0, 7), (20, 25))})
    each = setting(policy, 4, None, pins).with_budget(100)
    predicted = Measurer(model, 16).bytes_of(each, [text])
    arm = each.on(text.spans)
    ids = torch.tensor(text.ids)[None]
    with (
        torch.inference_mode(),
        sinkpin.BoundedCache(
            model, budget=arm.budget, policy=arm.policy, sinks=4, pins=list(arm.pins), frame=arm.frame
        ) as cache,
    ):
        model(ids[:, :300], **{CACHE_KEYWORD: cache})
        for start in range(300, 700, 50):
            model(ids[:, start : start + 50], **{CACHE_KEYWORD: cache})
        assert cache.nbytes() == predicted


def test_memory_counts_the_full_cache_of_a_passage_and_the_measured_peak(model):
    text, each = passage(1100), setting("window", 4, None, None).with_budget(64)
    measurer = Measurer(model, 16)
    measurer([each], [text])
    memory = measurer.memory_of(each, [text])
    with torch.inference_mode(), sinkpin.BoundedCache(model, policy="full", sinks=0) as cache:
        model(torch.tensor(text.ids)[None], **{CACHE_KEYWORD: cache})
        assert memory.full_bytes == cache.nbytes()
    assert memory.session_bytes < memory.peak_bytes
    assert memory.sessions_per_gib == 2**30 // memory.session_bytes


def test_the_emitted_python_makes_the_cache_that_was_measured(model):
    each = setting("adakv:base=h2o,alpha=0.3", 4, None, "system").with_budget(64)
    text = passage(spans={"system": ((0, 9),)})
    names = {"sinkpin": sinkpin, "model": model}
    exec(each.as_python(text.spans["system"]), names)
    with names["cache"] as cache:
        assert cache.footprint.bytes_of(64) == Measurer(model, 16).bytes_of(each, [text])
        assert cache.budget_tokens == 64


def test_settings_that_are_one_arm_in_a_text_are_run_once_and_told_twice(model):
    """A card that pins nothing in one text is `sinks=0` there."""
    a, b = setting("h2o", 0, None, None).with_budget(64), setting("h2o", 0, None, "card").with_budget(64)
    found = Measurer(model, 16)([a, b], [passage()])
    assert a.name != b.name
    assert (found[a.name] == found[b.name]).all()


def test_a_setting_that_evicts_after_scoring_began_is_refused(model):
    each = setting("h2o", 4, None, None).with_budget(600)
    with pytest.raises(InputError, match="after scoring begins at 512"):
        Measurer(model, 16)([each], [passage(1700)])


def test_what_a_model_cannot_run_is_left_out_with_its_reason_or_refused_where_it_was_asked_for():
    learned = build("gpt2", positions=2048)
    measurer, text = Measurer(learned, 16), [passage()]
    stream = lines(WORKLOADS["stream"], 512)
    with pytest.raises(ModelError, match="learned position"):
        measurer.possible(stream, text, asked=False)  # nothing is left
    mixed = [*lines(WORKLOADS["rag"], 512)[:2], *stream[:1]]
    left, notes = measurer.possible(mixed, text, asked=False)
    assert left == mixed[:2]
    assert len(notes) == 1
    assert "learned position" in notes[0]
    with pytest.raises((ModelError, PolicyError)):
        measurer.possible(mixed, text, asked=True)


def test_the_length_that_the_full_cache_is_a_reference_for(model):
    assert trained_length(model) == 4096
