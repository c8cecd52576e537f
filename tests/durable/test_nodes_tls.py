"""Nodes of several machines ask each other over TLS where their clients come over TLS."""

import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.client.kafka.errors import KafkaClientError
from broker.config import BrokerConfig
from broker.config.listener import NODES_LISTENER, parse_listener
from broker.errors import ConfigError
from broker.runtime import system_runtime
from broker.runtime.client_tls import TlsSettings
from broker.runtime.disk import SystemDisk
from broker.server.engine import Seat
from broker.server.machine_supervisor import MachineSupervisor
from broker.server.node_link import client_tls, link
from broker.server.seat import SeatMember
from tests.durable.durable_broker import durable_postgres
from tests.durable.machines import Cluster
from tests.process.broker_process import PATIENCE_S
from tests.process.test_backup import command

NODES = 3
PARTITIONS = 6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with durable_postgres() as postgres:
        made = Cluster(tmp_path, postgres, NODES)
        machines = [made.machine(), made.machine()]
        certificates = tmp_path / "certs"
        command("certs", certificates, *(f"--host={parse_listener(each.listener).host}" for each in machines))
        for machine in machines:
            machine.listener = machine.listener.replace("kafka://", "kafka+ssl://")
            machine.settings += [
                f"ssl_keystore_location={certificates}/server.pem",
                f"ssl_truststore_location={certificates}/ca.crt",
            ]
            machine.start()
        made.wait_for_balance(made.running())
        yield made
        made.end()


def endpoints(cluster: Cluster, listener: str) -> list[tuple[str, int]]:
    """Where each node listens."""
    with cluster.postgres.connect() as connection:
        rows = connection.execute("SELECT about FROM broker.nodes ORDER BY node").fetchall()
    return [(host, port) for host, port in (json.loads(str(about))["endpoints"][listener] for (about,) in rows)]


def test_transactions_over_machines_go_over_tls(cluster: Cluster) -> None:
    authority = cluster.directory / "certs" / "ca.crt"
    client = {
        "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in endpoints(cluster, "kafka+ssl")),
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority),
    }
    admin = AdminClient(client)
    [made] = admin.create_topics([NewTopic("t", PARTITIONS)]).values()
    made.result(PATIENCE_S)
    producer = Producer({**client, "transactional.id": "me"})
    producer.init_transactions(PATIENCE_S)
    for number in range(4):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce("t", str(number), partition=partition)
        if number % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    consumer = Consumer({**client, "group.id": "g", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("t", partition, 0) for partition in range(PARTITIONS)])
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    while sum(map(len, found)) < 2 * PARTITIONS:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        found[message.partition()].append(message.value())
    consumer.close()
    assert [[b"0", b"2"]] * PARTITIONS == found
    trusting = ssl.create_default_context(cafile=str(authority))
    for host, port in endpoints(cluster, NODES_LISTENER):
        with (
            socket.create_connection((host, port), PATIENCE_S) as plain,
            trusting.wrap_socket(plain, server_hostname=host),
        ):
            pass
        for tls in (None, TlsSettings):  # without TLS, and one that does not know the authority
            connection = link("node-1", "secret", (host, port), tls)
            with pytest.raises(KafkaClientError):
                connection.open()
            connection.close()


def adapted(url: str, **settings: str) -> tuple[SeatMember, BrokerConfig]:
    member = SeatMember(Seat(0, 2, "machine", 0), {})
    config = BrokerConfig(data_dir="/data", nodes=2, listeners=(parse_listener(url),), listener_settings=settings)
    return member, member.adapt(config)


def test_the_listener_for_nodes_is_as_the_first_one() -> None:
    assert not adapted("kafka://h:1")[0].listener.ssl
    member, config = adapted(
        "kafka+ssl://h:1", **{"kafka+ssl.ssl.keystore.location": "/a", "kafka+ssl.ssl.client.auth": "none"}
    )
    assert ("kafka+sasl+ssl", "h") == (member.listener.url_scheme, member.listener.host)
    assert "/a" == config.listener_settings["nodes.ssl.keystore.location"]
    assert "nodes.ssl.client.auth" not in config.listener_settings


def test_settings_of_the_listener_for_nodes_are_taken() -> None:
    own = {"nodes.ssl.keystore.location": "/b", "kafka+ssl.ssl.keystore.location": "/a"}
    assert own == dict(adapted("kafka+ssl://h:1", **own)[1].listener_settings)


@pytest.mark.parametrize("key", ["nodes.ssl.client.auth", "nodes.ssl_client_auth"])
def test_certificates_that_no_node_shows_cannot_be_required(key: str) -> None:
    config = BrokerConfig(data_dir="/data", catalogue="postgresql://h/d", nodes=2, listener_settings={key: "required"})
    with pytest.raises(ConfigError, match=r"Leave nodes.ssl.client.auth out"):
        MachineSupervisor(config, system_runtime(), 2, ())


def test_the_trust_store_says_whom_a_node_believes(tmp_path: Path) -> None:
    command("certs", tmp_path)
    authority = tmp_path / "ca.crt"
    config = BrokerConfig(data_dir="/data")
    assert TlsSettings() == client_tls(config, SystemDisk())
    expected = TlsSettings(ca_data=authority.read_text())
    for settings in (
        {"ssl_truststore_location": str(authority)},
        {"ssl_truststore_certificates": str(authority)},
        {"ssl_truststore_certificates": authority.read_text()},
        {"listener_settings": {"nodes.ssl.truststore.location": str(authority)}},
    ):
        assert expected == client_tls(attrs.evolve(config, **settings), SystemDisk())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Correct the trust store of the listener nodes"):
        client_tls(attrs.evolve(config, ssl_truststore_location=f"{tmp_path}/none"), SystemDisk())
