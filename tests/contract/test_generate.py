"""`generate` in the ways that C2 and C9 do not name one by one: streamed, and with rows that finish before others."""

import pytest
import torch
from transformers.generation.streamers import BaseStreamer

from contract.cells import BOUNDED, CACHE, assert_close, dynamic, every_policy, feed
from families import build, pad_left, tokens


class Heard(BaseStreamer):
    """What a streamer was given, token by token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


@every_policy(*BOUNDED)
def test_streamed_tokens_are_the_tokens(policy) -> None:
    """Kills: a forward of generate that a streamer makes otherwise than without one."""
    model, ids, heard = build(), tokens(30), Heard()
    options = {"do_sample": False, "max_new_tokens": 25, "min_new_tokens": 25}
    with policy.cache(model) as cache, policy.cache(model) as silent:
        out = model.generate(ids, **{CACHE: cache}, streamer=heard, **options)
        assert torch.equal(out, model.generate(ids, **{CACHE: silent}, **options))
    assert heard.tokens == out[0].tolist()
    assert heard.ended


@pytest.mark.parametrize("first", [0, 1])
@every_policy(*BOUNDED)
def test_rows_that_finish_early_leave_the_others_alone(policy, first: int) -> None:
    """Two left-padded rows, one of which meets its end of text after a few tokens and is fed padding from then on.

    Kills: padding of a finished row that is taken for a row's start, or that moves the other row's entries.
    """
    model = build()
    rows = [tokens(26)[0], tokens(15, seed=1)[0]]
    options = {"do_sample": False, "max_new_tokens": 24, "pad_token_id": 0}

    def alone(row: torch.Tensor, **more: int) -> list[int]:
        with policy.cache(model) as cache:
            return model.generate(row[None], **{CACHE: cache}, **options, **more)[0, len(row) :].tolist()

    free = [alone(row) for row in rows]
    end = next(t for t in free[first][2:] if t not in free[1 - first] and t != 0)
    ids, mask = pad_left(rows)
    with policy.cache(model) as cache:
        out = model.generate(ids, attention_mask=mask, **{CACHE: cache}, eos_token_id=end, **options)
        new = out[:, ids.shape[1] :].tolist()
        assert cache.seen == out.shape[1] - 1
    stop = free[first].index(end) + 1
    assert new[first][:stop] == free[first][:stop]
    assert set(new[first][stop:]) <= {0}
    assert new[1 - first] == free[1 - first][: len(new[1 - first])]
    assert len(new[1 - first]) == 24, "the other row goes on to the end"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@every_policy("scored", "prompt")
def test_a_prompt_longer_than_the_budget_sees_all_of_itself(policy, attention: str) -> None:
    """A prompt of 64 into a budget of 16: nothing goes before the forward has ended, so its logits are the full cache's.

    Kills: eviction that comes before attention, or a mask that is causal only inside an observation window.
    """
    model, ids = build(attention=attention), tokens(64)
    with policy.cache(model, budget=16) as cache:
        assert_close(feed(model, cache, ids), feed(model, dynamic(model), ids), 1e-5)
        assert cache.seen == 64
