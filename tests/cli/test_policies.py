"""`sinkpin policies`: what each policy says of itself, those of others included."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from sinkpin import policies
from sinkpin.cli.policies import describe
from sinkpin.policies import names, resolve
from sinkpin.policies.base import Policy, newest


def test_all_of_them_and_nothing_else(cli):
    ran = cli("policies", "--json")
    assert (ran.code, ran.err, ran.out.count("\n")) == (0, "", 1)
    document = json.loads(ran.out)
    assert document["schema"] == 1
    assert [facts["name"] for facts in document["policies"]] == names()
    table = cli("policies").out
    for name in names():
        assert f"\n{name} " in table
    assert max(map(len, table.splitlines())) <= 90


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize("columns", [50, 70, 80, 120, 160])
def test_a_pipe_is_as_wide_as_columns_says(cli, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    table = cli("policies").out
    widest = max(map(len, table.splitlines()))
    assert widest <= columns
    assert widest > 0.8 * columns
    page = cli("policies", "snapkv").out
    formulas = [line for line in page.splitlines() if line.startswith("    ")]
    assert max(len(line) for line in page.splitlines() if line not in formulas) <= columns


@pytest.mark.parametrize("name", names())
def test_what_each_keeps_is_one_line(cli, name):
    """Kills: an option's meaning, a signature, or a whole paragraph in its place."""
    keeps = describe(name)["keeps"]
    assert 5 < len(keeps) < 110, keeps
    assert "\n" not in keeps
    assert not keeps.startswith("`")
    assert "(" not in keeps


def test_one_is_explained(cli):
    page = cli("policies", "snapkv").out
    for said in (
        "arXiv 2404.14469",
        "score(j) = pool over",
        "We differ from the authors' code",
        "`kernel`: how many",
        "kernel=7",
        "prompt end",
    ):
        assert said in page
    page = cli("policies", "adakv:base=snapkv,base.kernel=5").out
    assert "base=h2o, here snapkv" in page
    assert "base.kernel=5" in page
    assert "prompt end" in page, "what it is with these options"
    (facts,) = json.loads(cli("policies", "random:seed=3", "--json").out)["policies"]
    assert facts["doc"].startswith("The newest entry")
    assert facts["options"] == {"seed": 0}


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("H2O", "did you mean 'h2o'"),
        ("random:sed=3", "no option 'sed'"),
        ("broken", "cannot be loaded"),
        ("needy", "needs the option 'depth'"),
    ],
)
def test_one_that_cannot_be_explained(cli, monkeypatch, written, says):
    monkeypatch.setitem(policies.TABLE, "broken", "sinkpin.no_such_module:Policy")
    monkeypatch.setitem(policies.TABLE, "needy", f"{__name__}:Needy")
    assert says in cli("policies", written).complaint()


@dataclass(frozen=True)
class Bare(Policy):
    tags: tuple[int, ...] = field(default_factory=tuple)
    name: ClassVar[str] = "bare"

    def keep(self, view, n):
        return newest(view, n)


@dataclass(frozen=True)
class Needy(Bare):
    """Keeps [bold] things: and more."""

    depth: int = field(kw_only=True)
    name: ClassVar[str] = "needy"


def test_docstrings_are_not_markup_and_a_signature_is_no_docstring(cli, monkeypatch):
    monkeypatch.setitem(policies.TABLE, "bare", f"{__name__}:Bare")
    monkeypatch.setitem(policies.TABLE, "needy", f"{__name__}:Needy")
    assert describe("bare")["keeps"] == "`sinkpin policies`"  # of this module's docstring, up to its colon
    assert describe("bare")["options"] == {"tags": "()"}
    assert describe("needy:depth=2")["keeps"] == "Keeps [bold] things"
    assert "not listed: policy 'needy' needs the option 'depth'" in " ".join(cli("policies").out.split())
    assert "Keeps [bold] things" in cli("policies", "needy:depth=2").out


@pytest.mark.parametrize("name", names())
def test_what_is_said_is_what_the_policy_is(name):
    facts, policy = describe(name), resolve(name)
    assert (facts["kind"], facts["frame"], facts["paper"]) == (policy.kind, policy.frame, policy.paper)
    assert set(facts["needs"]) == policy.needs
    assert facts["per_head"] == policy.per_head
    assert (facts["phase"] == "prompt end") == (policy.kind == "prompt")


@pytest.mark.parametrize("name", names())
def test_defaults_that_are_listed_can_be_written(name):
    """What the list shows can be typed behind the name, and gives the same policy."""
    written = ",".join(f"{key}={value}" for key, value in describe(name)["options"].items())
    assert resolve(f"{name}:{written}" if written else name) == resolve(name)


def test_random_is_described_as_it_is():
    assert describe("random")["options"] == {"seed": 0}
    assert describe("full")["phase"] == "never"
    assert describe("snapkv")["phase"] == "prompt end"
    assert (describe("adakv")["budget_varies"], describe("pyramidkv")["budget_varies"]) == (
        "by head",
        "by layer",
    )


def test_one_that_cannot_be_loaded_is_listed_with_the_reason(cli, monkeypatch):
    monkeypatch.setitem(policies.TABLE, "broken", "sinkpin.no_such_module:Policy")
    ran = cli("policies")
    assert ran.code == 0
    assert (
        "not listed: policy 'broken' (sinkpin.no_such_module:Policy) cannot be loaded (ModuleNotFoundError: No module "
        "named 'sinkpin.no_such_module')" in " ".join(ran.out.split())
    )
    assert json.loads(cli("policies", "--json").out)["policies"][-1]["name"] == "broken"
