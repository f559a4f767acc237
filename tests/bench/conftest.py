"""A tiny random model as the thing that is measured."""

from __future__ import annotations

import pytest

from families import build, tokens
from sinkpin.bench.subject import Subject


@pytest.fixture
def subject() -> Subject:
    return make()


def make(text: int = 700, **more: object) -> Subject:
    """A fresh model each time: a test may break it."""
    return Subject(build("llama", positions=4096, **more), tokens(text)[0], "tiny")
