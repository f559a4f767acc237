"""The counts are those of the model, and the floor is below what is measured."""

from __future__ import annotations

import pytest
import torch

from bench.conftest import make
from families import build, tokens
from sinkpin.bench import floor
from sinkpin.bench.floor import mean_visible
from sinkpin.bench.subject import Subject


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(floor, "READ_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(floor, "_SIDE", {"cpu": 64})


def test_counts(subject):
    """Two layers, four heads of eight, two KV heads; the head is apart from the embedding."""
    found = floor.measure(subject)
    config = subject.model.config
    attention = 32 * 32 + 2 * 32 * 16 + 32 * 32
    layer = attention + 3 * 32 * config.intermediate_size
    head = config.vocab_size * 32
    assert not config.tie_word_embeddings
    assert found.weight_operations == 2 * 2 * layer
    assert found.head_operations == 2 * head
    norms = 5 * 32
    assert found.weight_bytes == 4 * (2 * layer + head + norms + 32)  # one row of the embedding
    assert found.entry_bytes == 2 * 2 * 2 * 8 * 4


def test_a_tied_head_is_read_whole():
    tied = floor.measure(Subject(build("llama", tie_word_embeddings=True), tokens(100)[0], "tied"))
    apart = floor.measure(make())
    assert tied.weight_bytes == apart.weight_bytes - 4 * 32
    assert tied.weight_operations == apart.weight_operations
    assert tied.head_operations == apart.head_operations


def test_seconds_follow_the_larger_of_the_two(subject):
    found = floor.measure(subject)
    slow_memory = floor.Floor(**{**vars(found), "bandwidth_bytes_per_s": 1.0, "rate_flop_per_s": 1e18})
    assert slow_memory.step_seconds(10, rows=3) == found.weight_bytes + 3 * 10 * found.entry_bytes
    slow_units = floor.Floor(**{**vars(found), "bandwidth_bytes_per_s": 1e18, "rate_flop_per_s": 1.0})
    attention = 2 * (2 * 4 * (8 + 8) * 10)
    token = found.weight_operations + attention
    assert slow_units.step_seconds(10, rows=3) == 3 * (token + found.head_operations)
    assert slow_units.prompt_seconds(5, 10) == 5 * token + found.head_operations
    assert slow_units.prompt_seconds(5, 10, scored=5) == 5 * (token + found.head_operations)


def test_a_sliding_layer_moves_its_window_only():
    found = floor.measure(Subject(build("gemma2"), tokens(100)[0], "hybrid"))
    each = found.entry_bytes // 2
    one = floor.Floor(**{**vars(found), "bandwidth_bytes_per_s": 1.0, "rate_flop_per_s": 1e18})
    assert one.step_seconds(20) == found.weight_bytes + each * 20 + each * 8


def test_mean_visible_is_that_of_each_query():
    for length, entries in ((7, 3), (3, 7), (5, 5)):
        plain = sum(min(index + 1, entries) for index in range(length)) / length
        assert mean_visible(length, entries) == pytest.approx(plain)


def test_small_weights_are_remarked_upon(subject):
    assert floor.measure(subject).remarks(torch.device("cpu"))
