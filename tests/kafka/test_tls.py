"""A whole broker with TLS: Kafka clients, the shuffle service and the control listener."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

from broker.config import load
from broker.metrics.registry import render
from broker.server import BrokerServer
from tests import certificates
from tests.certificates import Files
from tests.waiting import wait_for


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return certificates.server().write(tmp_path)


@contextlib.contextmanager
def broker(tmp_path: Path, files: Files, **settings: Any) -> Iterator[BrokerServer]:
    config = load(
        data_dir=str(tmp_path / "data"),
        ssl_keystore_location=str(files.both),
        ssl_truststore_location=str(files.authority),
        **{"listeners": ["kafka+ssl://127.0.0.1:0"], **settings},
    )
    server = BrokerServer(config)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def client_settings(server: BrokerServer, files: Files, tmp_path: Path, name: str = "alice") -> dict[str, Any]:
    own = certificates.client(name).write(tmp_path, name)
    return {
        "bootstrap_servers": server.listeners["kafka+ssl"],
        "security_protocol": "SSL",
        "ssl_cafile": str(files.authority),
        "ssl_certfile": str(own.certificate),
        "ssl_keyfile": str(own.key),
    }


def test_records_go_in_and_come_out(tmp_path: Path, files: Files) -> None:
    with broker(tmp_path, files, ssl_client_auth="required") as server:
        settings = client_settings(server, files, tmp_path)
        sent = [bytes([n]) * 100_000 for n in range(30)]
        with contextlib.closing(KafkaProducer(**settings, compression_type=None)) as producer:
            for value in sent:
                producer.send("topic", value)
            producer.flush(30)
        with contextlib.closing(
            KafkaConsumer("topic", auto_offset_reset="earliest", consumer_timeout_ms=30_000, **settings)
        ) as consumer:
            received = [record.value for _, record in zip(sent, consumer, strict=False)]
            principals = {str(c.principal) for each in server.sockets.processors for c in each.connections.copy()}
        assert received == sent
        assert principals == {"User:CN=alice"}


def test_client_without_a_required_certificate_is_refused(tmp_path: Path, files: Files) -> None:
    with broker(tmp_path, files, ssl_client_auth="required") as server:
        host, _, port = server.listeners["kafka+ssl"].rpartition(":")
        context = certificates.client_context(directory=tmp_path)
        with (
            socket.create_connection((host, int(port)), 20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
            pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),  # in TLS 1.3 it is told with the first read
        ):
            secured.recv(1)
        # The alert leaves before the handshake is counted.
        wait_for(lambda: sum(each.handshakes.stats.failed for each in server.sockets.processors) == 1)
        text = render(server.metrics).decode()
        assert 'broker_network_tls_failed_handshakes_total{processor="processor-0"}' in text


def test_every_kind_of_listener_has_tls(tmp_path: Path, files: Files) -> None:
    with broker(
        tmp_path,
        files,
        listeners=["kafka+ssl://127.0.0.1:0", "shuffle+ssl://127.0.0.1:0"],
        control_listener="kafka+ssl://127.0.0.1:0?name=control",
    ) as server:
        context = certificates.client_context(directory=tmp_path)
        for address in server.listeners.values():
            host, _, port = address.rpartition(":")
            with (
                socket.create_connection((host, int(port)), 20) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as secured,
            ):
                assert secured.version() == "TLSv1.3"
                assert secured.getpeercert(True) == ssl.PEM_cert_to_DER_cert(certificates.server().certificate)
        assert set(server.listeners) == {"kafka+ssl", "shuffle+ssl", "control"}


def test_a_certificate_is_replaced_while_the_broker_runs(tmp_path: Path, files: Files) -> None:
    with broker(tmp_path, files) as server:
        host, _, port = server.listeners["kafka+ssl"].rpartition(":")
        renewed = certificates.authority().issue("broker", hosts=certificates.LOCAL)
        context = certificates.client_context(directory=tmp_path)

        def shown() -> bytes | None:
            with (
                socket.create_connection((host, int(port)), 20) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as secured,
            ):
                return secured.getpeercert(True)

        before = shown()
        files.both.write_text(renewed.key + renewed.certificate)
        assert server.security.tls["kafka+ssl"].reload() is None
        assert [before, shown()] == [
            ssl.PEM_cert_to_DER_cert(each.certificate) for each in (certificates.server(), renewed)
        ]
