"""Writers, gates and the admin over TLS."""

import os
import pickle
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import Broker
from broker.client.security_settings import SecuritySettings
from broker.client.shuffle.admin import ShuffleAdmin
from broker.client.shuffle.blocks import BlockReader, push_block
from broker.client.shuffle.errors import ConnectionFailedError, ShuffleClosedError, TransportError
from broker.client.shuffle.security import open_tls
from broker.client.shuffle.writing.shuffle_writer import ShuffleWriter
from broker.errors import ConfigError
from protocol.shuffle.events import EndOfPartition
from protocol.shuffle.ids import ResultPartitionID
from tests import certificates
from tests.client.shuffle.test_fork import in_child
from tests.client.shuffle.tls_gate import TlsGate


@pytest.fixture
def trusting(tmp_path: Path) -> dict[str, str]:
    """The settings with which a client trusts the gate."""
    (tmp_path / "ca.crt").write_text(certificates.authority().pem)
    return {"security.protocol": "SSL", "ssl.truststore.location": str(tmp_path / "ca.crt")}


def server_side(directory: Path, *, asks: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=certificates.authority().pem)
    context.load_cert_chain(certificates.server().write(directory, "server").both)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture
def gate(tmp_path: Path, session_broker: Broker) -> Iterator[TlsGate]:
    with TlsGate(server_side(tmp_path), session_broker.shuffle_address) as running:
        yield running


def write(address: str, partition: ResultPartitionID, blocks: list[bytes], security: object) -> None:
    writer = ShuffleWriter(address, partition, 1, "blocking", security=security)  # type: ignore[arg-type]
    try:
        writer.open(30)
        for block in blocks:
            push_block(writer, 0, block, timeout=30)
        writer.push_event(EndOfPartition(), 0)
        writer.commit(30)
    finally:
        writer.close()


def read(address: str, partition: ResultPartitionID, security: object) -> list[bytes]:
    reader = BlockReader([(address, partition, 0)], security=security)  # type: ignore[arg-type]
    return [bytes(block) for _, block in reader]


def test_blocks_of_all_sizes_go_both_ways(
    gate: TlsGate, partition: ResultPartitionID, trusting: dict[str, str]
) -> None:
    blocks = [os.urandom(size) for size in (1, 100, 16384, 16385, 300_000, 5_000_000, 3, 70_000)]
    write(gate.address, partition, blocks, trusting)
    assert blocks == read(f"shuffle+ssl://{gate.address}", partition, trusting)
    settings = pickle.loads(pickle.dumps(SecuritySettings.from_properties(trusting)))
    with ShuffleAdmin(gate.address, security=settings) as admin:
        assert [partition] == [info.partition for info in admin.partitions(partition.hex())]
        assert admin.release(partition)
    assert gate.let_in >= 3


def test_lost_connection_is_restored_with_tls(
    gate: TlsGate, partition: ResultPartitionID, trusting: dict[str, str]
) -> None:
    writer = ShuffleWriter(gate.address, partition, 1, "blocking", security=trusting)
    writer.open(30)
    push_block(writer, 0, b"one", timeout=30)
    gate.break_connections()
    push_block(writer, 0, b"two", timeout=30)
    writer.push_event(EndOfPartition(), 0)
    writer.commit(60)
    writer.close()
    assert [b"one", b"two"] == read(gate.address, partition, trusting)


def test_untrusted_broker_gets_no_data(gate: TlsGate, partition: ResultPartitionID) -> None:
    with pytest.raises(ConnectionFailedError, match=r"its certificate is not accepted.*ssl\.truststore\.location"):
        write(gate.address, partition, [b"x"], {"security.protocol": "SSL"})
    with (
        ShuffleAdmin(f"shuffle+ssl://{gate.address}") as admin,
        pytest.raises(ConnectionFailedError, match="certificate"),
    ):
        admin.partitions()


def test_broker_with_another_name_gets_no_data(
    tmp_path: Path, session_broker: Broker, trusting: dict[str, str]
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.other_host().write(tmp_path, "other").both)
    with TlsGate(context, session_broker.shuffle_address) as gate:
        with ShuffleAdmin(gate.address, security=trusting) as admin, pytest.raises(ConnectionFailedError, match="name"):
            admin.partitions()
        anyone = trusting | {"ssl.endpoint.identification.algorithm": ""}
        with ShuffleAdmin(gate.address, security=anyone) as admin:
            admin.partitions("00")


def test_client_certificate_is_sent(
    tmp_path: Path, session_broker: Broker, partition: ResultPartitionID, trusting: dict[str, str]
) -> None:
    files = certificates.client().write(tmp_path, "alice")
    with TlsGate(server_side(tmp_path, asks=True), session_broker.shuffle_address) as gate:
        own = trusting | {"ssl.keystore.location": str(files.both)}
        write(gate.address, partition, [b"x"], own)
        assert [b"x"] == read(gate.address, partition, own)
        let_in = gate.let_in
        with pytest.raises(TransportError):
            write(gate.address, partition, [b"x"], trusting)
        assert let_in == gate.let_in


def test_tls_and_plaintext_mismatches_fail_without_hanging(
    gate: TlsGate, session_broker: Broker, trusting: dict[str, str]
) -> None:
    with ShuffleAdmin(gate.address, timeout=30) as admin, pytest.raises(TransportError):
        admin.partitions()
    plain = session_broker.shuffle_address
    with ShuffleAdmin(plain, timeout=30, security=trusting) as admin, pytest.raises(ConnectionFailedError, match="TLS"):
        admin.partitions()


def test_brokers_own_listener_takes_and_returns_blocks(
    tmp_path: Path, partition: ResultPartitionID, trusting: dict[str, str]
) -> None:
    alice = trusting | {"ssl.keystore.location": str(certificates.client().write(tmp_path, "alice").both)}
    blocks = [os.urandom(size) for size in (1, 16384, 16385, 300_000, 5_000_000, 3, 4_000_000)]
    with Broker(
        listeners=("shuffle+ssl://127.0.0.1:0",),
        ssl_keystore_location=str(certificates.server().write(tmp_path, "broker").both),
        ssl_truststore_location=trusting["ssl.truststore.location"],
        ssl_client_auth="required",
    ) as broker:
        write(broker.shuffle_address, partition, blocks, alice)
        assert blocks == read(broker.shuffle_address, partition, alice)
        with ShuffleAdmin(broker.shuffle_address, security=trusting) as admin, pytest.raises(TransportError):
            admin.partitions()
        with ShuffleAdmin(broker.shuffle_address, timeout=30) as admin, pytest.raises(TransportError):
            admin.partitions()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_leaves_its_parents_connections_alone(
    tmp_path: Path, partition: ResultPartitionID, trusting: dict[str, str]
) -> None:
    with (
        Broker(
            listeners=("shuffle+ssl://127.0.0.1:0",),
            ssl_keystore_location=str(certificates.server().write(tmp_path, "broker").both),
        ) as broker,
        ShuffleAdmin(broker.shuffle_address, security=trusting) as admin,
    ):
        assert () == admin.partitions()

        def child() -> None:
            with pytest.raises(ShuffleClosedError, match="forked"):
                admin.partitions()
            admin.close()
            write(broker.shuffle_address, partition, [b"by the child"], trusting)

        in_child(child)
        assert [partition] == [info.partition for info in admin.partitions()]


def test_settings_are_checked_before_any_connection() -> None:
    for security, said in (
        ({"security.protocol": "SSL", "ssl.truststore.location": "/no/such.pem"}, "/no/such.pem"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"},
            "SSL",
        ),
        ({"security.protocol": "TLS"}, "security.protocol must be"),
    ):
        with pytest.raises(ConfigError, match=said):
            ShuffleAdmin("127.0.0.1:1", security=security)
    assert open_tls(None, ["127.0.0.1:1"]) is None
    assert open_tls({"security.protocol": "PLAINTEXT"}, ["127.0.0.1:1"]) is None
