"""How tests are divided among workers (`conftest.py`)."""

import os

import pytest


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs all tests")
def test_tests_of_a_file_share_a_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist takes the group from the id; if it is not there, each test is a group of its own, and nothing says so."""
    if request.config.getvalue("loadgroup"):
        assert request.node.nodeid.endswith(f"@{__file__}")
