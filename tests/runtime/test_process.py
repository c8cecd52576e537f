"""The end of a process whatever its threads and its standard error do. In processes of their own."""

import contextlib
import os
import subprocess
import sys

import pytest

END = """
import os, sys, time
from broker.runtime.process import LastResort
{before}
LastResort(0.05, 7, "the time is over")
time.sleep(60)
"""
GENEROUS_S = 30


def run(before: str, stderr: int) -> int:
    process = subprocess.Popen([sys.executable, "-c", END.format(before=before)], stderr=stderr)
    try:
        return process.wait(GENEROUS_S)
    finally:
        process.kill()
        process.wait()


def test_it_says_why_and_ends() -> None:
    reading, writing = os.pipe()
    assert run("", writing) == 7
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.read() == "the time is over\n"


@pytest.mark.parametrize("state", ["full", "no reader", "closed"])
def test_it_ends_whatever_became_of_standard_error(state: str) -> None:
    reading, writing = os.pipe()
    try:
        if state == "full":
            os.set_blocking(writing, False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(writing, b"x" * 4096)
            os.set_blocking(writing, True)
        if state == "no reader":
            os.close(reading)
        assert run("os.close(2)" if state == "closed" else "", writing) == 7
    finally:
        os.close(writing)
        if state != "no reader":
            os.close(reading)
