"""Events: which are written, as what, and that writing one never fails."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker import log
from broker.log import FaultLog, Logger
from broker.runtime.files import LogFile


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = (log._level, log._format, log._colours, log._write_line)
    yield
    log._level, log._format, log._colours, log._write_line = before
    log._backend = None


def test_event_is_json_line_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "auto")
    log.get_logger("storage").info("topic_created", topic="orders", odd=b"\xff")
    event = json.loads(capsys.readouterr().err)
    assert ("topic_created", "storage", "info", "orders") == tuple(
        event[k] for k in ("event", "part", "level", "topic")
    )
    assert "Z" == event["timestamp"][-1]


def test_event_is_text_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "text")
    log.get_logger("storage").info("topic_created", topic="orders")
    line = capsys.readouterr().err
    assert "topic_created" in line
    assert "topic=orders" in line
    assert 1 == line.count("\n")


def test_text_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "text")
    log.get_logger("storage").info("topic_created", topic="orders", partitions=3)
    line = capsys.readouterr().err
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[info +\] topic_created +\[storage\] topic=orders partitions=3\n", line
    )


@pytest.mark.parametrize("colours", [True, False])
def test_text_has_colours_where_they_are_wanted(colours: bool, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "text", colours=colours)
    log.get_logger("storage").info("topic_created")
    assert colours == ("\x1b[" in capsys.readouterr().err)


def test_a_file_takes_the_place_of_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "auto", write_line=LogFile(f"{tmp_path}/log").write_line)
    log.get_logger("storage").info("topic_created", topic="orders")
    assert "" == capsys.readouterr().err
    assert "topic_created" == json.loads((tmp_path / "log").read_text())["event"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_error_comes_with_its_traceback(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", form)
    try:
        raise ValueError("spoiled")
    except ValueError as error:
        log.get_logger("storage").error("append failed", exc_info=error)
    written = capsys.readouterr().err
    assert "Traceback" in written
    assert "ValueError: spoiled" in written


def test_events_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("warning", "json")
    logger = log.get_logger("storage")
    logger.debug("a")
    logger.info("b")
    logger.warning("c")
    logger.error("d")
    written = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert ["c", "d"] == written


def test_unconfigured_log_writes_only_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    logger = log.get_logger("storage")
    logger.info("topic_created")
    logger.warning("disk nearly full")
    assert 1 == len(capsys.readouterr().err.splitlines())


def test_standard_error_that_is_gone_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, text: str) -> int:
            raise ValueError("I/O operation on closed file")

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stderr", Closed())
    log.configure("info", "json")
    log.get_logger("storage").error("append failed")


def test_first_event_needs_no_free_descriptor() -> None:
    code = """if True:
        import os, resource
        import broker.log
        log = broker.log.get_logger("x")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0), hard))
        log.error("read_failed", exc_info=OSError("too many"), number=1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        log.error("read_failed", number=2)
    """
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    first, second = result.stderr.splitlines()
    assert first == "read_failed part='x' exc_info=OSError('too many') number=1"
    assert json.loads(second)["number"] == 2


def test_structlog_is_loaded_with_the_first_event() -> None:
    code = "import sys, broker.log as l; l.get_logger('x').info('quiet'); sys.exit('structlog' in sys.modules)"
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_client_caused_events_are_limited() -> None:
    limit = log.EventLimit()
    assert [0] * 10 + [None] * 90 == [limit.take(1000.0) for _ in range(100)]
    assert [90, None] == [limit.take(1010.0) for _ in range(2)]
    assert [1] + [0] * 9 + [None] == [limit.take(5000.0) for _ in range(11)]


class Recorder(Logger):
    def __init__(self) -> None:
        super().__init__("test")
        self.events: list[tuple[str, int]] = []

    def error(self, event: str, **values: Any) -> None:
        self.events.append((event, values["partition"]))


def test_fault_is_logged_once_a_minute_by_partition() -> None:
    recorder = Recorder()
    faults = FaultLog(recorder)
    for partition in (0, 0, 1, 0):
        faults.report("append_failed", "topic", partition, OSError("full"), 100.0)
    faults.report("read_failed", "topic", 0, OSError("full"), 100.0)
    assert recorder.events == [("append_failed", 0), ("append_failed", 1), ("read_failed", 0)]
    faults.report("append_failed", "topic", 0, OSError("full"), 161.0)
    assert recorder.events[3:] == [("append_failed", 0)]


def test_the_memory_of_faults_is_bounded() -> None:
    faults = FaultLog(Recorder())
    for partition in range(3000):
        faults.report("append_failed", "topic", partition, OSError("full"), 100.0)
    assert len(faults._quiet_until) <= 1000
