"""What computes the wrong thing is not timed."""

from __future__ import annotations

import pytest
import torch

from bench.conftest import make
from sinkpin.bench import decode, gate
from sinkpin.bench.arms import Arm, arms_of
from sinkpin.bench.gate import GateError
from sinkpin.bench.settings import Decode
from sinkpin.cache.bounded import BoundedCache
from sinkpin.errors import InputError, PolicyError
from sinkpin.policies import names


@pytest.mark.parametrize("policy", [name for name in names() if name != "full"])
def test_every_policy_passes(subject, policy):
    gate.check(subject, Arm(policy, None), sinks=4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("frame", ["slots", "original"])
def test_lower_precision_passes(frame, dtype):
    gate.check(make(dtype=dtype), Arm("streaming", frame), sinks=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_position_is_met(monkeypatch, dtype):
    """Kills: a gate so wide that a key one position off goes through."""
    subject = make(dtype=dtype)
    feed = subject.feed

    def off_by_one(model, ids, cache, **more):
        if isinstance(cache, BoundedCache) and ids.shape[1] == 1:
            ids = (ids + 1) % 97
        return feed(model, ids, cache, **more)

    monkeypatch.setattr(subject, "feed", off_by_one)
    with pytest.raises(GateError, match="logits differ"):
        gate.check(subject, Arm("streaming", None), sinks=4)


def test_eviction_that_depends_on_the_chunk_is_met(subject, monkeypatch):
    """Kills: a gate that compares only below the budget. H2O's set follows the chunk; called a position policy, it is
    wrong."""
    monkeypatch.setattr(Arm, "kind", property(lambda self: "position"))
    with pytest.raises(GateError, match="token by token"):
        gate.check(subject, Arm("h2o", None), sinks=4)


def test_bytes_that_the_budget_does_not_explain_are_met(subject, monkeypatch):
    monkeypatch.setattr(BoundedCache, "nbytes", lambda self: 12345)
    with pytest.raises(GateError, match="owns 12,345 bytes"):
        gate.check(subject, Arm("streaming", None), sinks=4)


def test_lost_pins_are_met(subject, monkeypatch):
    monkeypatch.setattr(BoundedCache, "origins", lambda self, layer=0: torch.arange(1, 41).expand(1, 2, -1))
    with pytest.raises(GateError, match="lost some of its 4 pins"):
        gate.check(subject, Arm("streaming", None), sinks=4)


def test_nan_is_no_agreement():
    with pytest.raises(GateError):
        gate.require_close(torch.tensor([float("nan"), 1.0]), torch.tensor([0.0, 1.0]), "x")


def test_nothing_is_timed_on_red(subject, monkeypatch):
    monkeypatch.setattr(gate, "difference", lambda mine, theirs: 1.0)
    monkeypatch.setattr(decode, "interleave", lambda *_, **__: pytest.fail("timed although the gate is red"))
    with pytest.raises(GateError):
        decode.run(subject, Decode(entries=16, repeats=1))


def test_arms_as_written():
    assert [arm.name for arm in arms_of(["h2o@slots", "tova", "h2o@slots"])] == ["h2o slots", "tova"]
    with pytest.raises(InputError, match="slots or original"):
        arms_of(["h2o@slot"])
    with pytest.raises(PolicyError):
        arms_of(["h20"])
    with pytest.raises(InputError, match="evicts nothing"):
        arms_of(["full"])
