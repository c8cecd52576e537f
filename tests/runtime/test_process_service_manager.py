"""What systemd hears of a broker."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.runtime.process import ServiceManager


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"{tmp_path}/notify")
        listening.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/notify")
        yield listening


def test_service_manager_hears_of_ready_and_stop(systemd: socket.socket) -> None:
    manager = ServiceManager()
    manager.recovering()
    manager.ready("127.0.0.1:9092")
    manager.stopping()
    assert b"STATUS=Opening the data directory" == systemd.recv(1000)
    assert f"READY=1\nMAINPID={os.getpid()}\nSTATUS=Serving 127.0.0.1:9092".encode() == systemd.recv(1000)
    assert systemd.recv(1000).startswith(b"STOPPING=1\n")


def test_children_do_not_speak_for_the_broker(systemd: socket.socket) -> None:
    ServiceManager()
    assert "NOTIFY_SOCKET" not in os.environ


@pytest.mark.parametrize("path", ["", "@abstract", "/nowhere/notify"])
def test_where_nobody_listens_nothing_happens(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    ServiceManager().ready("127.0.0.1:9092")
