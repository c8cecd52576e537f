"""How settings are put in force. Those of threads and logs: tests/kafka/handlers/test_incremental_alter_configs.py."""

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from broker.config import load
from broker.errors import ConfigError
from broker.runtime.entropy import SystemEntropy
from broker.security.credentials import make_row
from broker.server import BrokerServer
from broker.server.reconfiguration import _at_most_doubled_or_halved
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control
from protocol.sasl.scram import ScramClient
from tests import certificates
from tests.certificates import authority
from tests.kafka.handlers.changing import BROKER, DELETE, SET, broker_values, change
from tests.kafka.handlers.kafka_client import Kafka
from tests.waiting import wait_for


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (3, 1), (3, 6), (8, 4), (8, 16), (9, 4)])
def test_thread_number_may_halve_or_double(before: int, after: int) -> None:
    _at_most_doubled_or_halved("num.io.threads", load(io_threads=before), load(io_threads=after))


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 7), (8, 3), (8, 17), (1000, 1)])
def test_a_larger_step_is_refused(before: int, after: int) -> None:
    with pytest.raises(ConfigError, match=r"Change num\.network\.threads in several steps"):
        _at_most_doubled_or_halved("num.network.threads", load(network_threads=before), load(network_threads=after))


def shown(kafka: Kafka, name: str) -> str:
    """The common name of the certificate that a new connection gets."""
    host, port = kafka.broker.server.listeners[name].rsplit(":", 1)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as secured:
        certificate = secured.getpeercert(binary_form=True)
        assert certificate is not None
        return str(x509.load_der_x509_certificate(certificate).serial_number)


def test_listener_certificates_change_live_and_survive_restart(tmp_path: Path) -> None:
    old, new = certificates.server(), certificates.server("rsa")
    files, others = old.write(tmp_path, "old"), new.write(tmp_path, "new")
    settings = {
        "data_dir": str(tmp_path / "data"),
        "listeners": ("kafka://127.0.0.1:0", "kafka+ssl://127.0.0.1:0?name=outer"),
        "ssl_keystore_location": str(files.both),
    }
    name = "listener.name.outer.ssl.keystore.location"
    with Kafka(**settings) as kafka:
        assert shown(kafka, "outer") == str(old.x509.serial_number)
        for broker, wrong in (("1", str(tmp_path / "nowhere")), ("1", str(files.authority)), ("", str(others.both))):
            for validate_only in (True, False):
                result = change(kafka, BROKER, broker, (name, SET, wrong), validate_only=validate_only)
                assert result.error_code == ErrorCode.invalid_request
                assert result.error_message
        assert shown(kafka, "outer") == str(old.x509.serial_number)
        assert name not in broker_values(kafka, "1")
        changes = [(name, SET, str(others.both)), ("listener.name.outer.ssl.key.password", SET, "geheim")]
        result = change(kafka, BROKER, "1", *changes)
        assert (result.error_code, result.error_message) == (ErrorCode.none, None)
        assert shown(kafka, "outer") == str(new.x509.serial_number)
        assert broker_values(kafka, "1")["listener.name.outer.ssl.key.password"] == (None, 2)
    with Kafka(**settings) as kafka:
        assert shown(kafka, "outer") == str(new.x509.serial_number)


@pytest.mark.parametrize("dot", [".", "_"])
def test_key_that_was_set_live_is_not_shown(tmp_path: Path, dot: str) -> None:
    new = certificates.server("rsa")
    with Kafka(
        listeners=("kafka://127.0.0.1:0", "kafka+ssl://127.0.0.1:0?name=outer"),
        ssl_keystore_location=str(certificates.server().write(tmp_path).both),
    ) as kafka:
        key, chain, location = (
            "listener.name.outer." + name.replace(".", dot)
            for name in ("ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.keystore.location")
        )
        changes = [(key, SET, new.key), (chain, SET, new.certificate), (location, SET, "")]
        result = change(kafka, BROKER, "1", *changes)
        assert (result.error_code, result.error_message) == (ErrorCode.none, None)
        assert shown(kafka, "outer") == str(new.x509.serial_number)
        values = broker_values(kafka, "1")
        assert (values[key], values[chain]) == ((None, 2), (None, 2))


def test_change_does_not_open_listener_to_everybody(tmp_path: Path) -> None:
    files = certificates.server().write(tmp_path)
    with Kafka(
        listeners=("kafka://127.0.0.1:0", "kafka+ssl://0.0.0.0:0?name=outer"),
        ssl_keystore_location=str(files.both),
        ssl_truststore_location=str(files.authority),
        ssl_client_auth="required",
    ) as kafka:
        result = change(kafka, BROKER, "1", ("listener.name.outer.ssl.client.auth", SET, "none"))
        assert result.error_code == ErrorCode.invalid_request
        assert "allow_anonymous_listeners" in result.error_message


def test_earlier_change_does_not_open_later_listeners(tmp_path: Path) -> None:
    files = certificates.server().write(tmp_path)

    def settings(host: str) -> dict[str, Any]:
        return {
            "data_dir": str(tmp_path / "data"),
            "listeners": ("kafka://127.0.0.1:0", f"kafka+ssl://{host}:0?name=outer"),
            "ssl_keystore_location": str(files.both),
            "ssl_truststore_location": str(files.authority),
            "ssl_client_auth": "required",
        }

    name = "listener.name.outer.ssl.client.auth"
    with Kafka(**settings("127.0.0.1")) as kafka:
        assert change(kafka, BROKER, "1", (name, SET, "none")).error_code == 0
    with pytest.raises(ConfigError, match=r"Listen on 127\.0\.0\.1 .* A change of ssl\.client\.auth"):
        Kafka(**settings("0.0.0.0")).__enter__()
    with Kafka(**settings("0.0.0.0"), allow_anonymous_listeners=True) as kafka:
        assert let_in(kafka, "outer")


def let_in(kafka: Kafka, name: str) -> bool:
    """Whether a client without a certificate finishes its handshake."""
    host, port = kafka.broker.server.listeners[name].rsplit(":", 1)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # the handshake ends with the server's verdict
    try:
        with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False


def test_login_listener_cannot_be_made_to_ask_certificates(tmp_path: Path) -> None:
    files = certificates.server().write(tmp_path)
    settings = {
        "data_dir": str(tmp_path / "data"),
        "listeners": (
            "kafka://127.0.0.1:0",
            "kafka+ssl://127.0.0.1:0?name=outer",
            "kafka+sasl+ssl://127.0.0.1:0?name=login",
        ),
        "sasl_enabled_mechanisms": ("SCRAM-SHA-256",),
        "ssl_keystore_location": str(files.both),
        "ssl_truststore_location": str(files.authority),
        "ssl_client_auth": "required",
    }
    with Kafka(**settings) as kafka:
        assert (let_in(kafka, "outer"), let_in(kafka, "login")) == (False, True)
        result = change(kafka, BROKER, "1", ("listener.name.outer.ssl.client.auth", SET, "requested"))
        assert (result.error_code, result.error_message) == (ErrorCode.none, None)
        assert (let_in(kafka, "outer"), let_in(kafka, "login")) == (True, True)
    with Kafka(**settings) as kafka:
        assert (let_in(kafka, "outer"), let_in(kafka, "login")) == (True, True)


def test_certificate_refused_by_a_listener_changes_none(tmp_path: Path) -> None:
    first, second = (authority().issue("broker", hosts=names) for names in (["a"], ["b"]))
    both = authority().issue("broker", hosts=["a", "c"])
    kept = [each.write(tmp_path, str(number)) for number, each in enumerate((first, second, both))]
    with Kafka(
        listeners=("kafka://127.0.0.1:0", "kafka+ssl://127.0.0.1:0?name=one", "kafka+ssl://127.0.0.1:0?name=two"),
        listener_settings={f"{name}.ssl_keystore_location": str(kept[n].both) for n, name in enumerate(("one", "two"))},
    ) as kafka:
        changes = [(f"listener.name.{name}.ssl.keystore.location", SET, str(kept[2].both)) for name in ("one", "two")]
        for validate_only in (True, False):
            result = change(kafka, BROKER, "1", *changes, validate_only=validate_only)
            assert result.error_code == ErrorCode.invalid_request
            assert "lacks the names b" in result.error_message
        assert shown(kafka, "one") == str(first.x509.serial_number)
        assert shown(kafka, "two") == str(second.x509.serial_number)


def test_missing_file_after_restart_lets_nobody_in(tmp_path: Path) -> None:
    files = certificates.server().write(tmp_path)
    settings = {
        "data_dir": str(tmp_path / "data"),
        "listeners": ("kafka://127.0.0.1:0", "kafka+ssl://127.0.0.1:0?name=outer"),
        "ssl_keystore_location": str(files.both),
    }
    with Kafka(**settings) as kafka:
        trusted = ("listener.name.outer.ssl.truststore.location", SET, str(files.authority))
        result = change(kafka, BROKER, "1", trusted, ("listener.name.outer.ssl.client.auth", SET, "required"))
        assert (result.error_code, result.error_message) == (ErrorCode.none, None)
        assert not let_in(kafka, "outer")
    files.authority.rename(tmp_path / "away")
    with pytest.raises(ConfigError, match="Correct the TLS settings of the listener outer"), Kafka(**settings):
        pass
    (tmp_path / "away").rename(files.authority)
    with Kafka(**settings) as kafka:
        assert not let_in(kafka, "outer")


def test_restart_does_not_open_listener_without_permission(tmp_path: Path) -> None:
    files = certificates.server().write(tmp_path)
    settings = {
        "data_dir": str(tmp_path / "data"),
        "listeners": ("kafka://127.0.0.1:0", "kafka+ssl://0.0.0.0:0?name=outer"),
        "ssl_keystore_location": str(files.both),
        "ssl_truststore_location": str(files.authority),
        "ssl_client_auth": "required",
    }
    with Kafka(**settings, allow_anonymous_listeners=True) as kafka:
        result = change(kafka, BROKER, "1", ("listener.name.outer.ssl.client.auth", SET, "none"))
        assert (result.error_code, result.error_message) == (ErrorCode.none, None)
    with pytest.raises(ConfigError, match="allow_anonymous_listeners"), Kafka(**settings):
        pass


def test_accepted_certificate_is_accepted_after_restart(tmp_path: Path) -> None:
    old, new = (authority().issue("broker", hosts=[name]) for name in ("a", "b"))
    settings = {
        "data_dir": str(tmp_path / "data"),
        "listeners": ("kafka://127.0.0.1:0", "kafka+ssl://127.0.0.1:0?name=outer"),
        "ssl_keystore_location": str(old.write(tmp_path, "old").both),
    }
    location = ("listener.name.outer.ssl.keystore.location", SET, str(new.write(tmp_path, "new").both))
    allowed = "listener.name.outer.ssl.allow.san.changes"
    with Kafka(**settings) as kafka:
        for changes in ([location, (allowed, SET, "true")], [(allowed, DELETE, None)]):
            result = change(kafka, BROKER, "1", *changes)
            assert (result.error_code, result.error_message) == (ErrorCode.none, None)
    with Kafka(**settings) as kafka:
        assert shown(kafka, "outer") == str(new.x509.serial_number)


@pytest.mark.parametrize("scheme", ["kafka", "kafka+ssl", "kafka+sasl+ssl"])
def test_control_listener_works_while_data_plane_is_full(tmp_path: Path, scheme: str) -> None:
    files = certificates.server().write(tmp_path)
    context = ssl.create_default_context(cafile=str(files.authority))
    config = load(
        data_dir=str(tmp_path / "data"),
        listeners=[f"{scheme}://127.0.0.1:0?name=data"],
        control_listener=f"{scheme}://127.0.0.1:0",
        ssl_keystore_location=str(files.both),
        sasl_enabled_mechanisms=("SCRAM-SHA-256",),
        network_threads=1,
        io_threads=1,
        queued_max_requests=1,
        queued_max_request_bytes=300_000,
    )
    server = BrokerServer(config)
    server.start()
    server.security.credentials.alter([make_row("alice", "SCRAM-SHA-256", "secret", SystemEntropy())], [])
    opened: list[socket.socket] = []

    def connect(listener: str) -> socket.socket:
        host, port = server.listeners[listener].rsplit(":", 1)
        plain = socket.create_connection((host, int(port)), timeout=30)
        opened.append(context.wrap_socket(plain, server_hostname=host) if "ssl" in scheme else plain)
        if "sasl" in scheme:
            log_in(opened[-1])
        return opened[-1]

    def log_in(connection: socket.socket) -> None:
        client = ScramClient("SCRAM-SHA-256", "alice", "secret", "nonce")
        assert ask(connection, ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256").error_code == 0
        answer = ask(connection, ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=client.first())
        final = client.final(answer.auth_bytes)
        client.verify(ask(connection, ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=final).auth_bytes)

    def ask(connection: socket.socket, key: ApiKey, version: int, **fields: Any) -> Any:
        connection.sendall(control.encode_request(key, version, 7, "test", fields))
        stream = connection.makefile("rb")
        size = stream.read(4)
        return control.parse_response(key, version, size + stream.read(int.from_bytes(size, "big")))[1]

    create = {"topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}], "timeout": 60_000}
    try:
        data, _ = server.sockets.planes
        with server.kafka.logs._lock:  # no handler gets further than this
            for _ in range(6):
                connect("data").sendall(control.encode_request(ApiKey.CREATE_TOPICS, 5, 7, "test", create))
            wait_for(lambda: len(data.channel) == 1)
            wait_for(lambda: sum(c.held is not None for p in data.processors for c in p.connections.copy()) == 4)
            connect("data").sendall((1 << 20).to_bytes(4, "big") + bytes(1 << 19))
            wait_for(lambda: server.sockets.memory.exhausted)
            for _ in range(3):
                connection = connect("control")
                assert ask(connection, ApiKey.API_VERSIONS, 2).error_code == 0
                named = {"resource_type": 4, "resource_name": "1", "configuration_keys": ["num.io.threads"]}
                (described,) = ask(connection, ApiKey.DESCRIBE_CONFIGS, 1, resources=[named]).results
                (entry,) = described.configs
                setting = {"name": "num.io.threads", "config_operation": 0, "value": str(int(entry.value) * 2)}
                resource = {"resource_type": 4, "resource_name": "1", "configs": [setting]}
                (altered,) = ask(
                    connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, resources=[resource], validate_only=False
                ).responses
                assert altered.error_code == 0
            assert len(data.handlers) == 8
        for connection in opened[:6]:
            assert connection.recv(4)
    finally:
        for connection in opened:
            connection.close()
        server.stop()
