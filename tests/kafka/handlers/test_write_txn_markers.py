from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.handlers.txn_client import Me, add_partitions, begin, end, fetch, write

COMMITTED = 1


def marker(me: Me, topic: str, *partitions: int, commit: bool = False) -> dict[str, Any]:
    return {
        "producer_id": me.producer_id,
        "producer_epoch": me.epoch,
        "transaction_result": commit,
        "topics": [{"name": topic, "partition_indexes": list(partitions)}],
        "coordinator_epoch": 0,
    }


def ask(kafka: Kafka, *markers: dict[str, Any]) -> list[tuple[int, list[tuple[int, ErrorCode]]]]:
    """Of each marker: producer id, and each partition with its error."""
    answer = kafka.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=list(markers))
    return [
        (
            one.producer_id,
            [(part.partition_index, part.error_code) for topic in one.topics for part in topic.partitions],
        )
        for one in answer.markers
    ]


def test_an_operator_aborts_transactions(kafka: Kafka) -> None:
    topic, me, other = kafka.topic(2), begin(kafka), begin(kafka)
    for producer in (me, other):
        add_partitions(kafka, producer, topic, (0, 1))
        write(kafka, producer, topic)
    assert ask(kafka, marker(me, topic, 0), marker(other, topic, 1, 0)) == [
        (me.producer_id, [(0, ErrorCode.none)]),
        (other.producer_id, [(1, ErrorCode.none), (0, ErrorCode.none)]),
    ]
    assert fetch(kafka, topic, COMMITTED)[2:] == (4, [(me.producer_id, 0), (other.producer_id, 1)])
    assert end(kafka, me) == ErrorCode.producer_fenced


def test_nobody_but_the_coordinator_commits(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    add_partitions(kafka, me, topic)
    refused = [(me.producer_id, [(0, ErrorCode.cluster_authorization_failed)])]
    assert ask(kafka, marker(me, topic, 0, commit=True)) == refused
    old = me._replace(epoch=me.epoch - 1)
    assert ask(kafka, marker(old, topic, 0)) == [(me.producer_id, [(0, ErrorCode.invalid_producer_epoch)])]
    assert end(kafka, me) == ErrorCode.none


def test_nothing_asked_nothing_done(kafka: Kafka) -> None:
    assert ask(kafka) == []
    me = begin(kafka)
    assert ask(kafka, marker(me, "no-topic")) == [(me.producer_id, [])]


def test_too_many_markers_are_refused_and_none_written(kafka: Kafka) -> None:
    topic, me = kafka.topic(2), Me("", 1, 0)
    begin_end = kafka.inside.logs.partitions[topic, 0].log_end_offset
    many = [marker(me, topic, 0, 1) for _ in range(501)]
    answer = ask(kafka, *many)
    assert len(answer) == 501
    assert {error for _, partitions in answer for _, error in partitions} == {ErrorCode.invalid_request}
    assert kafka.inside.logs.partitions[topic, 0].log_end_offset == begin_end


def test_markers_without_partitions_count_as_well(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    add_partitions(kafka, me, topic)
    strangers = [marker(me._replace(producer_id=number), topic) for number in range(10_000, 11_000)]
    assert ask(kafka, marker(me, topic, 0), *strangers)[0] == (me.producer_id, [(0, ErrorCode.invalid_request)])
    assert end(kafka, me) == ErrorCode.none
