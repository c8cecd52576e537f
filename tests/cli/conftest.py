"""The commands are run as a user runs them: as processes, against a real broker. Most are forked from one that has the imports
behind it (prepared.py); those of ``command_line`` are not."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from broker.client import Broker
from tests.cli.prepared import PreparedPython

Result = subprocess.CompletedProcess[bytes]
Run = Callable[..., Result]


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "broker", *arguments]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedPython]:
    with PreparedPython(tmp_path_factory.mktemp("prepared")) as prepared:
        yield prepared


@pytest.fixture
def environment(session_broker: Broker) -> dict[str, str]:
    """That of a user who has said where the broker is."""
    return {**os.environ, "BROKER_BOOTSTRAP_SERVERS": session_broker.bootstrap_servers}


@pytest.fixture
def run(prepared: PreparedPython, environment: dict[str, str]) -> Run:
    """Runs a command to its end; raises if it ends with another status than ``fails``."""
    return partial(_run, environment, prepared=prepared)


@pytest.fixture
def run_alone(prepared: PreparedPython) -> Run:
    """The same where there is no broker."""
    return partial(_run, dict(os.environ), prepared=prepared)


def _run(
    environment: dict[str, str],
    *arguments: str,
    stdin: bytes = b"",
    fails: int | None = 0,
    prepared: PreparedPython | None = None,
) -> Result:
    """``fails`` None: any status."""
    if prepared is not None and _of_python(environment) == _of_python(os.environ):
        result = prepared.run(list(arguments), environment, stdin, timeout_s=60)
    else:
        result = subprocess.run(
            command_line(*arguments), input=stdin, capture_output=True, env=environment, check=False, timeout=60
        )
    assert fails in (None, result.returncode), result.stderr.decode()
    assert b"Traceback" not in result.stderr, result.stderr.decode()
    return result


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    """What Python reads at its start only."""
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


class Serving:
    """A `broker serve` of a test's own."""

    def __init__(self, process: "subprocess.Popen[bytes]", ready_file: Path) -> None:
        self.process = process
        self.ready_file = ready_file

    def wait_until_ready(self) -> None:
        while not self.ready_file.exists():
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}: {self.process.stderr.read().decode()}")  # type: ignore[union-attr]
            time.sleep(0.02)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """Starts brokers, on a free port and in a directory of its own unless told otherwise; ends what is left of them."""
    started: list[subprocess.Popen[bytes]] = []

    def serve(*arguments: str, data_dir: str = "data", wait: bool = True) -> Serving:
        ready_file = tmp_path / f"ready-{len(started)}.json"
        options = ["--data-dir", str(tmp_path / data_dir), "--ready-file", str(ready_file)]
        if "--listener" not in arguments:
            options += ["--listener", "kafka://127.0.0.1:0"]
        process = subprocess.Popen(
            command_line("serve", *options, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(process)
        serving = Serving(process, ready_file)
        if wait:
            serving.wait_until_ready()
        return serving

    yield serve
    for process in started:
        process.kill()
        process.communicate()
