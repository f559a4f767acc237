"""Texts become passages without a token in both parts, a block over two documents, or a token scored too early."""

from __future__ import annotations

import pytest

from evaluate.advisor.drawn import passages
from sinkpin.errors import InputError
from sinkpin.evaluate.advisor.passages import cut, split
from sinkpin.evaluate.advisor.workloads import WORKLOADS, lines

BOS = [-1]


def test_each_passage_begins_as_a_text_does_and_none_shares_a_token_with_another():
    ids = BOS + list(range(5000))
    found = cut("a", ids, WORKLOADS["stream"], 1024, BOS)
    assert [len(p.ids) for p in found] == [1024] * 4
    assert all(p.ids[0] == -1 for p in found)
    body = [token for p in found for token in p.ids[1:]]
    assert body == list(range(4 * 1023))
    assert {(p.first, p.prompt, p.blocks) for p in found} == {(512, None, 1)}


def test_an_answer_is_scored_after_the_prompt_and_the_token_that_nothing_was_evicted_for():
    (found,) = cut("a", range(1100), WORKLOADS["rag"], 1025)
    assert (found.prompt, found.first, found.blocks, len(found.ids)) == (512, 513, 1, 1025)


def test_an_extracted_answer_is_the_prompt_again_from_many_places():
    found = cut("a", BOS + list(range(40_000)), WORKLOADS["extract"], 2561, BOS)
    starts = []
    for p in found:
        prompt, answer = list(p.ids[: p.prompt]), list(p.ids[p.prompt :])
        assert len(answer) == 513
        at = prompt.index(answer[0])
        assert prompt[at : at + 513] == answer or prompt[at:] == answer[: len(prompt) - at]
        starts.append(at)
    assert min(starts) < 500
    assert max(starts) > 1000
    assert len(set(starts)) == len(starts)


def test_a_short_prompt_is_repeated_from_its_beginning_on():
    (found, *_) = cut("a", range(700), WORKLOADS["extract"], 512 + 301)
    assert len(found.ids) == 813
    assert set(found.ids) == set(range(300))


def test_what_is_shorter_than_a_passage_makes_none():
    assert cut("a", range(1023), WORKLOADS["stream"], 1024) == []


def test_one_document_chooses_with_its_first_half_and_certifies_with_its_second():
    all_of_them = passages(7)
    choosing, certifying = split(all_of_them)
    assert choosing == all_of_them[:3]
    assert certifying == all_of_them[3:]


def test_documents_stay_whole_where_they_can():
    found = passages(5, "a") + passages(4, "b") + passages(3, "c")
    choosing, certifying = split(found)
    assert [p.document for p in choosing] == ["b"] * 4 + ["c"] * 3
    assert [p.document for p in certifying] == ["a"] * 5


def test_a_document_that_outweighs_the_others_is_split():
    choosing, certifying = split(passages(20, "a") + passages(2, "b"))
    assert [p.document for p in choosing] == ["a"] * 10 + ["b"]
    assert [p.document for p in certifying] == ["a"] * 10 + ["b"]


def test_no_passage_is_in_both_parts():
    found = passages(9, "a") + passages(8, "b") + passages(1, "c")
    choosing, certifying = split(found)
    assert not {id(p) for p in choosing} & {id(p) for p in certifying}
    assert len(choosing) + len(certifying) == len(found)


@pytest.mark.parametrize(("workload", "length"), [("stream", 1022), ("rag", 768), ("extract", 100)])
def test_a_passage_too_short_for_a_block_is_refused(workload, length):
    with pytest.raises(InputError, match="too short"):
        WORKLOADS[workload].warm(length)


def test_lines_are_policies_by_pins_and_every_budget_holds_more_than_its_pins():
    found = lines(WORKLOADS["stream"], 512, sinks=[0, 4, 100])
    assert [each[0].arm.policy for each in found] == ["window", "streaming", "streaming"]
    assert all(setting.budget > setting.arm.sinks for each in found for setting in each)
    assert [s.budget for s in found[0]] == sorted(s.budget for s in found[0])
    assert found[0][-1].budget == 384
    assert found[2][0].budget == 128  # 96 is below the 100


def test_a_chat_leaves_room_for_its_system_prompt():
    found = lines(WORKLOADS["chat"], 512, pinned=200)
    assert min(s.budget for each in found for s in each) > 204
    assert {s.pins for each in found for s in each} == {"system"}


def test_budgets_that_evict_nothing_are_refused():
    with pytest.raises(InputError, match="evicts nothing before scoring begins at token 512"):
        lines(WORKLOADS["stream"], 512, budgets=[64, 511])


def test_pins_that_fill_every_budget_are_refused():
    with pytest.raises(InputError, match="no budget up to 384 tokens"):
        lines(WORKLOADS["chat"], 512, pinned=380)


def test_a_card_adds_a_line_for_each_policy():
    found = lines(WORKLOADS["rag"], 512, card=True)
    assert len(found) == 2 * len(WORKLOADS["rag"].policies)
    assert found[1][0].name.startswith("window-")
    assert found[1][0].name.endswith("+0+card")
