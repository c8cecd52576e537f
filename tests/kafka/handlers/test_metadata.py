"""Metadata over the wire: the fields that tools ask for besides topics and partitions."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from broker.kafka.handlers import metadata
from broker.network.work import BULK
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Beside, Kafka
from tests.waiting import wait_for

# 1 << the codes of Kafka's AclOperation.
TOPIC = 0b110111111000  # read, write, create, delete, alter, describe, describe configs, alter configs
CLUSTER = 0b1111110100000
NOT_ASKED = -(2**31)


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka(broker_rack="zone-1") as kafka:
        yield kafka


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("asked", [(True, True), (False, True), (True, False), (False, False)])
def test_whoever_asks_is_told_what_may_be_done(kafka: Kafka, version: int, asked: tuple[bool, bool]) -> None:
    topic = kafka.topic()
    answer = kafka.ask(
        ApiKey.METADATA,
        version,
        topics=[{"name": topic}, {"name": "nowhere"}],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=asked[0],
        include_topic_authorized_operations=asked[1],
    )
    assert answer.cluster_authorized_operations == (CLUSTER if asked[0] else NOT_ASKED)
    expected = TOPIC if asked[1] else NOT_ASKED
    assert [one.topic_authorized_operations for one in answer.topics] == [expected] * 2


@pytest.mark.parametrize("version", range(1, 14))
def test_clients_are_told_the_brokers_rack(kafka: Kafka, version: int) -> None:
    answer = kafka.ask(ApiKey.METADATA, version, topics=[])
    assert [broker.rack for broker in answer.brokers] == ["zone-1"]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
def test_internal_kafka_topics_are_not_auto_created(kafka: Kafka, name: str) -> None:
    ordinary = f"asked-for-beside-{name}"
    answer = kafka.ask(
        ApiKey.METADATA,
        9,
        topics=[{"name": name}, {"name": ordinary}],
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    assert [(name, ErrorCode.unknown_topic_or_partition), (ordinary, ErrorCode.none)] == [
        (topic.name, topic.error_code) for topic in answer.topics
    ]


def offered(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The lane of each Metadata request that goes to a handler."""
    channel = kafka.broker.server.sockets.planes[0].channel
    lanes: list[str | None] = []
    offer = channel.offer

    def noted(item: Any, on_room: Any) -> bool:
        if item[1].api.key == ApiKey.METADATA:
            lanes.append(item[1].lane)
        return offer(item, on_room)

    monkeypatch.setattr(channel, "offer", noted)
    return lanes


def test_short_request_with_long_answer_uses_bulk_lane(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = kafka.topic(30)
    monkeypatch.setattr(metadata, "_USUAL_PARTITIONS_MAX", 20)
    lanes = offered(kafka, monkeypatch)
    for topics in (None, [{"name": wide}]):
        answer = kafka.ask(ApiKey.METADATA, 9, topics=topics)
        assert 30 in [len(topic.partitions) for topic in answer.topics]
    assert lanes == [BULK, BULK]


def test_simultaneous_equal_requests_share_one_answer(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka.topic()  # the kept answer is old
    begun, go_on, made = threading.Event(), threading.Event(), []
    answer = metadata._answer

    def slow(*arguments: Any) -> Any:
        made.append(threading.get_ident())
        begun.set()
        assert go_on.wait(60)
        return answer(*arguments)

    monkeypatch.setattr(metadata, "_answer", slow)
    monkeypatch.setattr(metadata, "_USUAL_PARTITIONS_MAX", 0)  # into the lane, which has two handlers
    lanes = offered(kafka, monkeypatch)
    clients = [Beside(kafka) for _ in range(6)]
    for client in clients:
        client.tell(ApiKey.METADATA, 9, topics=None)
    wait_for(lambda: len(lanes) == 6)
    assert begun.wait(60)
    go_on.set()
    for client in clients:
        with client:
            client.frame()
    assert len(made) <= 2
