"""A whole broker with an http:// listener, and clients that everybody has: curl and Python's own."""

import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.embedded import Broker
from broker.config import load
from broker.server import BrokerServer
from tests.waiting import wait_for


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BrokerServer]:
    made = BrokerServer(
        load(data_dir=str(tmp_path), listeners=["http://127.0.0.1:0"], http_allowed_hosts="Example.Org")
    )
    made.start()
    yield made
    made.stop()


def ask(server: BrokerServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.listeners["http"], timeout=30)
    connection.request(method, path, headers=headers)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, body


def test_the_broker_says_that_it_lives_and_serves(server: BrokerServer) -> None:
    assert (200, b"ok\n") == ask(server, "/healthz")
    assert (200, b"ok\n") == ask(server, "/readyz")
    assert (200, b"") == ask(server, "/readyz", "HEAD")
    assert 404 == ask(server, "/nothing")[0]


def test_stopping_broker_is_not_ready(server: BrokerServer) -> None:
    part = server.part("http")
    assert part is not None
    part.stopping()
    assert (503, b"stopping\n") == ask(server, "/readyz")
    assert (200, b"ok\n") == ask(server, "/healthz")


def test_hosts_of_the_settings_are_allowed_only(server: BrokerServer) -> None:
    assert 200 == ask(server, "/healthz", Host="example.org:99")[0]
    status, body = ask(server, "/healthz", Host="evil.example")
    assert 403 == status
    assert "http_allowed_hosts" in json.loads(body)["reason"]


def test_listener_s_own_and_advertised_hosts_are_allowed(tmp_path: Path) -> None:
    with Broker(listeners=["http://localhost:0?advertised=outside.example:80"]) as broker:
        assert 200 == ask(broker.server, "/healthz", Host="outside.example")[0]


def test_one_connection_serves_many_requests(server: BrokerServer) -> None:
    connection = http.client.HTTPConnection(server.listeners["http"], timeout=30)
    connection.connect()
    socket = connection.sock
    for _ in range(3):
        connection.request("GET", "/healthz")
        assert b"ok\n" == connection.getresponse().read()
    assert connection.sock is socket
    connection.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_sees_answers_and_refusals(server: BrokerServer, tmp_path: Path) -> None:
    def curl(*arguments: str) -> str:
        base = f"http://{server.listeners['http']}"
        command = ["curl", "-sS", "--max-time", "30", "-o", "-", "-w", " %{http_code}", *arguments]
        command[-1] = base + command[-1]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "ok\n 200" == curl("/healthz")
    large = tmp_path / "large"
    large.write_bytes(b"x" * 3_000_000)
    # curl announces bodies of more than 1 MiB with Expect: 100-continue.
    assert curl("-T", str(large), "/healthz").endswith(" 413")
    # Chunked, so that the length is not known before the limit is passed.
    assert curl("-T", str(large), "-H", "Transfer-Encoding: chunked", "-H", "Expect:", "/healthz").endswith(" 413")
    assert curl("-T", str(large), "-H", "Transfer-Encoding: chunked", "/healthz").endswith(" 413")
    assert curl("-X", "POST", "-d", "x", "/healthz").endswith(" 405")


def test_a_busy_connection_keeps_nobody_waiting(server: BrokerServer) -> None:
    """Without a timing: one that never ends its requests is there while the others are answered."""
    slow = []
    for _ in range(20):
        connection = http.client.HTTPConnection(server.listeners["http"], timeout=30)
        connection.connect()
        connection.sock.sendall(
            b"POST /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 9000
        )
        slow.append(connection)
    wait_for(lambda: sum(len(each.connections) for each in server.sockets.processors) >= 20)
    assert (200, b"ok\n") == ask(server, "/healthz")
    for connection in slow:
        connection.close()
