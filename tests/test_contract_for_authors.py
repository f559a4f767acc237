"""The contract that authors run: wrong policies fail it, each with words that say what is behind it; right ones pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from sinkpin import contract
from sinkpin.policies import names, resolve
from sinkpin.policies.base import Need, Policy, Ranked, highest, newest

model = contract.model


@dataclass(frozen=True)
class Newest(Policy):
    name: ClassVar[str] = "newest"

    def keep(self, view, n):
        return newest(view, n)


@dataclass(frozen=True)
class Oldest(Policy):
    """Clings to what it has: the newest never stays. Legitimate; `tova` may do it, too."""

    name: ClassVar[str] = "oldest"

    def keep(self, view, n):
        return torch.arange(n).expand(*view.origins.shape[:-1], n)


@dataclass(frozen=True)
class Demanding(Newest):
    min_sinks: ClassVar[int] = 7


@dataclass(frozen=True)
class MixesRows(Ranked):
    name: ClassVar[str] = "mixes-rows"
    needs: ClassVar[frozenset[Need]] = frozenset({"mass"})

    def scores(self, view, n):
        return view.mass.mean(0, keepdim=True).expand_as(view.mass)


@dataclass(frozen=True)
class ByRowNumber(Ranked):
    name: ClassVar[str] = "by-row-number"

    def scores(self, view, n):
        rows = torch.arange(len(view.origins))[:, None, None]
        return (view.origins * (rows + 1)) % 7


@dataclass(frozen=True)
class Draws(Ranked):
    name: ClassVar[str] = "draws"

    def scores(self, view, n):
        return torch.rand(view.origins.shape)


@dataclass(frozen=True)
class Remembers(Policy):
    calls: count = field(default_factory=count, compare=False)
    name: ClassVar[str] = "remembers"

    def keep(self, view, n):
        turn = next(self.calls)
        return highest((view.origins * (turn // 7 + 3)) % 11, n)

    def __deepcopy__(self, memo):
        return replace(self)


WRONG = [
    (MixesRows(), "test_a_choice_depends_on_nothing_else", r"mixes rows.*Layer \d, KV head \d keeps \["),
    (Draws(), "test_a_choice_depends_on_nothing_else", "draws at random"),
    (Remembers(), "test_a_choice_depends_on_nothing_else", "or remembers"),
    (Draws(), "test_padding_neither_gives_nor_receives", "9 pads on its left.*keeps"),
    (ByRowNumber(), "test_rows_move_whole", "the row's number.*Mismatched elements"),
    (Remembers(), "test_what_is_taken_back_leaves_no_trace", "counts its calls"),
    (Draws(), "test_a_copy_and_a_saved_cache_go_on_alike", "a deep copy goes on differently"),
]


def run(policy: Policy, test: Callable[..., None], model, tmp_path: Path) -> None:
    more = {"tmp_path": tmp_path} if test.__name__ == "test_a_copy_and_a_saved_cache_go_on_alike" else {}
    if test.__name__ == "test_the_budget_holds_after_every_forward":
        more = {"sizes": [30, 1], "sinks": 0}
    test(policy, model, **more)


@pytest.mark.parametrize(("policy", "test", "says"), WRONG, ids=lambda x: getattr(x, "name", ""))
def test_a_wrong_policy_is_told_what_is_wrong(policy, test, says, model, tmp_path):
    """Kills: `assert False` without a word, since pytest rewrites no assertions of an installed module."""
    with pytest.raises(AssertionError) as caught:
        run(policy, getattr(contract, test), model, tmp_path)
    assert re.search(says, str(caught.value), re.DOTALL), caught.value


@pytest.mark.parametrize("policy", [Newest(), Oldest(), Demanding()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("test", [name for name in contract.__all__ if name.startswith("test_")])
def test_a_right_policy_passes(policy, test, model, tmp_path):
    """Kills: a suite that hands a policy fewer sinks than it insists on; one that asks more than the contract does."""
    run(policy, getattr(contract, test), model, tmp_path)


@pytest.mark.parametrize("name", [name for name in names() if name != "full"])
@pytest.mark.parametrize(
    "test", ["test_room_for_one_unpinned_entry_is_enough", "test_the_budget_holds_after_every_forward"]
)
def test_ours_pass(name, test, model, tmp_path):
    """The parts that only authors run, on policies that allot unequally or insist on a sink, too."""
    run(resolve(name), getattr(contract, test), model, tmp_path)


def test_the_words_reach_the_author(pytester):
    """As an author sees them: one file, one command, and the reason in what pytest prints."""
    pytester.makepyfile(
        test_mine="""
        from dataclasses import dataclass
        from typing import ClassVar
        import pytest, torch
        from sinkpin.contract import *
        from sinkpin.policies.base import Ranked

        @dataclass(frozen=True)
        class Draws(Ranked):
            name: ClassVar[str] = "draws"
            def scores(self, view, n):
                return torch.rand(view.origins.shape)

        @pytest.fixture
        def policy():
            return Draws()
        """
    )
    ran = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-k", "depends_on_nothing_else")
    ran.assert_outcomes(failed=1, deselected=len([n for n in contract.__all__ if n != "model"]) - 1 + 11)
    ran.stdout.fnmatch_lines(
        ["*AssertionError: a row alone and beside other rows chooses differently*draws at random*"]
    )


pytest_plugins = ("pytester",)
