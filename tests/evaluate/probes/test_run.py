"""A probe through arms: known scores, eviction before the question, and answers that equal a slow way to get them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from evaluate.probes.toys import CHATML, Spots, llama, pen, seer
from sinkpin.errors import BudgetError, InputError, ModelError
from sinkpin.evaluate.arms import Arm
from sinkpin.evaluate.probes import feeding, named, reader
from sinkpin.evaluate.probes.answering import Blank, end_tokens, likelihoods, written
from sinkpin.evaluate.probes.feeding import evicted, feed, forwards, held
from sinkpin.evaluate.probes.run import probe
from sinkpin.evaluate.probes.writing import Dice
from sinkpin.evaluate.scoring import cache_for

FULL, WINDOW = Arm("full", sinks=0), Arm("streaming", budget=20, sinks=2)


def spots(model=None, arms=(WINDOW,), **settings):
    return probe(model or seer(), pen().tokenizer, Spots(**{"trials": 8, **settings}), arms)


def test_a_model_that_answers_what_it_sees_scores_what_its_cache_holds():
    """Full holds both places, the window the last one only, whose rest is even between the alternatives; pins hold theirs."""
    pinned = Arm("window", budget=20, sinks=0, pins=((4, 7),))
    result = spots(arms=[WINDOW, pinned])
    full, window, pins = result.arms
    assert [full.name, full.score, full.n] == ["full", 1.0, 16]
    assert [(cell["place"], cell["score"], cell["n"]) for cell in window.cells] == [
        (5, 1 / 8, 8),
        (55, 1.0, 8),
    ]
    assert pins.score == 1.0 and pins.delta == 0.0
    assert window.delta == pytest.approx(window.score - 1) and window.delta_ci95[1] < 0
    assert (full.evicted, window.evicted) == (0, 40)
    assert [full.measures["held"], window.measures["held"], pins.measures["held"]] == [1.0, 0.5, 1.0]
    assert (window.budget_tokens, full.budget_tokens, window.frame, full.frame) == (20, None, "slots", None)
    assert window.kv_bytes_steady < full.kv_bytes_steady
    assert result.can and f"Worse than full: {window.name} by -44 points" in result.sentence
    assert f"Not told apart from full, which is not the same as equal: {pins.name}" in result.sentence
    assert (result.chance, result.axes, result.settings["trials"]) == (1 / 8, ["place"], 8)


def test_a_model_that_cannot_do_it_is_not_used_to_rank_arms():
    result = probe(
        llama(),
        pen().tokenizer,
        named("needle", lengths=(500,), depths=(0.5,), trials=4),
        [Arm("window", budget=64, sinks=0)],
        text="A sentence of nothing. " * 50,
    )
    assert not result.can
    assert result.sentence.startswith("This model cannot do this task")
    assert "and chance is 12 % (one of 8 alternatives" in result.sentence
    assert "Worse" not in result.sentence and "Better" not in result.sentence


def test_few_right_answers_may_be_too_few():
    result = spots(trials=1, places=(5,), choices=2)
    assert result.arms[0].score == 1.0 and not result.can
    assert result.sentence.startswith("This model cannot do this task, as far as 1 answer shows: ")
    assert result.sentence.endswith("More --trials may show more.")


def test_nothing_is_asked_before_something_is_evicted(monkeypatch):
    with pytest.raises(
        BudgetError,
        match="streaming-60\\+2 holds 60 entries and would be asked after 60 tokens, of which nothing",
    ):
        spots(arms=[WINDOW, Arm("streaming", budget=60, sinks=2)])
    spots(arms=[Arm("streaming", budget=59, sinks=2)], trials=1)

    met = []
    real = reader.chosen

    def watched(model, question, cache, blank):
        met.append((cache.seen, evicted(cache), cache.policy.bounded))
        return real(model, question, cache, blank)

    monkeypatch.setattr(reader, "chosen", watched)
    spots(arms=[WINDOW, Arm("h2o", budget=20), Arm("snapkv", budget=20)], trials=1)
    assert [gone for _, gone, bounded in met if bounded] == [40.0] * 6
    assert all(seen == 60 for seen, _, _ in met)

    monkeypatch.setattr(reader, "evicted", lambda cache: 0.0)
    with pytest.raises(AssertionError, match="is asked after 60 tokens and evicted none"):
        spots(trials=1)


def test_questions_of_a_stream_that_come_too_early_are_left_out_for_all_arms():
    settings = {"tokens": 2500, "trials": 2, "distances": (1, 5), "score": "choice", "choices": 4}
    asked = named("streameval", **settings)
    arms = [Arm("window", budget=64, sinks=0), Arm("window", budget=1500, sinks=0)]
    many = probe(llama(), pen().tokenizer, asked, arms[:1])
    fewer = probe(llama(), pen().tokenizer, asked, arms)
    assert fewer.arms[0].n < many.arms[0].n and len({arm.n for arm in fewer.arms}) == 1
    lost = many.arms[0].n - fewer.arms[0].n
    assert f"{lost} questions were left out: they came before every arm had evicted something" in fewer.notes
    with pytest.raises(BudgetError, match="every question comes before it has evicted anything"):
        probe(llama(), pen().tokenizer, asked, [Arm("window", budget=2499, sinks=0)])


def test_full_is_not_asked_past_the_positions_that_it_was_trained_on():
    settings = {"tokens": 2500, "trials": 2, "distances": (1,), "score": "choice", "choices": 4}
    asked = named("streameval", **settings)
    result = probe(llama(1500), pen().tokenizer, asked, [Arm("window", budget=64, sinks=0)])
    full, window = result.arms
    assert 0 < full.n < window.n and window.delta is not None
    assert any("asked no further than 1,500 tokens" in note for note in result.notes)
    with pytest.raises(InputError, match="past the 300 positions that the model was trained on"):
        probe(llama(300), pen().tokenizer, asked, [Arm("window", budget=64, sinks=0)])


@pytest.mark.parametrize("arm", [FULL, WINDOW, Arm("h2o", budget=20)], ids=lambda arm: arm.name)
def test_an_alternative_is_as_likely_as_when_it_is_fed_alone(arm):
    """Alternatives are taken back one after the other; here each has a cache of its own, fed token by token."""
    model = llama()
    context, asked = torch.randint(2, 260, (50,)).tolist(), (5, 6, 7)
    answers = [(8, 9, 10), (11,), (12, 13)]

    def fed():
        cache = cache_for(model, arm, 50)
        feed(model, [context], cache)
        return cache

    with fed() as cache:
        found = likelihoods(model, asked, answers, cache)
        assert cache.seen == 53, "the question stays, the answers do not"
    for answer, score in zip(answers, found, strict=True):
        with fed() as cache:
            last, total = feed(model, [asked], cache)[0, -1], 0.0
            if arm.policy == "h2o":  # as one chunk: what a scored policy sees depends on it
                cache.activate_past_recording()
            for token in answer:
                total += float(last.double().log_softmax(-1)[token])
                last = feed(model, [[token]], cache)[0, -1]
        assert float(score) == pytest.approx(total, abs=1e-3)


def test_full_equals_one_forward_without_a_cache():
    model = llama()
    asked, answer = (5, 6, 7), (8, 9, 10)
    with torch.inference_mode():
        logits = model(torch.tensor([[*asked, *answer]]), use_cache=False).logits[0].log_softmax(-1)
    total = sum(float(logits[2 + place, token]) for place, token in enumerate(answer))
    with cache_for(model, FULL, 3) as cache:
        assert float(likelihoods(model, asked, [answer], cache)[0]) == pytest.approx(total, abs=1e-4)


def test_what_is_written_is_what_generate_writes():
    model = llama()
    model.generation_config.pad_token_id = 1
    (trial, *_) = named("passkey", lengths=(400,), depths=(0.5,), trials=1, score="exact").write(pen())
    (question,) = trial.questions
    question = replace(question, length=12)
    prompt = torch.tensor([[*trial.ids, *question.feed]])
    expected = model.generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :].tolist()
    with cache_for(model, FULL, len(trial.ids)) as cache:
        feed(model, [trial.ids], cache)
        assert written(model, question, cache, end_tokens(model, pen().tokenizer)) == [
            token for token in expected if token != 1
        ]


def test_calibration_takes_a_habit_away():
    """A model that likes one answer for no reason still answers what it read."""
    model = seer()
    with torch.no_grad():
        model.lm_head.bias = torch.nn.Parameter(torch.zeros(64))
        model.lm_head.bias[10] = 100.0  # the first of the alternatives, liked whatever was read
    result = spots(model, places=(55,))
    assert [arm.score for arm in result.arms] == [1.0, 1.0]
    with cache_for(model, FULL, 60) as cache:
        (trial, *_) = Spots(places=(55,), trials=2).write(pen())[1:]
        feed(model, [trial.ids], cache)
        (question,) = trial.questions
        assert int(likelihoods(model, question.feed, question.answers, cache).argmax()) == 0 != question.right
        assert Blank(model).of(question).argmax() == 0


def test_logits_that_are_no_numbers_are_told():
    model = seer()
    with torch.no_grad():
        model.lm_head.weight[30] = float("nan")
    with pytest.raises(ModelError, match="logits are not finite"):
        spots(model, trials=1)


@pytest.mark.parametrize(
    ("points", "kind", "chunk", "expected"),
    [
        ([5], "scored", None, [(0, 5)]),
        ([5, 9], "prompt", 4, [(0, 5), (5, 8), (8, 9)]),
        ([5, 9], "scored", 4, [(0, 4), (4, 5), (5, 8), (8, 9)]),
        ([600], "position", 4, [(0, 512), (512, 600)]),
        ([600, 700], "scored", None, [(0, 600), (600, 700)]),
    ],
)
def test_forwards_end_where_a_question_is_asked(points, kind, chunk, expected):
    assert list(forwards(points, kind, chunk)) == expected


def test_a_visible_question_is_there_when_a_prompt_policy_chooses(monkeypatch):
    """Seen from the cache: what its prompt was, and what it was asked with afterwards."""
    calls = []
    real = feeding.feed

    def watched(model, ids, cache, last=1):
        calls.append((cache.policy.name, cache.seen, len(ids[0])))
        return real(model, ids, cache, last)

    monkeypatch.setattr(reader, "feed", watched)
    asked = named("passkey", lengths=(400,), depths=(0.5,), trials=1)
    probe(llama(), pen().tokenizer, asked, [Arm("snapkv", budget=64), Arm("window", budget=64)])
    prompts = {name: [n for who, at, n in calls if who == name] for name in ("full", "window", "snapkv")}
    question = len(asked.write(pen())[1].ids) - 400
    assert question > 0
    assert prompts == {"full": [400], "window": [400], "snapkv": [400, 400 + question]}


def test_runs_repeat_and_order_of_arms_changes_nothing():
    asked = named("names", distances=(200,), trials=2)
    arms = [Arm("window", budget=64), Arm("random", budget=64), Arm("h2o", budget=64)]
    first = probe(llama(), pen().tokenizer, asked, arms)
    again = probe(llama(), pen().tokenizer, asked, arms[::-1])
    assert first.arms == [again.arms[0], *again.arms[:0:-1]]
    other = probe(llama(), pen().tokenizer, replace(asked, seed=5), arms)
    assert other.arms != first.arms


def test_equal_arms_write_equal_texts():
    """A/A: two names of one thing. Rows do not hang on each other, and an end of text is never written."""
    asked = named("repetition", prompt=100, tokens=30, trials=3, temperature=1.0)
    arms = [Arm("window", budget=40, sinks=4), Arm("streaming", budget=40, sinks=4)]
    result = probe(llama(), pen().tokenizer, asked, arms)
    one, two = result.arms[1:]
    assert (one.score, one.measures, one.ci95) == (two.score, two.measures, two.ci95)
    assert result.arms[0].evicted == 0 and one.evicted == 60
    fewer = probe(llama(), pen().tokenizer, replace(asked, trials=2), arms)
    assert fewer.arms[0].n == 2
    loops = probe(llama(), pen().tokenizer, replace(asked, temperature=0.0, tokens=200), arms[:1])
    assert 0 < loops.arms[0].score <= 1 and loops.arms[0].measures["compression"] > 0


def test_dice():
    logits = torch.log(torch.tensor([[0.25, 0.75], [0.25, 0.75]]))
    dice = Dice(0, range(2), 4000)
    drawn = torch.stack([dice.tokens(logits, 1.0, step) for step in range(4000)])
    assert drawn.float().mean(0).tolist() == pytest.approx([0.75, 0.75], abs=0.03)
    assert not torch.equal(drawn[:, 0], drawn[:, 1])
    assert torch.equal(Dice(0, range(1, 2), 4000).drawn[0], dice.drawn[1])
    assert dice.tokens(logits, 0, 0).tolist() == [1, 1]
    never = torch.tensor([[-torch.inf, 0.0, -torch.inf]] * 2)
    assert {int(t) for step in range(100) for t in dice.tokens(never, 1.0, step)} == {1}


def test_rules_are_asked_in_a_chat():
    tool = pen(chat_template=CHATML).tokenizer
    for score in ("choice", "exact"):
        asked = named("instructions", distances=(200,), trials=1, score=score)
        result = probe(llama(), tool, asked, [Arm("window", budget=64)])
        assert [arm.n for arm in result.arms] == [4, 4]
        assert len(result.arms[0].cells) == 4 and result.chance == 1 / 4


def test_what_is_held_is_counted_over_heads():
    model = seer()
    with cache_for(model, WINDOW, 60) as cache:
        feed(model, [list(range(60))], cache)
        assert [held(cache, span) for span in ((0, 2), (1, 3), (2, 4), (42, 60), (41, 43))] == [
            1.0,
            0.5,
            0.0,
            1.0,
            0.5,
        ]


@pytest.mark.parametrize(
    ("arms", "more", "says"),
    [
        ([], {}, "nothing to compare with the full cache"),
        ([WINDOW, WINDOW], {}, "an arm is given twice"),
        ([WINDOW], {"chunk": 0}, "chunk=0: a forward takes a whole number"),
    ],
)
def test_what_cannot_be_run(arms, more, says):
    with pytest.raises(InputError, match=says):
        probe(seer(), pen().tokenizer, Spots(), arms, **more)


def test_a_question_leaves_no_trace(monkeypatch):
    """Six questions of one text, each asked of a cache that holds the text and nothing else: their order does not matter."""
    met = []
    real = reader.chosen

    def watched(model, question, cache, blank):
        met.append((question.at, cache.seen))
        return real(model, question, cache, blank)

    monkeypatch.setattr(reader, "chosen", watched)
    result = probe(
        llama(), pen().tokenizer, named("names", distances=(200,), trials=1), [Arm("h2o", budget=64)]
    )
    assert result.arms[0].n == 6 and len(met) == 12
    assert all(at == seen for at, seen in met)
