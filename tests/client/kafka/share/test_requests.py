"""The requests of share groups as a broker reads them, and its answers as the client does."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from broker.client.kafka.share import requests
from broker.client.kafka.share.requests import FetchLimits, FetchPlan
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.schema import control

JOBS, MORE = UUID(int=1), UUID(int=2)
LIMITS = FetchLimits(500, 1, 1000, 10, strict=True)


def as_read(key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
    frame = control.encode_request(key, version, 7, "client", fields)
    header = parse_request_header(frame)
    assert (header.api_key, header.api_version) == (key, version)
    return control.parse_request(key, version, frame[header.body_offset :])


@pytest.mark.parametrize("version", [1, 2])
def test_fetch_names_additions_decisions_and_removals(version: int) -> None:
    plan = FetchPlan(4, ((JOBS, 0), (JOBS, 1)), ((MORE, 2),))
    acknowledgements = {(JOBS, 1): [(5, 6, b"\1"), (8, 9, b"\2\3")], (MORE, 0): [(1, 1, b"\0")]}
    read = as_read(
        ApiKey.SHARE_FETCH, version, requests.share_fetch(version, "group", "member", plan, acknowledgements, LIMITS)
    )
    assert (read.group_id, read.member_id, read.share_session_epoch) == ("group", "member", 4)
    assert (read.max_wait, read.max_records) == (timedelta(milliseconds=500), 10)
    named = {
        (topic.topic_id, partition.partition_index): [
            (batch.first_offset, batch.last_offset, batch.acknowledge_types)
            for batch in partition.acknowledgement_batches
        ]
        for topic in read.topics
        for partition in topic.partitions
    }
    assert named == {
        (JOBS, 0): [],
        (JOBS, 1): [(5, 6, (1,)), (8, 9, (2, 3))],
        (MORE, 0): [(1, 1, (0,))],
    }
    assert [(topic.topic_id, topic.partitions) for topic in read.forgotten_topics_data] == [(MORE, (2,))]
    if version == 2:
        assert read.share_acquire_mode == 1


@pytest.mark.parametrize("version", [1, 2])
def test_fetch_answer_is_read(version: int) -> None:
    data = {
        "partition_index": 3,
        "error_code": 0,
        "acknowledge_error_code": 121,
        "acknowledge_error_message": "no",
        "current_leader": {"leader_id": -1, "leader_epoch": -1},
        "records": b"batch",
        "acquired_records": [{"first_offset": 5, "last_offset": 8, "delivery_count": 2}],
    }
    fields = {
        "throttle_time": 2000,
        "error_code": 0,
        "acquisition_lock_timeout": 30_000,
        "responses": [{"topic_id": JOBS, "partitions": [data]}],
        "node_endpoints": [],
    }
    frame = control.encode_response(ApiKey.SHARE_FETCH, version, 9, fields)
    correlation_id, answer = requests.read_fetched(version, memoryview(frame))
    assert (correlation_id, answer.throttle_s, answer.lock_s) == (9, 2.0, 30.0)
    (partition,) = answer.partitions
    assert partition.partition == (JOBS, 3)
    assert (partition.error, partition.acknowledge_error, partition.message) == (0, 121, "no")
    assert (bytes(partition.records), partition.acquired) == (b"batch", ((5, 8, 2),))


@pytest.mark.parametrize(
    "ranges", [[(5, 4)], [(0, 3), (3, 4)], [(-2, 3)], [(0, 1 << 20)], [(0, 1 << 19), (1 << 20, 2 << 20)]]
)
def test_absurdly_many_acquired_records_are_an_error(ranges: list[tuple[int, int]]) -> None:
    data = {
        "partition_index": 0,
        "acquired_records": [{"first_offset": f, "last_offset": t, "delivery_count": 1} for f, t in ranges],
    }
    fields = {"responses": [{"topic_id": JOBS, "partitions": [data]}]}
    frame = control.encode_response(ApiKey.SHARE_FETCH, 1, 9, fields)
    with pytest.raises(ProtocolError, match="acquired records"):
        requests.read_fetched(1, memoryview(frame))


def test_acquired_records_of_many_partitions_are_bounded_too() -> None:
    ranges = [{"first_offset": 0, "last_offset": (1 << 20) - 1, "delivery_count": 1}]
    partitions = [{"partition_index": index, "acquired_records": ranges} for index in range(5)]
    fields = {"responses": [{"topic_id": JOBS, "partitions": partitions}]}
    frame = control.encode_response(ApiKey.SHARE_FETCH, 1, 9, fields)
    with pytest.raises(ProtocolError, match="acquired records in one answer"):
        requests.read_fetched(1, memoryview(frame))


@pytest.mark.parametrize("version", [1, 2])
def test_acknowledgements_and_their_answer(version: int) -> None:
    fields = requests.share_acknowledge(version, "group", "member", -1, {(JOBS, 3): [(5, 6, b"\4")]}, renewal=True)
    read = as_read(ApiKey.SHARE_ACKNOWLEDGE, version, fields)
    assert read.share_session_epoch == -1
    assert read.topics[0].partitions[0].acknowledgement_batches[0].acknowledge_types == (4,)
    if version == 2:
        assert read.is_renew_ack
    data = {"partition_index": 3, "error_code": 121, "error_message": "too late"}
    answered = {
        "error_code": 0,
        "acquisition_lock_timeout": 1500,
        "responses": [{"topic_id": JOBS, "partitions": [data]}],
    }
    frame = control.encode_response(ApiKey.SHARE_ACKNOWLEDGE, version, 9, answered)
    _, answer = requests.read_acknowledged(version, memoryview(frame))
    assert answer.lock_s == (1.5 if version == 2 else 0.0)
    assert [(partition.partition, partition.acknowledge_error) for partition in answer.partitions] == [((JOBS, 3), 121)]
