"""The limit of descriptors: read anywhere, raised in a process of its own."""

import resource
import subprocess
import sys

import pytest

from broker.runtime.process import UNLIMITED, descriptor_limit


def test_the_limit_is_the_soft_one() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert descriptor_limit() == (UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED))


@pytest.mark.parametrize("limit", [resource.RLIM_INFINITY, UNLIMITED + 1])
def test_no_limit_or_an_enormous_one_is_unlimited(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert descriptor_limit() == UNLIMITED


def test_process_may_raise_its_limit_to_hard_limit() -> None:
    script = """
import resource
from broker.runtime.process import descriptor_limit, raise_descriptor_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
assert descriptor_limit() == 64
raise_descriptor_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
raise_descriptor_limit()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
