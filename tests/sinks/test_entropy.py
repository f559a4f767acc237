"""Entropy, margin and varentropy against plain sums in double precision, and what a tracker records in `generate`."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessor, LogitsProcessorList

import sinkpin
from families import VOCAB, build, tokens
from sinkpin.errors import InputError
from sinkpin.sinks.entropy import EntropyTracker, entropy_of

INF = float("inf")
ROUNDING = torch.finfo(torch.float32).eps


def naive(logits: list[float]) -> tuple[float, float, float]:
    """The definitions, term by term in double precision."""
    most = max(logits)
    weights = [math.exp(x - most) for x in logits]
    p = [w / sum(weights) for w in weights]
    surprise = [(q, -math.log(q)) for q in p if q > 0]
    entropy = sum(q * s for q, s in surprise)
    first, second = [*sorted(p, reverse=True), 0.0][:2]
    return entropy, first - second, sum(q * (s - entropy) ** 2 for q, s in surprise)


SCORES = st.lists(
    st.one_of(st.floats(-30, 30, width=32), st.floats(-1e4, 1e4, width=32), st.just(-INF)),
    min_size=1,
    max_size=9,
).filter(lambda row: max(row) > -INF)


@given(SCORES)
def test_against_the_definitions(row: list[float]) -> None:
    found = entropy_of(torch.tensor(row))
    for ours, theirs in zip(found, naive(row), strict=True):
        assert ours.dtype == torch.float32 and ours.shape == ()
        assert float(ours) == pytest.approx(theirs, rel=2e-5, abs=2e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 97, 151_936])
@pytest.mark.parametrize("level", [0.0, 1e4, -1e4])
def test_uniform_scores_have_log_v(size: int, level: float) -> None:
    entropy, margin, varentropy = entropy_of(torch.full((size,), level))
    assert abs(float(entropy) - math.log(size)) <= ROUNDING * math.log(size)
    assert float(varentropy) == 0
    assert float(margin) == (1 if size == 1 else 0)


@pytest.mark.parametrize("score", [0.0, 1e4, -1e4])
def test_one_token_that_can_come(score: float) -> None:
    row = torch.full((50,), -INF)
    row[17] = score
    assert [float(x) for x in entropy_of(row)] == [0, 1, 0]


def test_a_masked_token_is_no_token() -> None:
    row = torch.tensor([1.0, 2.0, 3.0])
    masked = torch.tensor([-INF, 1.0, -INF, 2.0, 3.0])
    assert torch.allclose(torch.stack(entropy_of(row)), torch.stack(entropy_of(masked)), rtol=1e-6)


def test_huge_scores() -> None:
    """exp(1e4) is no float; and a token 2e4 below the likeliest cannot come."""
    entropy, margin, varentropy = entropy_of(torch.tensor([1e4, 1e4, -1e4]))
    assert float(entropy) == pytest.approx(math.log(2), rel=1e-6)
    assert float(margin) == 0 and float(varentropy) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_float_is_computed_in_float32(dtype: torch.dtype) -> None:
    logits = (torch.randn(3, 5, 1000, generator=torch.Generator().manual_seed(0)) * 4).to(dtype)
    found = entropy_of(logits)
    for ours, theirs in zip(found, entropy_of(logits.float()), strict=True):
        assert ours.dtype == torch.float32 and ours.shape == (3, 5)
        assert torch.equal(ours, theirs)


def test_the_logits_are_left_alone() -> None:
    logits = torch.tensor([[1.0, -INF, 2.0]])
    entropy_of(logits)
    assert logits.tolist() == [[1.0, -INF, 2.0]]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([[0.0, 1.0], [-INF, -INF]], "2 rows of logits, 1 with nothing but −inf"),
        ([[0.0, float("nan")], [float("nan"), -INF]], "2 rows of logits, 2 with NaN"),
        ([[INF, 1.0], [float("nan"), INF], [INF, -INF]], r"3 rows of logits, 1 with NaN, 2 with \+inf"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_distribution_has_no_entropy(rows, says: str, dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match=says):
        entropy_of(torch.tensor(rows, dtype=dtype))


@pytest.mark.parametrize(
    "logits", [torch.tensor(1.0), torch.zeros(3, 0), torch.zeros(3, 4, dtype=torch.long)]
)
def test_what_is_no_logits(logits: torch.Tensor) -> None:
    with pytest.raises(InputError, match="give floating-point scores"):
        entropy_of(logits)


@pytest.fixture(scope="module")
def model():
    return build()


def dense(model, sequences: torch.Tensor, prompt: int) -> list[torch.Tensor]:
    """Of every generated position of `sequences [rows, tokens]`, from one forward over all."""
    with torch.inference_mode():
        logits = model(sequences).logits[:, prompt - 1 : -1]
    return [torch.stack(x) for x in zip(*(entropy_of(row) for row in logits), strict=True)]


def close(tracker: EntropyTracker, wanted: list[torch.Tensor]) -> bool:
    found = (tracker.entropy, tracker.margin, tracker.varentropy)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("wrap", [list, LogitsProcessorList])
def test_generate_records_every_position_of_every_row(model, wrap) -> None:
    ids, tracker = tokens(9, rows=2), sinkpin.EntropyTracker()
    assert isinstance(tracker, LogitsProcessor)
    with_it = model.generate(ids, max_new_tokens=6, do_sample=False, logits_processor=wrap([tracker]))
    assert torch.equal(with_it, model.generate(ids, max_new_tokens=6, do_sample=False))
    scores = torch.randn(2, VOCAB)
    assert wrap([EntropyTracker()])[0](ids, scores) is scores
    assert tracker.entropy.shape == tracker.margin.shape == tracker.varentropy.shape == (2, 6)
    assert close(tracker, dense(model, with_it, 9))


def test_a_temperature_comes_after_and_a_penalty_before(model) -> None:
    """Where processors stand in `generate` is transformers' doing: this says when it changes."""
    ids, found = tokens(9, rows=2), []
    for options in ({}, {"temperature": 0.3, "top_k": 2}, {"suppress_tokens": list(range(40))}):
        torch.manual_seed(0)
        tracker = EntropyTracker()
        out = model.generate(ids, max_new_tokens=1, do_sample=True, logits_processor=[tracker], **options)
        found.append(tracker.entropy)
        assert out.shape == (2, 10)
    plain, warped, banned = found
    assert torch.equal(plain, warped)
    assert (plain - banned).abs().min() > 1e-3


def test_a_processor_before_the_tracker_is_measured_and_one_after_it_is_not(model) -> None:
    def halve(ids, scores):
        return scores / 2

    ids = tokens(9)
    before, plain, after = EntropyTracker(), EntropyTracker(), EntropyTracker()
    for processors in ([plain], [halve, before], [after, halve]):
        model.generate(ids, max_new_tokens=1, do_sample=False, logits_processor=processors)
    assert torch.equal(plain.entropy, after.entropy)
    assert before.entropy > plain.entropy + 0.1


def test_beams_are_followed_as_the_docstring_says(model) -> None:
    ids, tracker = tokens(9, rows=2), EntropyTracker()
    out = model.generate(
        ids,
        max_new_tokens=7,
        do_sample=False,
        num_beams=3,
        eos_token_id=None,
        logits_processor=[tracker],
        return_dict_in_generate=True,
        output_scores=True,
    )
    n = tracker.entropy.shape[1]
    assert tracker.entropy.shape == (6, 7)
    assert not torch.equal(out.beam_indices, out.beam_indices[:, :1].expand(-1, n)), "no beam changed places"
    followed = tracker.entropy[out.beam_indices[:, :n].clamp(min=0), range(n)]
    assert torch.allclose(followed, dense(model, out.sequences, 9)[0], rtol=1e-4, atol=1e-5)


def test_another_generation_needs_a_reset(model) -> None:
    ids, tracker = tokens(9), EntropyTracker()
    model.generate(ids, max_new_tokens=3, do_sample=False, logits_processor=[tracker])
    with pytest.raises(InputError, match=r"9 tokens do not follow those behind 11: call reset\(\)"):
        model.generate(ids, max_new_tokens=3, do_sample=False, logits_processor=[tracker])
    tracker.reset()
    assert tracker.entropy.shape == (0, 0)
    model.generate(tokens(5, rows=3), max_new_tokens=2, do_sample=False, logits_processor=[tracker])
    assert tracker.entropy.shape == (3, 2)


def test_assisted_generation_is_refused(model) -> None:
    ids = tokens(4).repeat(1, 4)  # repeats: something to look up
    with pytest.raises(InputError, match="assisted generation"):
        model.generate(
            ids,
            max_new_tokens=12,
            do_sample=False,
            prompt_lookup_num_tokens=3,
            logits_processor=[EntropyTracker()],
        )


def test_plain_logits_one_by_one_and_together() -> None:
    logits = torch.randn(2, 5, VOCAB, generator=torch.Generator().manual_seed(1))
    together, apart, last = EntropyTracker(), EntropyTracker(), EntropyTracker(last=2)
    together.update(logits)
    last.update(logits)
    for position in logits.unbind(1):
        apart.update(position)
    wanted = entropy_of(logits)
    assert torch.equal(together.entropy, wanted[0]) and torch.equal(apart.entropy, wanted[0])
    assert torch.equal(together.margin, wanted[1]) and torch.equal(together.varentropy, wanted[2])
    assert torch.equal(last.entropy, wanted[0][:, -2:]) and torch.equal(last.margin, wanted[1][:, -2:])


def test_rows_do_not_change_their_number() -> None:
    tracker = EntropyTracker()
    tracker.update(torch.zeros(2, 5))
    with pytest.raises(InputError, match=r"3 rows of logits after 2: call reset\(\)"):
        tracker.update(torch.zeros(3, 5))
    with pytest.raises(InputError, match=r"logits \[5\]: give \[batch, V\]"):
        tracker.update(torch.zeros(5))
    assert tracker.entropy.shape == (2, 1)


def test_a_tracker_that_keeps_nothing() -> None:
    with pytest.raises(InputError, match="last=0 keeps no position"):
        EntropyTracker(last=0)
