"""What all tests share: hypothesis profiles, how often threads change places (`make races`), and what runs in one worker when
several run tests (`make test`). The `broker` fixture comes with the package (broker/client/pytest_plugin.py)."""

import ast
import gc
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from broker import log
from tests.open_files import wait_for_librdkafka

# Starting Spark takes longer than most tests of it, so all that use the fixture share a session, and with it a worker.
_SPARK = Path(__file__).parent / "spark"
# So do those of the page: they share a browser, and a broker with its clients.
_PAGE = Path(__file__).parent / "page"
# What takes a worker minutes, in the order in which it begins: what waits for clients and processes comes while Spark computes.
# The rest follows by name, files of seconds, which fill the workers to the end. Neighbours stay neighbours, so that a worker
# starts the broker of a folder (a fixture of the package) once, and not for each file.
_LONGEST_FIRST = ("spark", "docs", "page", "durable", "process", "compat", "faults", "sim", "client", "cli", "contract")
# Pytest's fixtures for what a test writes.
_CAPTURES = {"capsys", "capsysbinary", "capfd", "capfdbinary"}

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would the programs that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines anywhere: a shared or slow machine must not fail a test.
_slow_is_fine = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("default", deadline=None, suppress_health_check=_slow_is_fine)
# The same examples at every run, so that a red build is red for everybody.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=_slow_is_fine)
# By hand, before a release or after a change to a codec: HYPOTHESIS_PROFILE=deep make test
settings.register_profile("deep", deadline=None, max_examples=5000, suppress_health_check=_slow_is_fine)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Until 3.11.8 and 3.12.2, two threads that parse Python at the same time can get "SystemError: AST constructor recursion depth
# mismatch" (python/cpython#106905). Tracebacks are parsed wherever they are formatted: in pytest, where that error ends the whole
# run, and in any thread that logs an exception. So these versions parse in one thread at a time.
if sys.version_info < (3, 11, 8) or (3, 12) <= sys.version_info < (3, 12, 2):
    _parsing = threading.RLock()
    _parse = ast.parse

    def _parse_alone(*args: Any, **options: Any) -> ast.AST:
        with _parsing:
            return _parse(*args, **options)

    ast.parse = _parse_alone

# A thread gives way after each few instructions, so that two of them meet in places where they usually do not. Brokers in
# processes of their own do the same (tests/process/broker_process.py).
if os.environ.get("BROKER_RACES"):
    sys.setswitchinterval(1e-6)


def pytest_make_parametrize_id(val: object) -> str | None:
    """A text or bytes of some length are told by it. Spelled out, the names of all tests were 25 MB, which each worker sends."""
    if isinstance(val, (str, bytes)) and len(val) > 100:
        return f"{len(val)} {'characters' if isinstance(val, str) else 'bytes'}"
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    """A file's tests share its fixtures, so they stay together. Two workers at most run Spark: each takes a core and 1 GB."""
    if "PYTEST_XDIST_WORKER" not in os.environ:  # one process runs all; it may not even know the marker (-p no:xdist)
        return
    group = str(item.path)
    if _SPARK in item.path.parents:
        group = "spark" if "spark" in getattr(item, "fixturenames", ()) else "spark of its own"
    elif _PAGE in item.path.parents:
        group = "page"
    item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """16,000 tests and all that they import stay until the end. Tests that collect garbage, to see what is left, would look at
    all of it each time, which took 0.4 to 1.3 s of CPU for each of a thousand tests."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """pytest-xdist would begin with the groups of most tests, whatever comes first here. At the end there would be files of few
    tests, which are those that kill brokers and simulate, and workers without any."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes a worker longest comes first."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    turns = (turn for turn, folder in enumerate(_LONGEST_FIRST) if Path(__file__).parent / folder in item.path.parents)
    return next(turns, len(_LONGEST_FIRST))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why tests were run again: such a test passes in the end, but its first failure may have been the broker's."""
    for report in terminalreporter.stats.get("rerun", []):
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else report.longreprtext
        terminalreporter.write_line(f"RERUN {report.nodeid} ({report.when}): {reason[:2000]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that reads what is written gets the log as well. As long as there is a `session_broker`, it would go to pytest's."""
    if _CAPTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return (yield)
    put_back = log.configure("warning")
    try:
        return (yield)
    finally:
        put_back()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """A file's tests leave no client of librdkafka behind: it would open pipes while others count what is open."""
    result = yield
    shares_broker = nextitem is not None and _PAGE in item.path.parents and _PAGE in nextitem.path.parents
    is_last = nextitem is None or (nextitem.path != item.path and not shares_broker)
    if is_last and not hasattr(sys, "last_value"):  # the traceback of a test that failed keeps what its frames knew
        getattr(item, "funcargs", {}).clear()
        wait_for_librdkafka(f"{item.path.name} has left something")
    return result
