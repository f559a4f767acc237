"""Which policy was run on which family, as the contract suite saw it: `docs/support.md`.

    python -m pytest --slow tests/contract --support support.json
    python tests/support.py support.json docs/support.md

A cell is the number of tests that passed with that policy on that family, over all clauses. Blank: not run. Families that are refused at
construction stand below, with the reason they gave. A record with a failed test is not rendered.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers


class Recorder:
    """A pytest plugin that notes, of every test of a policy on a family, whether it passed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.passed: Counter[tuple[str, str]] = Counter()
        self.clauses: dict[tuple[str, str], set[str]] = {}
        self.failed: list[str] = []
        self.refused: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            params = item.callspec.params if hasattr(item, "callspec") else {}
            if (policy := params.get("policy")) is not None and hasattr(policy, "cache"):
                clause = _clause(item.path)
                # A test of policies alone builds a Llama, see `contract.cells.every_policy`.
                cell = (policy.id or policy.name, params.get("family", "llama"), clause)
                item.user_properties.append(("cell", cell))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        if report.when != "call" or not report.passed:
            return
        for name, value in report.user_properties:
            if name == "cell":
                policy, family, clause = value
                self.passed[policy, family] += 1
                self.clauses.setdefault((policy, family), set()).add(clause)
            elif name == "refused":
                self.refused[value[0]] = value[1]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(
            session.config, "workerinput"
        ):  # one of several processes: what it saw is heard by the first
            return
        cells = [
            {"policy": p, "family": f, "passed": n, "clauses": sorted(self.clauses[p, f])}
            for (p, f), n in sorted(self.passed.items(), key=_place)
        ]
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__,
        }
        record = {
            "schema": 1,
            "versions": versions,
            "cells": cells,
            "refused": self.refused,
            "failed": self.failed,
        }
        _write(self.path, json.dumps(record, indent=1))


def _clause(path: Path) -> str:
    """`C3` of `test_c03_visible_set.py`, `generate` of `test_generate.py`."""
    word = path.stem.removeprefix("test_").split("_")[0]
    return f"C{int(word[1:])}" if word[1:].isdigit() else word


def _place(item: tuple[tuple[str, str], int]) -> tuple[int, int, str, str]:
    """The order of the tables, whichever process was first."""
    from contract.cells import POLICIES
    from families import FAMILIES

    (policy, family), _ = item
    policies, families = [cell.id or cell.name for cell in POLICIES.values()], list(FAMILIES)
    return (
        policies.index(policy) if policy in policies else len(policies),
        families.index(family) if family in families else len(families),
        policy,
        family,
    )


def render(record: dict[str, Any]) -> str:
    """The page. Raises `ValueError` for a record with a failed test, or with none that passed."""
    if record["failed"]:
        raise ValueError(
            f"{len(record['failed'])} tests failed, such as {record['failed'][0]}: nothing is claimed"
        )
    if not record["cells"]:
        raise ValueError("no test of a policy on a family is in this record")
    policies = list(dict.fromkeys(cell["policy"] for cell in record["cells"]))
    families = list(dict.fromkeys(cell["family"] for cell in record["cells"]))
    passed = {(cell["policy"], cell["family"]): cell["passed"] for cell in record["cells"]}
    clauses = sorted(
        {c for cell in record["cells"] for c in cell["clauses"]}, key=lambda c: (c.islower(), len(c), c)
    )
    blank = " A blank cell was not run." if len(passed) < len(policies) * len(families) else ""
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [
        "# Which policy was run on which family",
        "",
        "<!-- Written by `make support` from a run of the contract suite; do not edit. -->",
        "",
        f"Columns are policies{_variants(policies)}. Each number is how many tests of the contract, over all of it "
        f"({', '.join(clauses)}), passed with that policy on a tiny random model of that family.{blank} Every family is held "
        "to ordinary eager forwards with explicit masks, in every layer and head; Llama also to a plain loop for each "
        "policy.",
        "",
        f"Run on the CPU with {versions}.",
        "",
        f"| family | {' | '.join(f'`{p}`' for p in policies)} |",
        f"|---|{'--:|' * len(policies)}",
    ]
    lines += [
        f"| {family} | {' | '.join(str(passed.get((p, family), '')) for p in policies)} |"
        for family in families
    ]
    if record["refused"]:
        lines += [
            "",
            "Refused when a cache is made, under every policy:",
            "",
            "| family | what is said |",
            "|---|---|",
        ]
        lines += [f"| {family} | {reason} |" for family, reason in record["refused"].items()]
    return "\n".join(lines) + "\n"


def _variants(columns: list[str]) -> str:
    """Of columns that are not called as their policy is: which policy, with which options."""
    from contract.cells import POLICIES

    said = ""
    for column in columns:
        if column in POLICIES and (cell := POLICIES[column]).id:
            options = ", ".join(f"`{key}={value}`" for key, value in cell.options.items())
            said += f"; `{cell.id}` is `{cell.name}` with {options}"
    return said


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    try:
        _write(target, render(json.loads(source.read_text())))
    except ValueError as error:
        sys.exit(f"support: {error}")
