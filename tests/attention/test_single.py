"""Decoding through the Triton kernel, in its interpreter or on a card, against plain tensor operations."""

import os
from unittest import mock

import pytest
import torch

from cache.test_step import SETUPS, streamed
from sinkpin.attention import kernel, single

INTERPRETED = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}  # see conftest.py
pytest.importorskip("triton.language", reason="triton is not installed: pip install triton")


@pytest.mark.parametrize(
    "family", ["llama", *(pytest.param(f, marks=pytest.mark.slow) for f in ("gpt_oss", "falcon-alibi"))]
)
@pytest.mark.parametrize("setup", SETUPS[:7], ids=lambda setup: "-".join(map(str, setup.values())))
def test_a_cache_decodes_through_the_kernel(family, setup, monkeypatch):
    """Kills: a query, a distance, a table or a pin that reaches the kernel otherwise than the plain operations."""
    wanted, wanted_held, *_ = streamed(family, setup)
    calls, real = [], kernel.decode
    monkeypatch.setattr(kernel, "decode", lambda *given, **more: calls.append(1) or real(*given, **more))
    with mock.patch.dict(os.environ, INTERPRETED):
        logits, held, *_ = streamed(family, setup)
    plain = setup.get("pins") and setup["policy"] == "window" and family == "llama"
    assert bool(calls) != bool(
        plain
    )  # pins in the midst of a text are turned on, which the kernel does not do
    assert all(torch.equal(a, b) for a, b in zip(held, wanted_held, strict=True))
    torch.testing.assert_close(logits, wanted, atol=2e-5 * float(wanted.abs().max()), rtol=0)


def test_on_a_cpu_nobody_asks_for_the_kernel(monkeypatch):
    """Without a card and without the interpreter, plain operations."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(kernel, "decode", None)
    assert not kernel.available(torch.device("cpu"))
    q, held = torch.zeros(1, 2, 1, 4), torch.zeros(1, 1, 3, 4)
    single.attend(q, held, held, single.Scoring(scale=1.0))
