"""`compare` against plain loops: the same positions for all, Sigma NLL / count, bytes as measured, refusals first."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import BatchEncoding, LlamaConfig, LlamaForCausalLM

import sinkpin
from families import build, tokens
from naive.streaming import pinned, stream
from sinkpin import Arm, compare, demo
from sinkpin.errors import BudgetError, InputError, SinkpinError
from sinkpin.evaluate.arms import product
from sinkpin.evaluate.classic import classic
from sinkpin.evaluate.scoring import chunk_ends

IDS = tokens(61)[0]


@pytest.fixture(scope="module")
def result() -> sinkpin.evaluate.record.Comparison:  # type: ignore[name-defined]
    return compare(build(), IDS, product(["window", "random"], [8, "20%"], [0, 4]), chunk=5)


def test_every_arm_is_scored_on_the_positions_after_the_last_first_eviction(result) -> None:
    assert result.positions.tolist() == list(range(16, 61)), (
        "20 % of 61 is 12: fed 5 at a time, random first evicts after token 14, and the next query predicts token 16"
    )
    assert result.scored_tokens == 45
    assert all(losses.shape == (45,) and losses.dtype == np.float32 for losses in result.losses.values())
    assert [arm.name for arm in result.arms] == list(result.losses)
    assert result.arms[0].name == "full"


def test_position_policies_are_scored_from_the_first_query_that_misses_an_entry() -> None:
    positions = compare(build(), IDS, product(["window"], [8, 12], [0, 4]), chunk=5).positions
    assert positions.tolist() == list(range(13, 61)), "the query at 12 is the 13th, and holds 12"


def test_losses_are_those_of_plain_loops(result) -> None:
    model = build()
    with torch.no_grad():
        dense = model(IDS[None]).logits[0]
    loops = {
        "full": dense,
        "window-8+0": stream(model, IDS, budget=8).logits,
        "streaming-8+4": stream(model, IDS, budget=8, pins=pinned(4)).logits,
        "streaming-20%+4": stream(model, IDS, budget=12, pins=pinned(4)).logits,
    }
    for name, logits in loops.items():
        wanted = F.cross_entropy(logits[15:60], IDS[16:], reduction="none").numpy()
        np.testing.assert_allclose(result.losses[name], wanted, atol=1e-4)
        arm = next(arm for arm in result.arms if arm.name == name)
        assert arm.nll == pytest.approx(wanted.astype(np.float64).mean(), abs=1e-5)
        assert arm.ppl == pytest.approx(np.exp(arm.nll))
        agreement = (logits[15:60].argmax(-1) == dense[15:60].argmax(-1)).float().mean().item()
        assert arm.top1_agreement == pytest.approx(agreement)


def test_bytes_and_counts_are_measured(result) -> None:
    for arm in result.arms[1:]:
        assert arm.kv_bytes_steady == arm.budget_bytes, arm.name
        assert arm.kv_bytes_peak > arm.kv_bytes_steady
        assert arm.evicted == 60 - arm.budget_tokens
        assert arm.verdict is arm.kl is arm.ci95 is None, "nothing is invented before it is measured"
    kept = {arm.name: arm.sink_kept for arm in result.arms}
    assert kept["full"] == kept["streaming-8+4"] == kept["random-8+4"] == 1.0
    assert kept["window-8+0"] == 0.0
    assert 0.0 <= kept["random-8+0"] < 1.0


def test_shares_are_not_rounded_to_single_precision() -> None:
    """Kills: means over heads in float32, which write a third as 0.3333333432674408."""
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=3,
        bos_token_id=1,
        eos_token_id=1,
    )
    arms = product(["random"], [8], [0]) + [
        Arm("random", 8, sinks=0, options={"seed": seed}) for seed in (1, 2, 3)
    ]
    kept = [arm.sink_kept for arm in compare(LlamaForCausalLM(config).eval(), IDS, arms).arms]
    assert all(share == round(12 * share) / 12 for share in kept), kept
    assert any(12 * share % 3 for share in kept), (
        "none is a third, a sixth or a twelfth: this test shows nothing"
    )


def test_the_demo_model_is_called_by_its_name(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SINKPIN_CACHE", str(tmp_path))
    model, arms = build(), [Arm("window", 8)]
    for place, name in (
        (str(tmp_path / demo._FOLDER), demo.NAME),
        (f"{tmp_path}/{demo._FOLDER}/", demo.NAME),
        ("owner/model", "owner/model"),
        ("", "LlamaForCausalLM"),
    ):
        model.config._name_or_path = place
        assert compare(model, IDS, arms).model == name
    assert compare(model, IDS, arms, name="mine").model == "mine"


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary() -> None:
    model = build()
    with torch.no_grad():
        model.get_output_embeddings().weight.zero_()
    arms = compare(model, IDS, [Arm("window", 8, sinks=0)]).arms
    assert [arm.ppl for arm in arms] == pytest.approx([97.0, 97.0], rel=1e-5)


def test_the_chunk_changes_scored_policies_only() -> None:
    model, arms = build(), product(["window", "random"], [8], [4])
    one, seven = (compare(model, IDS, arms, chunk=chunk) for chunk in (1, 7))
    assert (one.positions[0], seven.positions[0]) == (10, 15)
    both = slice(-seven.scored_tokens, None)
    np.testing.assert_allclose(one.losses["streaming-8+4"][both], seven.losses["streaming-8+4"], atol=1e-5)
    assert np.abs(one.losses["random-8+4"][both] - seven.losses["random-8+4"]).max() > 1e-2
    assert (one.chunk, seven.chunk) == (1, 7)


def test_a_prompt_is_fed_at_once_and_not_scored() -> None:
    result = compare(build(), IDS, product(["random"], ["25%"], [4]), chunk=5, prompt=40)
    assert result.positions.tolist() == list(range(41, 61)), (
        "the prompt's last query, which predicts token 40, saw all of it"
    )
    assert result.arms[1].budget_tokens == 10
    assert any("40 tokens" in note for note in result.notes)
    assert list(chunk_ends(60, 16, 40)) == [(0, 40), (40, 48), (48, 60)]
    assert list(chunk_ends(20, 8)) == [(0, 8), (8, 16), (16, 20)]


def test_progress_ends_at_the_end() -> None:
    calls: list[tuple[str, int, int]] = []
    compare(build(), IDS, [Arm("window", 8)], progress=lambda *call: calls.append(call))
    assert [call for call in calls if call[1] == call[2]] == [("full", 60, 60), ("window-8+4", 60, 60)]
    assert [call for call in calls if call[1] == 0] == [("full", 0, 60), ("window-8+4", 0, 60)]
    assert calls[0] == ("full", 0, 60)


@pytest.mark.parametrize(
    ("ids", "arms", "options", "error", "says"),
    [
        (IDS[:9], [Arm("window", 8)], {}, BudgetError, "evicts nothing of a text of 9 tokens"),
        (IDS, [Arm("window", 4, sinks=4)], {}, BudgetError, "4 pinned"),
        (IDS, [Arm("window", 8)], {"chunk": 0}, InputError, "chunk=0"),
        (IDS, [Arm("window", 8)], {"prompt": 61}, InputError, "prompt=61"),
        (IDS, [Arm("full")], {}, InputError, "nothing to compare"),
        (IDS, [Arm("window", 8), Arm("window", 8)], {}, InputError, "twice"),
        (IDS[:1], [Arm("window", 8)], {}, InputError, "predicted in a text of 1 token: give 2 or more"),
        (IDS, [Arm("snapkv", 8)], {}, InputError, "first tokens are one, prompt=N$"),
        (IDS + 97, [Arm("window", 8)], {}, InputError, "another tokenizer"),
        (IDS.expand(2, -1), [Arm("window", 8)], {}, InputError, "one text"),
        (
            BatchEncoding({"input_ids": IDS}),
            [Arm("window", 8)],
            {},
            InputError,
            r"BatchEncoding.*\.input_ids",
        ),
        ({"input_ids": IDS}, [Arm("window", 8)], {}, InputError, r"dict.*\.input_ids"),
        ("a text", [Arm("window", 8)], {}, InputError, r"encoded first, tokenizer\(text\)\.input_ids"),
    ],
)
def test_bad_input_is_refused_before_any_forward(ids, arms, options, error, says) -> None:
    model = build()
    compare(model, IDS, [Arm("window", 8)])  # whatever a first cache does to look at a model is done
    forwards: list[int] = []
    hook = model.register_forward_pre_hook(lambda *_: forwards.append(1))
    with pytest.raises(error, match=says):
        compare(model, ids, arms, **options)
    hook.remove()
    assert not forwards


def test_a_text_that_outruns_learned_positions_is_refused() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=1, eos_token_id=1
    )
    model = GPT2LMHeadModel(config).eval()
    with pytest.raises(SinkpinError, match="61 tokens, the model 32 learned positions"):
        compare(model, IDS, [Arm("window", 8)])
    assert compare(model, IDS[:33], [Arm("window", 8)]).scored_tokens == 24


def test_the_four_classic_arms() -> None:
    model = build()
    four = classic(model, IDS, window=8, sinks=4, samples=20, seed=1)
    assert list(four.losses) == ["dense", "window", "recompute", "streaming"]
    with torch.no_grad():
        dense = model(IDS[None]).logits[0]
        plain = {
            "dense": lambda t: dense[t - 1],
            "recompute": lambda t: model(IDS[None, t - 8 : t]).logits[0, -1],
        }
        window = stream(model, IDS, budget=8).logits
        streaming = stream(model, IDS, budget=8, pins=pinned(4)).logits
        plain |= {"window": lambda t: window[t - 1], "streaming": lambda t: streaming[t - 1]}
        for name, logits in plain.items():
            wanted = [F.cross_entropy(logits(int(t)), IDS[t]).item() for t in four.positions]
            np.testing.assert_allclose(four.losses[name], wanted, atol=1e-4, err_msg=name)
    assert four.ppl["dense"] == pytest.approx(np.exp(four.losses["dense"].astype(np.float64).mean()))
    with pytest.raises(BudgetError, match="at least 63"):
        classic(model, IDS, window=61)
