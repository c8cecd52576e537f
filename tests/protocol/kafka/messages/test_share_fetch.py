"""The handwritten codecs of ShareFetch and ShareAcknowledge agree with Kafka's schemas."""

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError, TooManyEntries
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import share_fetch
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.messages.share_fetch import (
    AcknowledgedPartition,
    AcquiredRecords,
    FetchedPartition,
    acknowledge_response,
    fetch_parts,
    parse_acknowledge,
    parse_fetch,
)
from protocol.kafka.schema import control

VERSIONS = range(share_fetch.MIN_VERSION, share_fetch.MAX_VERSION + 1)
IDS = [uuid.UUID(int=number) for number in (1, 2**127 + 3)]
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
BATCHES = st.lists(
    st.fixed_dictionaries(
        {
            "first_offset": INT64,
            "last_offset": INT64,
            "acknowledge_types": st.lists(st.integers(0, 4), max_size=200).map(tuple),
        }
    ),
    max_size=3,
)
TOPICS = st.lists(
    st.fixed_dictionaries(
        {
            "topic_id": st.sampled_from(IDS),
            "partitions": st.lists(
                st.fixed_dictionaries({"partition_index": INT32, "acknowledgement_batches": BATCHES}), max_size=3
            ),
        }
    ),
    max_size=3,
)
SESSION = {"group_id": st.text(max_size=9), "member_id": st.text(max_size=9), "share_session_epoch": INT32}


def body(key: ApiKey, version: int, fields: dict[str, Any]) -> tuple[memoryview, int]:
    frame = memoryview(control.encode_request(key, version, 7, "test", fields))
    return frame, parse_request_header(frame).body_offset


def wanted(topics: list[Any]) -> list[Any]:
    return [
        (
            (topic["topic_id"].bytes, partition["partition_index"]),
            [
                (batch["first_offset"], batch["last_offset"], bytes(batch["acknowledge_types"]))
                for batch in partition["acknowledgement_batches"]
            ],
        )
        for topic in topics
        for partition in topic["partitions"]
    ]


@pytest.mark.parametrize("version", VERSIONS)
@given(
    fields=st.fixed_dictionaries(
        SESSION
        | {
            "max_wait": INT32,
            "min_bytes": INT32,
            "max_bytes": INT32,
            "max_records": INT32,
            "batch_size": INT32,
            "share_acquire_mode": st.integers(-128, 127),
            "is_renew_ack": st.booleans(),
            "topics": TOPICS,
            "forgotten_topics_data": st.lists(
                st.fixed_dictionaries(
                    {"topic_id": st.sampled_from(IDS), "partitions": st.lists(INT32, max_size=3).map(tuple)}
                ),
                max_size=2,
            ),
        }
    )
)
def test_fetch_is_parsed_by_kafka_schema(version: int, fields: dict[str, Any]) -> None:
    view, at = body(ApiKey.SHARE_FETCH, version, fields)
    parsed = parse_fetch(view, version, at)
    assert (
        fields["group_id"],
        fields["member_id"],
        fields["share_session_epoch"],
        fields["max_wait"],
        fields["min_bytes"],
        fields["max_bytes"],
        fields["max_records"],
        fields["batch_size"],
        fields["share_acquire_mode"] if version >= 2 else 0,
        fields["is_renew_ack"] if version >= 2 else False,
    ) == parsed[:10]
    assert wanted(fields["topics"]) == parsed.partitions
    assert [
        (topic["topic_id"].bytes, number) for topic in fields["forgotten_topics_data"] for number in topic["partitions"]
    ] == parsed.forgotten


@pytest.mark.parametrize("version", VERSIONS)
@given(fields=st.fixed_dictionaries(SESSION | {"is_renew_ack": st.booleans(), "topics": TOPICS}))
def test_acknowledgement_is_parsed_by_kafka_schema(version: int, fields: dict[str, Any]) -> None:
    view, at = body(ApiKey.SHARE_ACKNOWLEDGE, version, fields)
    parsed = parse_acknowledge(view, version, at)
    assert (fields["group_id"], fields["member_id"], fields["share_session_epoch"]) == parsed[:3]
    assert (fields["is_renew_ack"] if version >= 2 else False) == parsed.is_renew
    assert wanted(fields["topics"]) == parsed.partitions


def test_acknowledge_types_are_one_entry() -> None:
    batches = [{"first_offset": 0, "last_offset": 999, "acknowledge_types": (1, 2) * 500}]
    topics = [{"topic_id": IDS[0], "partitions": [{"partition_index": 0, "acknowledgement_batches": batches}]}]
    fields = {"group_id": "g", "member_id": "m", "share_session_epoch": 1, "is_renew_ack": False, "topics": topics}
    view, at = body(ApiKey.SHARE_ACKNOWLEDGE, 2, fields)
    assert parse_acknowledge(view, 2, at, max_entries=3)
    with pytest.raises(TooManyEntries):
        parse_acknowledge(view, 2, at, max_entries=2)


@given(st.binary(max_size=200), st.sampled_from(VERSIONS))
def test_other_bytes_are_refused_or_read(data: bytes, version: int) -> None:
    for parse in (parse_fetch, parse_acknowledge):
        try:
            parse(memoryview(data), version, 0, 100)
        except (ProtocolError, TooManyEntries):
            pass


TEXT = st.none() | st.text(max_size=20)
INT16 = st.integers(0, 2**15 - 1)
PARTITIONS = st.lists(
    st.builds(
        FetchedPartition,
        st.tuples(st.sampled_from([topic_id.bytes for topic_id in IDS]), INT32),
        st.integers(0, 100),
        TEXT,
        st.integers(0, 100),
        TEXT,
        st.lists(st.builds(AcquiredRecords, INT64, INT64, INT16), max_size=4),
        st.just(0),
        st.just(()),
    ),
    max_size=5,
)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    partitions=PARTITIONS,
    records=st.lists(st.binary(max_size=300), min_size=5, max_size=5),
    error=st.sampled_from([0, 122]),
)
def test_fetched_partitions_are_encoded_by_kafka_schema(
    version: int, partitions: list[FetchedPartition], records: list[bytes], error: int
) -> None:
    partitions = [
        partition._replace(size=len(data), parts=[data[:3], data[3:]])
        for partition, data in zip(partitions, records, strict=False)
    ]
    frame = b"".join(map(bytes, fetch_parts(7, error, "text", 30_000, partitions)))
    assert len(frame) - 4 == int.from_bytes(frame[:4], "big")
    correlation_id, response = control.parse_response(ApiKey.SHARE_FETCH, version, frame)
    assert (7, error, "text", 30.0) == (
        correlation_id,
        response.error_code,
        response.error_message,
        response.acquisition_lock_timeout.total_seconds(),
    )
    written = {
        (topic.topic_id.bytes, data.partition_index): (
            data.error_code,
            data.error_message,
            data.acknowledge_error_code,
            data.acknowledge_error_message,
            [(each.first_offset, each.last_offset, each.delivery_count) for each in data.acquired_records],
            data.records,
        )
        for topic in response.responses
        for data in topic.partitions
    }
    assert written == {
        partition.partition: (
            partition.error,
            partition.message,
            partition.acknowledge_error,
            partition.acknowledge_message,
            list(map(tuple, partition.acquired)),
            b"".join(partition.parts),
        )
        for partition in partitions
    }


@pytest.mark.parametrize("version", VERSIONS)
@given(
    partitions=st.lists(
        st.builds(
            AcknowledgedPartition,
            st.tuples(st.sampled_from([topic_id.bytes for topic_id in IDS]), INT32),
            st.integers(0, 100),
            TEXT,
        ),
        max_size=5,
    )
)
def test_acknowledgement_response_is_encoded_by_kafka_schema(
    version: int, partitions: list[AcknowledgedPartition]
) -> None:
    frame = acknowledge_response(7, version, 0, None, 15_000, partitions)
    _, response = control.parse_response(ApiKey.SHARE_ACKNOWLEDGE, version, frame)
    written = {
        (topic.topic_id.bytes, data.partition_index): (data.error_code, data.error_message)
        for topic in response.responses
        for data in topic.partitions
    }
    assert written == {partition.partition: (partition.error, partition.message) for partition in partitions}
    if version >= 2:
        assert 15.0 == response.acquisition_lock_timeout.total_seconds()
