"""Freed memory stays with the process, seen by its page faults. In a process of its own, because the setting is the process's."""

import ctypes
import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from broker.runtime.process import keep_freed_memory

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        pieces = [b"x" * 1_000_000 for _ in range(8)]
        del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "kept":
    assert keep_freed_memory(64 * 1024 * 1024)
    assert keep_freed_memory(1024)  # somebody else needs less
elif sys.argv[1] == "the user's":
    assert not keep_freed_memory(64 * 1024 * 1024)
faults(4)
print(faults(20))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_freed_memory_is_reused_without_asking_the_kernel() -> None:
    faults = {
        how: int(
            subprocess.run(
                [sys.executable, "-c", PROGRAM, how],
                check=True,
                capture_output=True,
                text=True,
                timeout=60,
                env={**os.environ, **environment},
            ).stdout
        )
        for how, environment in {"returned": {}, "kept": {}, "the user's": {"MALLOC_TRIM_THRESHOLD_": "0"}}.items()
    }
    # 20 rounds of 8 MB are 39,000 pages.
    assert faults["returned"] > 10_000
    assert faults["kept"] < 1_000
    assert faults["the user's"] > 10_000
