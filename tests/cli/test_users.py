"""`broker users`, over the network and in the data directory of a broker that does not run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import Broker
from tests.cli.conftest import Run, _run

PASSWORD = "s3cret-Ä"
LISTENERS = ("kafka://127.0.0.1:0", "kafka+sasl://127.0.0.1:0?name=sasl")


@pytest.fixture
def password(tmp_path: Path) -> str:
    (tmp_path / "password").write_text(f"{PASSWORD}\nnot this\n")
    return str(tmp_path / "password")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(listeners=LISTENERS) as running:
        yield running


def as_user(broker: Broker, name: str, mechanism: str = "SCRAM-SHA-256") -> list[str]:
    settings = ("security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}", f"sasl.username={name}")
    return ["-b", broker.server.listeners["sasl"], *(word for setting in settings for word in ("-X", setting))]


def logs_in(broker: Broker, name: str, mechanism: str = "SCRAM-SHA-256", *, fails: int = 0) -> bytes:
    environment = {**os.environ, "BROKER_SASL_PASSWORD": PASSWORD}
    result = _run(environment, "topics", "list", *as_user(broker, name, mechanism), fails=fails)
    assert PASSWORD.encode() not in result.stdout + result.stderr
    return result.stderr


def test_user_is_added_listed_used_and_deleted(run_alone: Run, broker: Broker, password: str) -> None:
    here = ("-b", broker.bootstrap_servers)
    said = run_alone("users", "add", "alice", "--password-file", password, *here).stdout.decode()
    assert said == "set the password of alice for SCRAM-SHA-256, SCRAM-SHA-512\n"
    logs_in(broker, "alice", "SCRAM-SHA-512")
    run_alone("users", "add", "bob", "--mechanism", "scram-sha-256", "--password-file", password, *here)
    assert [
        "alice\tSCRAM-SHA-256\t4096",
        "alice\tSCRAM-SHA-512\t4096",
        "bob\tSCRAM-SHA-256\t4096",
    ] == run_alone("users", "list", *here).stdout.decode().splitlines()
    assert b'{"user": "bob", "mechanism": "SCRAM-SHA-256", "iterations": 4096}\n' == (
        run_alone("users", "list", "bob", "--output", "json", *here).stdout
    )
    assert b"deleted alice\n" == run_alone("users", "delete", "alice", *here).stdout
    assert b"refuses 'alice'" in logs_in(broker, "alice", fails=1)
    assert b"There is no user alice" in run_alone("users", "delete", "alice", *here, fails=1).stderr
    run_alone("users", "delete", "alice", "--if-exists", *here)
    assert b"There is no user alice" in run_alone("users", "list", "alice", *here, fails=1).stderr


def test_first_user_is_made_before_first_start(run_alone: Run, tmp_path: Path, password: str) -> None:
    data_dir = str(tmp_path / "data")
    offline = ("--data-dir", data_dir)
    assert b"none" in run_alone("users", "list", *offline, fails=2).stderr
    assert not os.path.exists(data_dir)
    run_alone("users", "add", "admin", "--password-file", password, *offline)
    run_alone("users", "add", "gone", "--password-file", password, *offline)
    run_alone("users", "delete", "gone", *offline)
    listed = run_alone("users", "list", *offline).stdout.decode().splitlines()
    assert ["admin\tSCRAM-SHA-256\t4096", "admin\tSCRAM-SHA-512\t4096"] == listed
    with Broker(data_dir=data_dir, listeners=LISTENERS) as running:
        logs_in(running, "admin")
        busy = run_alone("users", "add", "late", "--password-file", password, *offline, fails=2).stderr
        assert b"leave out --data-dir" in busy


def test_password_is_never_an_argument_or_shown(run_alone: Run, broker: Broker, password: str) -> None:
    refused = run_alone("users", "add", "alice", "-b", broker.bootstrap_servers, fails=2).stderr
    assert b"BROKER_USER_PASSWORD" in refused
    run_alone("users", "add", "alice", PASSWORD, "-b", broker.bootstrap_servers, fails=2)
    empty = run_alone("users", "add", "", "--password-file", password, "-b", broker.bootstrap_servers, fails=2).stderr
    assert PASSWORD.encode() not in refused + empty
