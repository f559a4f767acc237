"""The twin shares the weights and nothing else; the text has no end."""

from __future__ import annotations

import torch

from families import build
from sinkpin.bench.arms import Arm, Steady, dynamic
from sinkpin.bench.subject import Subject


def test_the_twin_has_the_same_weights_and_none_of_our_hooks(subject):
    mine = {name: x.data_ptr() for name, x in subject.model.named_parameters()}
    theirs = {name: x.data_ptr() for name, x in subject.reference.named_parameters()}
    assert mine == theirs
    with Arm("streaming", None).cache(subject, 16, 4):
        assert subject.model.base_model._forward_pre_hooks
        assert not subject.reference.base_model._forward_pre_hooks
        assert subject.reference.config is not subject.model.config


def test_the_text_begins_again_and_rows_begin_elsewhere():
    subject = Subject(build(), torch.arange(2, 12), "tiny")
    assert subject.tokens(8, 13).tolist() == [[10, 11, 2, 3, 4]]
    assert subject.tokens(0, 3, rows=2).tolist() == [[2, 3, 4], [7, 8, 9]]


def test_a_steady_reference_says_the_same_at_every_step():
    """Kills: a reference that grows while it is timed."""
    subject = Subject(build("gemma2"), torch.arange(2, 60), "hybrid")
    cache = dynamic(subject)
    subject.feed(subject.reference, subject.tokens(0, 20), cache)
    steady = Steady(cache)
    said = []
    for _ in range(3):
        steady.restore()
        said.append(subject.feed(subject.reference, subject.tokens(20, 21), cache))
        assert cache.get_seq_length() == 21
    assert torch.equal(said[0], said[1]) and torch.equal(said[0], said[2])
