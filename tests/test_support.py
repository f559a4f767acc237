"""The support table says what was run, and nothing else."""

import json
from pathlib import Path

import pytest

import families
from contract.cells import POLICIES
from support import render

pytest_plugins = ("pytester",)
PAGE = Path(__file__).parent.parent / "docs" / "support.md"
CELL = {"policy": "window", "family": "llama", "passed": 3, "clauses": ["C1", "C3"]}
RECORD = {"versions": {"torch": "2"}, "cells": [CELL], "refused": {}, "failed": []}


def test_cells_that_were_not_run_are_blank():
    other = {**CELL, "policy": "h2o", "family": "opt", "passed": 5}
    page = render({**RECORD, "cells": [CELL, other], "refused": {"mla": "because"}})
    assert "A blank cell was not run." in page
    assert "blank" not in render(RECORD), "no cell of it is"
    assert "| llama | 3 |  |" in page
    assert "| opt |  | 5 |" in page
    assert "| mla | because |" in page


def test_a_column_that_is_no_policys_name_is_explained():
    cells = [{**CELL, "policy": name} for name in ("h2o", "h2o-normalize")]
    page = render({**RECORD, "cells": cells})
    assert "Columns are policies; `h2o-normalize` is `h2o` with `normalize=True`." in page
    assert "Columns are policies. " in render(RECORD)


def test_nothing_is_claimed_of_a_run_that_failed():
    with pytest.raises(ValueError, match="1 tests failed, such as there"):
        render({**RECORD, "failed": ["there"]})
    with pytest.raises(ValueError, match="no test"):
        render({**RECORD, "cells": []})


def test_only_passed_tests_count(pytester):
    """A run of three tests of one cell, of which one passes, one fails and one is skipped."""
    pytester.makeconftest(
        f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from support import Recorder
        def pytest_configure(config):
            config.pluginmanager.register(Recorder(Path("out.json")))
        """
    )
    pytester.makepyfile(
        test_c01_it="""
        import pytest
        class Policy:
            name, id, cache = "window", "", None
        @pytest.mark.parametrize("policy", [Policy()])
        @pytest.mark.parametrize("family", ["llama"])
        @pytest.mark.parametrize("how", ["passes", "fails", "skips"])
        def test_it(policy, family, how, record_property):
            if how == "skips":
                pytest.skip()
            assert how == "passes"
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider")
    record = json.loads((pytester.path / "out.json").read_text())
    assert record["cells"] == [{"policy": "window", "family": "llama", "passed": 1, "clauses": ["C1"]}]
    assert len(record["failed"]) == 1


def test_the_page_knows_every_family_and_policy():
    """Kills: a family or policy that joined the suite while the page stayed; `make support` writes it anew."""
    page = PAGE.read_text()
    rows = {line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")}
    assert {*families.FAMILIES, *families.REFUSED} <= rows
    assert all(f"`{policy}`" in page for policy in POLICIES)
