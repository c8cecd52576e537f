"""Nothing is answered before it is where the next owner finds it: while the database stands still, no change is."""

import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.batch import TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from tests.durable.durable_broker import DurableBroker
from tests.durable.postgres import PostgresServer
from tests.kafka_connection import KafkaConnection, parts, produce_fields
from tests.pulsar_frames import Incoming, command, connect, send

pytestmark = pytest.mark.slow

# Far longer than any of these requests takes, and shorter than the lease.
SILENCE_S = 2.0
TOPIC = "persistent://public/default/pulsar-topic"


@pytest.fixture
def broker(tmp_path: Path, postgres: PostgresServer) -> Iterator[DurableBroker]:
    settings = ("group_initial_rebalance_delay_ms=0",)
    with DurableBroker(tmp_path, postgres, *settings, schemes=("kafka", "pulsar"), standbys=0) as broker:
        yield broker


def batch(**fields: Any) -> bytes:
    return bytes(build_batch([(b"key", b"value", [], int(time.time() * 1000))], **fields))


def topic(name: str) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1}


def offsets(name: str) -> list[dict[str, Any]]:
    return [{"name": name, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]


def additions(me: dict[str, Any]) -> dict[str, Any]:
    """Of a partition to this producer's transaction."""
    topics = [{"name": "transactions", "partitions": [0]}]
    return {f"v3_and_below_{name}": value for name, value in {**me, "topics": topics}.items()}


Request = tuple[ApiKey, int, dict[str, Any]]


def changes(kafka: KafkaConnection) -> dict[str, Request]:
    """Requests that change something, by what they change; ``kafka`` makes what they need."""
    names = ["log", "transactions", "grows", "altered", "cut", "deleted"]
    kafka.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic(name) for name in names], timeout=30_000)
    for _ in range(2):
        kafka.ask(ApiKey.PRODUCE, 9, **produce_fields("cut", batch()))
    member = {"session_timeout": 30_000, "rebalance_timeout": 30_000, "protocol_type": "consumer", "reason": None}
    protocols = [{"name": "range", "metadata": b""}]
    joined = kafka.ask(ApiKey.JOIN_GROUP, 3, group_id="classic", **member, protocols=protocols)
    kafka.ask(ApiKey.OFFSET_COMMIT, 8, group_id="old", topics=offsets("log"))
    me: dict[str, dict[str, Any]] = {}
    for name in ("adds", "sends", "ends", "again"):
        made = kafka.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout=60_000)
        me[name] = {
            "transactional_id": name,
            "producer_id": made.producer_id,
            "producer_epoch": made.producer_epoch,
        }
    for name in ("sends", "ends"):
        kafka.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, **additions(me[name]))
    who = {"producer_id": me["sends"]["producer_id"], "producer_epoch": me["sends"]["producer_epoch"]}
    in_transaction = batch(**who, base_sequence=0, attributes=TRANSACTIONAL)
    acl = {
        "resource_type": 2,
        "resource_name": "log",
        "principal": "User:x",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
        "resource_pattern_type": 3,
    }
    altered = [{"name": "retention.ms", "config_operation": 0, "value": "1000000"}]
    return {
        "a record, acks=all": (ApiKey.PRODUCE, 9, produce_fields("log", batch())),
        "a record, acks=1": (ApiKey.PRODUCE, 9, produce_fields("log", batch(), acks=1)),
        "a transaction's record": (
            ApiKey.PRODUCE,
            9,
            produce_fields("transactions", in_transaction, transactional_id="sends"),
        ),
        "a partition of a transaction": (ApiKey.ADD_PARTITIONS_TO_TXN, 3, additions(me["adds"])),
        "the end of a transaction": (ApiKey.END_TXN, 3, {**me["ends"], "committed": True}),
        "a producer's epoch": (
            ApiKey.INIT_PRODUCER_ID,
            4,
            {"transactional_id": "again", "transaction_timeout": 60_000},
        ),
        "a topic": (ApiKey.CREATE_TOPICS, 7, {"topics": [topic("new")], "timeout": 30_000}),
        "the end of a topic": (
            ApiKey.DELETE_TOPICS,
            5,
            {"topic_names": ["deleted"], "timeout": 30_000},
        ),
        "a partition": (
            ApiKey.CREATE_PARTITIONS,
            3,
            {"topics": [{"name": "grows", "count": 2, "assignments": None}], "timeout": 30_000},
        ),
        "a setting": (
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            {"resources": [{"resource_type": 2, "resource_name": "altered", "configs": altered}]},
        ),
        "a log's start": (
            ApiKey.DELETE_RECORDS,
            2,
            {
                "topics": [{"name": "cut", "partitions": [{"partition_index": 0, "offset": 1}]}],
                "timeout": 30_000,
            },
        ),
        "an offset": (ApiKey.OFFSET_COMMIT, 8, {"group_id": "new", "topics": offsets("log")}),
        "the end of a group": (ApiKey.DELETE_GROUPS, 2, {"groups_names": ["old"]}),
        "an assignment": (
            ApiKey.SYNC_GROUP,
            3,
            {
                "group_id": "classic",
                "generation_id": joined.generation_id,
                "member_id": joined.member_id,
                "assignments": [{"member_id": joined.member_id, "assignment": b"x"}],
            },
        ),
        "a member of a consumer group": (
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            {
                "group_id": "consumers",
                "member_id": "member",
                "member_epoch": 0,
                "subscribed_topic_names": ["log"],
                "topic_partitions": [],
                "rebalance_timeout": 30_000,
            },
        ),
        "a member of a share group": (
            ApiKey.SHARE_GROUP_HEARTBEAT,
            1,
            {"group_id": "sharers", "member_id": "member", "member_epoch": 0, "subscribed_topic_names": ["log"]},
        ),
        "an ACL": (ApiKey.CREATE_ACLS, 3, {"creations": [acl]}),
    }


def answered(sockets: dict[str, socket.socket], patience_s: float) -> set[str]:
    """Those that have something to be received after this time."""
    time.sleep(patience_s)
    ready, _, _ = select.select(list(sockets.values()), [], [], 0)
    return {name for name, one in sockets.items() if one in ready}


def pause(postgres: PostgresServer, broker: DurableBroker) -> None:
    """The database stands still, and what needs no change is answered. It is so for 2 s after a renewal of the lease, of which
    too little may be left if the machine is busy."""
    for _ in range(30):
        postgres.pause()
        with KafkaConnection(broker.address) as kafka:
            kafka.tell(ApiKey.METADATA, 12, topics=None)
            if select.select([kafka.socket], [], [], SILENCE_S)[0]:
                return
            postgres.go_on()
            kafka.answer(ApiKey.METADATA, 12)
    raise AssertionError("nothing is answered")


def test_no_change_is_answered_before_it_is_durable(broker: DurableBroker, postgres: PostgresServer) -> None:
    with KafkaConnection(broker.address) as kafka:
        requests = changes(kafka)
    connections = {name: KafkaConnection(broker.address) for name in requests}
    pause(postgres, broker)
    try:
        for name, (key, version, fields) in requests.items():
            connections[name].tell(key, version, **fields)
        early = answered({name: one.socket for name, one in connections.items()}, SILENCE_S)
    finally:
        postgres.go_on()
    answers = {name: connections[name].answer(key, version) for name, (key, version, _) in requests.items()}
    for connection in connections.values():
        connection.close()
    assert set() == early, {name: answers[name] for name in early}


class Client:
    """A connection to the Pulsar listener."""

    def __init__(self, address: str) -> None:
        self.socket = socket.create_connection(parts(address), timeout=60)
        self._incoming = Incoming()
        self.socket.sendall(connect())
        self.wait_for("CONNECTED")

    def wait_for(self, kind: str) -> Any:
        while True:
            for frame in self._incoming.feed(self.socket.recv(1 << 16)):
                if frame.kind == kind:
                    return frame.body
                assert frame.kind not in ("ERROR", "SEND_ERROR"), frame


def test_no_change_of_pulsar_is_answered_before_it_is_durable(broker: DurableBroker, postgres: PostgresServer) -> None:
    clients = {name: Client(broker.addresses["pulsar"]) for name in ("receipt", "acknowledgement", "subscription")}
    subscribe = {"topic": TOPIC, "subType": 1, "consumer_id": 0, "initialPosition": 1}
    clients["receipt"].socket.sendall(command("PRODUCER", topic=TOPIC, producer_id=0, request_id=1))
    clients["receipt"].wait_for("PRODUCER_SUCCESS")
    clients["receipt"].socket.sendall(send(0, 0, b"value"))
    clients["receipt"].wait_for("SEND_RECEIPT")
    consumer = clients["acknowledgement"]
    consumer.socket.sendall(command("SUBSCRIBE", request_id=1, subscription="old", **subscribe))
    consumer.wait_for("SUCCESS")
    consumer.socket.sendall(command("FLOW", consumer_id=0, messagePermits=10))
    message = consumer.wait_for("MESSAGE").message_id
    where = {"ledgerId": message.ledgerId, "entryId": message.entryId}
    postgres.pause()
    try:
        clients["receipt"].socket.sendall(send(0, 1, b"value"))
        consumer.socket.sendall(command("ACK", consumer_id=0, request_id=2, ack_type=0, message_id=[where]))
        new = command("SUBSCRIBE", request_id=1, subscription="new", **subscribe)
        clients["subscription"].socket.sendall(new)
        early = answered({name: client.socket for name, client in clients.items()}, SILENCE_S)
    finally:
        postgres.go_on()
    assert set() == early
    clients["receipt"].wait_for("SEND_RECEIPT")
    consumer.wait_for("ACK_RESPONSE")
    clients["subscription"].wait_for("SUCCESS")
    for client in clients.values():
        client.socket.close()
