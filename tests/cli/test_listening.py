"""Which service listens at an address, and what commands say about the port of another service."""

import socket
from collections.abc import Iterator

import pytest

from broker.cli.listening import kind_of, service_at
from broker.client import Broker
from tests.cli.conftest import Run

SERVICES = ("kafka", "shuffle", "pulsar", "http")


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    with Broker(listeners=tuple(f"{service}://127.0.0.1:0" for service in SERVICES)) as broker:
        yield dict(broker.server.listeners)


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_is_recognized(addresses: dict[str, str], service: str) -> None:
    host, port = addresses[service].split(":")
    assert service == service_at(host, int(port))


def test_silent_or_absent_service_is_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert service_at("127.0.0.1", port) is None
    assert service_at("127.0.0.1", port) is None


def test_tls_alert_is_recognized_strangers_are_unknown() -> None:
    assert "tls" == kind_of(b"\x15\x03\x03\x00\x02", False)
    assert kind_of(b"\0\0\0\x05\0", False) is None
    assert kind_of(b"SSH-2", True) is None


@pytest.mark.parametrize("service", ["shuffle", "pulsar", "http"])
@pytest.mark.parametrize("command", [("topics", "list"), ("users", "list"), ("produce", "t"), ("consume", "t")])
def test_a_kafka_command_says_whose_port_it_is(
    run_alone: Run, addresses: dict[str, str], service: str, command: tuple[str, ...]
) -> None:
    said = run_alone(*command, "-b", addresses[service], fails=1).stderr.decode()
    assert f"{addresses[service]} is a{'n' * (service == 'http')} {service}:// listener" in said
    assert "needs a kafka:// one: give its address with -b HOST:PORT." in said


@pytest.mark.parametrize("service", ["kafka", "shuffle", "pulsar"])
def test_http_listener_s_command_does_the_same(run_alone: Run, addresses: dict[str, str], service: str) -> None:
    said = run_alone("subscriptions", "list", "-a", f"http://{addresses[service]}", fails=1).stderr.decode()
    assert (
        f"is a {service}:// listener, and this command needs an http:// one: give its address with --admin-url." in said
    )
