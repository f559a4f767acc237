"""What is made sure of before a probe is run: that every arm will have evicted something when it is asked, and that the full
cache is a reference.

Questions that a stream asks before every arm has evicted something are left out, for all arms; elsewhere they are an error.
The full cache is not asked past the positions that the model was trained on. Not here: the run itself (`run`), which asserts
once more that something was evicted.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sinkpin.cache.anatomy import Anatomy
from sinkpin.errors import BudgetError, InputError
from sinkpin.evaluate.arms import Arm
from sinkpin.evaluate.probes.base import Probe, Trial
from sinkpin.evaluate.scoring import cache_for


def told(
    model: Any, asked: Probe, arms: Sequence[Arm], trials: Sequence[Trial]
) -> tuple[tuple[Trial, ...], list[str]]:
    """The trials without questions that come before every arm has evicted something, and notes on them. Raises `BudgetError`
    where a probe that does not stream asks such a question, or a cell would lose all."""
    stays: list[Trial] = []
    budgets: dict[tuple[str, int], int] = {}
    left_out = 0
    for trial in trials:
        first = min((question.at for question in trial.questions), default=len(trial.ids))
        for arm in arms:
            if arm.policy != "full" and (arm.name, first) not in budgets:
                with cache_for(model, arm, first) as cache:
                    assert cache.budget_tokens is not None
                    budgets[arm.name, first] = cache.budget_tokens
        most, name = max((budgets[arm.name, first], arm.name) for arm in arms if arm.policy != "full")
        kept = tuple(question for question in trial.questions if question.at > most)
        lost = len(trial.questions) - len(kept)
        if (lost and not asked.streams) or (not trial.questions and len(trial.ids) <= most):
            raise BudgetError(
                f"{name} holds {most} entries and would be asked after {first} tokens, of which nothing was evicted: give a "
                "smaller --budget, or a longer trial"
            )
        left_out += lost
        if kept or not trial.questions:
            stays.append(replace(trial, questions=kept))
    left = {question.cell for trial in stays for question in trial.questions}
    gone = {question.cell for trial in trials for question in trial.questions} - left
    if gone:
        where = ", ".join(f"{axis} {value}" for axis, value in sorted(gone, key=repr)[0])
        raise BudgetError(
            f"{name} holds {most} entries, and at {where} every question comes before it has evicted anything: give a smaller "
            "--budget or more --tokens"
        )
    notes = []
    if left_out:
        notes.append(f"{left_out} questions were left out: they came before every arm had evicted something")
    return tuple(stays), notes


def check_lengths(asked: Probe, trials: Sequence[Trial], anatomy: Anatomy) -> list[str]:
    """Raises `InputError` where learned positions end too early, or the full cache cannot be asked anything."""
    if anatomy.trained is None:
        return []
    ends = [
        end
        for trial in trials
        for end in ([q.end for q in trial.questions] or [len(trial.ids) + asked.writes])
    ]
    first = min(ends)
    if anatomy.learned and max(ends) > anatomy.trained:
        raise InputError(
            f"a trial has {max(ends):,} tokens, the model {anatomy.trained:,} learned positions: it would outrun them; give "
            "shorter trials"
        )
    if first > anatomy.trained or (max(ends) > anatomy.trained and not trials[0].questions):
        raise InputError(
            f"the full cache would be asked at {first:,} tokens or later, past the {anatomy.trained:,} positions that the model "
            "was trained on, so it is no reference: give shorter trials"
        )
    if max(ends) <= anatomy.trained:
        return []
    return [
        f"the full cache was asked no further than {anatomy.trained:,} tokens, the positions that the model was trained on; arms "
        "are compared with it on those questions, and their scores are of all"
    ]
