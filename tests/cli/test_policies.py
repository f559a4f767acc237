"""`sinkpin policies`: what each policy says of itself, those of others included."""

from __future__ import annotations

import json

import pytest

from sinkpin import policies
from sinkpin.cli.policies import describe
from sinkpin.policies import names, resolve


def test_all_of_them_and_nothing_else(cli):
    ran = cli("policies", "--json")
    assert (ran.code, ran.err, ran.out.count("\n")) == (0, "", 1)
    document = json.loads(ran.out)
    assert document["schema"] == 1
    assert [facts["name"] for facts in document["policies"]] == names()
    table = cli("policies").out
    for name in names():
        assert f"\n{name} " in table
    assert max(map(len, table.splitlines())) <= 100


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
        "broken: cannot be loaded (ModuleNotFoundError: No module named 'sinkpin.no_such_module')" in ran.out
    )
    assert json.loads(cli("policies", "--json").out)["policies"][-1]["name"] == "broken"
