"""What every test needs: few threads, quiet transformers, and `--slow` for the full policy x family product."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

import pytest
import torch

# Triton decides for good when it is imported whether it interprets, and transformers imports it: so here, first of all.
# The rest of the suite shall not see the variable.
INTERPRETED = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
with mock.patch.dict(os.environ, INTERPRETED), suppress(ImportError):
    import triton.language  # noqa: F401


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")
    parser.addoption("--support", metavar="FILE", help="note in FILE which policy passed on which family")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: the full policy x family product, and long streams")
    if path := config.getoption("--support"):
        from support import Recorder

        config.pluginmanager.register(Recorder(Path(path)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run on `--slow`, or when `-m` speaks of them."""
    if config.getoption("--slow") or "slow" in (config.getoption("-m") or ""):
        return
    skip = pytest.mark.skip(reason="slow: run with --slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)
