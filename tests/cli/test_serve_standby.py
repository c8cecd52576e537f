"""`broker serve` with a catalogue in PostgreSQL: standing by, taking over, being replaced; as an operator meets it."""

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import Serving
from tests.durable.postgres import PostgresServer, fresh_schema, shared_server

Serve = Callable[..., Serving]
JSON = ("--set", "logging_format=json")


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> PostgresServer:
    """In the environment of the brokers."""
    server = shared_server()
    monkeypatch.setenv("BROKER_CATALOGUE", server.url)
    return server


@pytest.fixture
def options(tmp_path: Path, database: PostgresServer) -> list[str]:
    return ["--objects", f"file://{tmp_path}/objects", "--set", f"catalogue_schema={fresh_schema()}", *JSON]


class Events:
    """Reads what a broker says until it has said it."""

    def __init__(self, serving: Serving) -> None:
        assert serving.process.stderr is not None
        self._stream = serving.process.stderr
        self.said: list[str] = []

    def wait(self, event: str) -> None:
        while True:
            line = self._stream.readline().decode()
            assert line, f"{event} was not said: {self.said}"
            self.said.append(line)
            if line.startswith("{") and json.loads(line)["event"] == event:
                return

    def rest(self) -> list[str]:
        return [*self.said, *self._stream.read().decode().splitlines()]


def events(lines: list[str]) -> list[str]:
    return [json.loads(line)["event"] for line in lines if line.startswith("{")]


def test_a_standby_takes_over_when_the_owner_stops(serve: Serve, options: list[str], database: PostgresServer) -> None:
    owner = serve(*options)
    standby = serve(*options, "--standby", data_dir="other", wait=False)
    heard = Events(standby)
    heard.wait("standing_by")
    assert not standby.ready_file.exists()
    owner.process.send_signal(signal.SIGTERM)
    _, said = owner.process.communicate(timeout=60)
    assert (0, "broker_stopped") == (owner.process.returncode, events(said.decode().splitlines())[-1])
    standby.wait_until_ready()
    standby.process.send_signal(signal.SIGTERM)
    assert 0 == standby.process.wait(60)
    lines = heard.rest()
    assert not [line for line in lines if database.password in line or "p%25w" in line]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_standby(serve: Serve, options: list[str], number: int) -> None:
    serve(*options)
    standby = serve(*options, "--standby", data_dir="other", wait=False)
    heard = Events(standby)
    heard.wait("standing_by")
    standby.process.send_signal(number)
    assert 0 == standby.process.wait(60)
    lines = heard.rest()
    assert "standby_stopped" == events(lines)[-1]
    assert all(line.startswith("{") for line in lines), lines


def test_without_standby_a_second_broker_is_refused(serve: Serve, options: list[str]) -> None:
    serve(*options)
    second = serve(*options, data_dir="other", wait=False)
    _, said = second.process.communicate(timeout=60)
    assert 2 == second.process.returncode
    assert b"start this one with --standby" in said


def test_a_broker_that_was_replaced_ends_with_a_sentence(
    serve: Serve, options: list[str], database: PostgresServer
) -> None:
    serving = serve(*options)
    schema = next(option for option in options if option.startswith("catalogue_schema=")).partition("=")[2]
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(f"UPDATE {schema}.owner SET epoch = epoch + 1".encode())
    _, said = serving.process.communicate(timeout=60)
    assert 1 == serving.process.returncode
    lines = said.decode().splitlines()
    assert "broker: The broker has stopped because it does not own its state any more: " in lines[-1]
    assert lines[-1].endswith(".")
    assert "Traceback" not in said.decode()


def test_systemd_is_told_of_a_standby(
    serve: Serve, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(*options)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        standby = serve(*options, "--standby", data_dir="other", wait=False)
        assert f"READY=1\nMAINPID={standby.process.pid}\nSTATUS=Standing by" == systemd.recv(1000).decode()


def test_options_go_before_the_environment(serve: Serve, options: list[str], tmp_path: Path) -> None:
    assert os.environ["BROKER_CATALOGUE"]
    other = serve(*options, "--catalogue", "postgresql://127.0.0.1:1/none?password=hidden", wait=False)
    heard = Events(other)
    heard.wait("waiting_for_engine")
    other.process.send_signal(signal.SIGTERM)
    assert 0 == other.process.wait(60)
    said = heard.rest()
    assert [line for line in said if "127.0.0.1:1/" in line or "port 1 " in line]
    assert not [line for line in said if "hidden" in line]
