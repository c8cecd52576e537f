"""Transactions over a raw connection, in any version."""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka_connection import fetch_fields, produce_fields

_names = itertools.count()


class Me(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int


def begin(kafka: Kafka, timeout_ms: int = 60_000, name: str | None = None) -> Me:
    name = name or f"txn-{next(_names)}"
    answer = kafka.ask(ApiKey.INIT_PRODUCER_ID, 2, transactional_id=name, transaction_timeout=timeout_ms)
    assert answer.error_code == ErrorCode.none
    return Me(name, answer.producer_id, answer.producer_epoch)


def fields(me: Me) -> dict[str, Any]:
    return {"transactional_id": me.transactional_id, "producer_id": me.producer_id, "producer_epoch": me.epoch}


def add_partitions(
    kafka: Kafka, me: Me, topic: str, partitions: Iterable[int] = (0,), version: int = 3, verify_only: bool = False
) -> list[int]:
    topics = [{"name": topic, "partitions": list(partitions)}]
    answer = kafka.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        version,
        v3_and_below_transactional_id=me.transactional_id,
        v3_and_below_producer_id=me.producer_id,
        v3_and_below_producer_epoch=me.epoch,
        v3_and_below_topics=topics,
        transactions=[fields(me) | {"verify_only": verify_only, "topics": topics}],
    )
    if version >= 4:
        assert answer.error_code == ErrorCode.none
        ((of_topic,),) = [each.topic_results for each in answer.results_by_transaction]
    else:
        (of_topic,) = answer.results_by_topic_v3_and_below
    assert of_topic.name == topic
    return [one.partition_error_code for one in of_topic.results_by_partition]


def add_offsets(kafka: Kafka, me: Me, group: str, version: int = 3) -> ErrorCode:
    error: ErrorCode = kafka.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, **fields(me), group_id=group).error_code
    return error


def commit_offsets(
    kafka: Kafka, me: Me, group: str, topic: str, offset: int, version: int = 3, partition: int = 0, **more: Any
) -> ErrorCode:
    one = {"partition_index": partition, "committed_offset": offset}
    request = {
        "group_id": group,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [one | {"committed_metadata": more.pop("metadata", None)}]}],
    }
    answer = kafka.ask(ApiKey.TXN_OFFSET_COMMIT, version, **fields(me), **request | more)
    ((error,),) = [[one.error_code for one in topic.partitions] for topic in answer.topics]
    return ErrorCode(error)


def end_and_bump(kafka: Kafka, me: Me, commit: bool = True) -> Me:
    """The producer as it is after the end of its transaction, by transactions version 2."""
    answer = kafka.ask(ApiKey.END_TXN, 5, **fields(me), committed=commit)
    assert answer.error_code == ErrorCode.none
    return me._replace(producer_id=answer.producer_id, epoch=answer.producer_epoch)


def end(kafka: Kafka, me: Me, commit: bool = True, version: int = 3) -> ErrorCode:
    error: ErrorCode = kafka.ask(ApiKey.END_TXN, version, **fields(me), committed=commit).error_code
    return error


def write(
    kafka: Kafka,
    me: Me,
    topic: str,
    value: bytes = b"v",
    *,
    sequence: int = 0,
    version: int = 9,
    attributes: int = TRANSACTIONAL,
    **more: Any,
) -> int:
    """The error code."""
    batch = build_batch(
        [(None, value, [], kafka.inside.clock.time_ms())],
        producer_id=me.producer_id,
        producer_epoch=me.epoch,
        base_sequence=sequence,
        attributes=attributes,
    )
    request = produce_fields(topic, batch, transactional_id=me.transactional_id, timeout=1000)
    answer = kafka.ask(ApiKey.PRODUCE, version, **request | more)
    ((error,),) = [[response.error_code for response in topic.partition_responses] for topic in answer.responses]
    return int(error)


def fetch(
    kafka: Kafka, topic: str, level: int, version: int = 12
) -> tuple[int, int, int, list[tuple[int, int]] | None]:
    """Size of the records, high watermark, last stable offset, aborted transactions."""
    answer = kafka.ask(ApiKey.FETCH, version, **fetch_fields(topic, min_bytes=0, isolation_level=level))
    ((one,),) = [topic.partitions for topic in answer.responses]
    aborted = one.aborted_transactions
    listed = None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted]
    return len(one.records or b""), one.high_watermark, one.last_stable_offset, listed
