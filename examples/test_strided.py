"""The contract, held against a policy of one's own: `pytest examples/test_strided.py`."""

import pytest
from strided import Strided

from sinkpin.contract import *  # noqa: F403


@pytest.fixture
def policy() -> Strided:
    return Strided(stride=3)
