from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import client_fetch
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from tests.protocol.kafka.message_strategies import REQUEST, read_by_kio, schema_of

VERSIONS = range(client_fetch.MIN_VERSION, client_fetch.MAX_VERSION + 1)
every_version = pytest.mark.parametrize("version", VERSIONS)

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
COUNT = st.integers(0, 2**31 - 1)
TOPIC_ID = st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number))


@every_version
@given(st.data())
def test_a_request_says_what_kafka_s_schema_reads(version: int, data: st.DataObject) -> None:
    topic: Any = data.draw(TOPIC_ID if version >= 13 else st.text(max_size=200))
    partition, offset = data.draw(INT32), data.draw(INT64)
    wait, least, most, level = data.draw(COUNT), data.draw(INT32), data.draw(INT32), data.draw(st.integers(0, 1))
    frame = client_fetch.request(
        7,
        "me",
        version,
        topic,
        partition,
        offset,
        max_wait_ms=wait,
        min_bytes=least,
        max_bytes=most,
        isolation_level=level,
    )
    assert len(frame) - 4 == int.from_bytes(frame[:4], "big")
    header = parse_request_header(frame)
    assert (ApiKey.FETCH, version, 7, "me") == header[:4]
    message = read_by_kio(schema_of(REQUEST, ApiKey.FETCH, version), frame[header.body_offset :])
    assert (wait, least, most, level) == (
        control.milliseconds(message.max_wait),
        message.min_bytes,
        message.max_bytes,
        message.isolation_level,
    )
    assert (0, -1) == (getattr(message, "session_id", 0), getattr(message, "session_epoch", -1))
    ((name, (wanted,)),) = [
        (getattr(one, "topic_id" if version >= 13 else "topic"), one.partitions) for one in message.topics
    ]
    assert (topic, partition, offset, most) == (
        name,
        wanted.partition,
        wanted.fetch_offset,
        wanted.partition_max_bytes,
    )
    assert (-1, -1, -1) == (
        getattr(wanted, "current_leader_epoch", -1),
        getattr(wanted, "last_fetched_epoch", -1),
        getattr(wanted, "log_start_offset", -1),
    )
    assert -1 == (message.replica_id if version < 15 else message.replica_state.replica_id)


PARTITION = st.fixed_dictionaries(
    {
        "partition_index": INT32,
        "error_code": st.sampled_from([0, 1, 3, 6]),
        "high_watermark": INT64,
        "last_stable_offset": INT64,
        "log_start_offset": INT64,
        "aborted_transactions": st.none()
        | st.lists(st.fixed_dictionaries({"producer_id": INT64, "first_offset": INT64}), max_size=3),
        "records": st.binary(max_size=300),
    }
)


@every_version
@given(
    st.lists(st.tuples(st.text(max_size=10), TOPIC_ID, st.lists(PARTITION, max_size=3)), max_size=3), COUNT, st.data()
)
def test_an_answer_reads_as_it_was_written(
    version: int, topics: list[tuple[str, UUID, list[dict[str, Any]]]], throttle: int, data: st.DataObject
) -> None:
    error = data.draw(st.sampled_from([0, 70])) if version >= 7 else 0
    frame = answer(version, topics, throttle_time=throttle, error_code=error)
    parsed = client_fetch.parse_response(frame, version)
    assert (5, throttle, error) == parsed[:3]
    assert [
        (
            topic_id if version >= 13 else name,
            one["partition_index"],
            one["error_code"],
            one["high_watermark"],
            one["last_stable_offset"],
            one["log_start_offset"] if version >= 5 else -1,
            None
            if one["aborted_transactions"] is None
            else [(each["producer_id"], each["first_offset"]) for each in one["aborted_transactions"]],
            one["records"],
        )
        for name, topic_id, partitions in topics
        for one in partitions
    ] == [(*one[:7], bytes(one.records)) for one in parsed.partitions]


@every_version
@given(st.binary(max_size=64), st.lists(PARTITION, min_size=1, max_size=2), st.data())
def test_bad_bytes_are_a_protocol_error_and_nothing_else(
    version: int, noise: bytes, partitions: list[dict[str, Any]], data: st.DataObject
) -> None:
    frame = bytearray(answer(version, [("t", UUID(int=1), partitions)]))
    at = data.draw(st.integers(4, len(frame)))
    frame[at : at + len(noise)] = noise
    for cut in (frame, frame[:at]):
        try:
            client_fetch.parse_response(bytes(cut), version)
        except ProtocolError:
            pass


def answer(version: int, topics: list[tuple[str, UUID, list[dict[str, Any]]]], **fields: Any) -> bytes:
    key = "topic_id" if version >= 13 else "topic"
    responses = [
        {key: topic_id if version >= 13 else name, "partitions": partitions} for name, topic_id, partitions in topics
    ]
    return control.encode_response(ApiKey.FETCH, version, 5, fields | {"responses": responses})


def test_the_records_of_an_answer_are_not_copied() -> None:
    frame = bytearray(answer(12, [("t", UUID(int=1), [{"records": b"abc", "aborted_transactions": None}])]))
    (partition,) = client_fetch.parse_response(frame, 12).partitions
    frame[frame.index(b"abc")] = ord("x")
    assert b"xbc" == partition.records


# Walking batches ------------------------------------------------------------------------------------------------------

LOGS = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@given(LOGS, st.data())
def test_a_walk_ends_after_the_last_whole_batch(sizes: list[int], data: st.DataObject) -> None:
    log, ends = bytearray(), [(0, -1)]
    offset = 100
    for size in sizes:
        log += build_batch([(None, b"value", [], 0)] * size, base_offset=offset)
        offset += size
        ends.append((len(log), offset))
    cut = data.draw(st.integers(0, len(log)))
    expected = max(end for end in ends if end[0] <= cut)
    assert expected == client_fetch.whole_batches(memoryview(log)[:cut])


@given(st.binary(min_size=61, max_size=200))
def test_a_walk_over_noise_never_goes_beyond_it(noise: bytes) -> None:
    try:
        size, _ = client_fetch.whole_batches(memoryview(noise))
    except ProtocolError:
        return
    assert 0 <= size <= len(noise)


def test_messages_of_format_1_are_refused() -> None:
    batch = build_batch([(None, b"v", [], 0)])
    batch[16] = 1
    with pytest.raises(ProtocolError, match="format 1"):
        client_fetch.whole_batches(memoryview(batch))
