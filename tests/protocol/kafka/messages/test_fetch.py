from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import fetch
from protocol.kafka.messages.fetch import FetchRequest, PartitionData
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.schema import control
from tests.loops import loop_over
from tests.protocol.kafka.message_strategies import (
    REQUEST,
    few_examples,
    instance,
    mappings,
    read_by_kio,
    schema_of,
    written_by_kio,
)

VERSIONS = range(fetch.MIN_VERSION, fetch.MAX_VERSION + 1)
TOPIC: list[str | bytes] = ["t", b"t" * 16]
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
every_version = loop_over("version", VERSIONS)
every_client_version = loop_over("version", range(fetch.CLIENT_MIN_VERSION, fetch.CLIENT_MAX_VERSION + 1))


def id_of(name: str) -> UUID:
    """An id for each name."""
    return uuid5(NAMESPACE_URL, name)


def named(topic: Any) -> str | bytes:
    """A topic's identity in a message of kio: its name, or its id."""
    if hasattr(topic, "topic"):
        return str(topic.topic)
    return bytes(16) if topic.topic_id is None else bytes(topic.topic_id.bytes)


def same_as_kio(request: FetchRequest, version: int, body: bytes) -> None:
    message = read_by_kio(schema_of(REQUEST, ApiKey.FETCH, version), body)
    replica_id = message.replica_id if version < 15 else message.replica_state.replica_id
    assert (version >= fetch.FIRST_WITH_TOPIC_ID) == request.by_id
    assert (replica_id, message.min_bytes, message.max_bytes, message.isolation_level) == (
        request.replica_id,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
    )
    assert control.milliseconds(message.max_wait) == request.max_wait_ms
    assert (getattr(message, "session_id", 0), getattr(message, "session_epoch", -1)) == (
        request.session_id,
        request.session_epoch,
    )
    assert (getattr(message, "rack_id", ""), getattr(message, "cluster_id", None)) == (
        request.rack_id,
        request.cluster_id,
    )
    assert request.partitions == [
        (
            named(topic),
            data.partition,
            getattr(data, "current_leader_epoch", -1),
            data.fetch_offset,
            getattr(data, "log_start_offset", -1),
            data.partition_max_bytes,
            getattr(data, "last_fetched_epoch", -1),
        )
        for topic in message.topics
        for data in topic.partitions
    ]
    assert request.forgotten == [
        (named(topic), partition)
        for topic in getattr(message, "forgotten_topics_data", ())
        for partition in topic.partitions
    ]


def one_partition(version: int, topic: str, **more: Any) -> bytes:
    partition = {
        "partition": 3,
        "current_leader_epoch": 4,
        "fetch_offset": 1 << 40,
        "last_fetched_epoch": 6,
        "log_start_offset": 7,
        "partition_max_bytes": 1 << 20,
    }
    fields = {"max_wait": 500, "min_bytes": 1, "max_bytes": 1 << 22, "isolation_level": 1, "session_epoch": -1} | more
    frame = control.encode_request(
        ApiKey.FETCH,
        version,
        1,
        "c",
        fields | {"topics": [{"topic": topic, "topic_id": id_of(topic), "partitions": [partition]}]},
    )
    return frame[parse_request_header(frame).body_offset :]


@every_version
def test_any_request_is_read_as_kio_reads_it(version: int) -> None:
    cls = schema_of(REQUEST, ApiKey.FETCH, version)

    @few_examples
    @given(mappings(cls), st.binary(max_size=5))
    def check(fields: dict[str, Any], before: bytes) -> None:
        body = written_by_kio(instance(cls, fields))
        same_as_kio(fetch.parse_request(memoryview(body), version), version, body)
        same_as_kio(fetch.parse_request(memoryview(before + body), version, len(before)), version, body)

    check()


@every_version
@few_examples
@given(topic=st.text(max_size=200), rack=st.just("") | st.text(max_size=4))
def test_one_partition_request_is_parsed_as_by_kio(version: int, topic: str, rack: str) -> None:
    body = one_partition(version, topic, rack_id=rack)
    same_as_kio(fetch.parse_request(memoryview(body), version), version, body)


@loop_over("version", range(12, fetch.MAX_VERSION + 1))
@loop_over("size", [0, 1, 33, 60])
def test_partition_is_not_parsed_from_tags_of_another(version: int, size: int) -> None:
    partition = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 2}
    frame = control.encode_request(
        *(ApiKey.FETCH, version, 1, None),
        {"topics": [{"topic": "t", "topic_id": id_of("t"), "partitions": [partition] * 2}]},
    )
    body = frame[parse_request_header(frame).body_offset :]
    # The first partition ends with its number of tags; a tag of `size` bytes replaces none.
    end = body.index((2).to_bytes(4, "big") + b"\0") + 4
    cut = body[:end] + bytes([1, 9, size]) + body[end + 1 :]
    if size == 0:
        assert len(fetch.parse_request(memoryview(cut), version).partitions) == 2
        return
    with pytest.raises(ProtocolError):
        fetch.parse_request(memoryview(cut), version)


@every_version
def test_a_request_for_nothing_is_read(version: int) -> None:
    frame = control.encode_request(ApiKey.FETCH, version, 1, None, {"topics": []})
    request = fetch.parse_request(memoryview(frame), version, parse_request_header(frame).body_offset)
    assert request.partitions == []


@every_version
def test_each_truncation_is_a_protocol_error(version: int) -> None:
    body = one_partition(version, "topic")
    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            fetch.parse_request(memoryview(body[:size]), version)


@every_version
@few_examples
@given(st.data())
def test_mutations_take_general_path_or_are_refused(version: int, data: st.DataObject) -> None:
    body = bytearray(one_partition(version, "topic"))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    view = memoryview(body)
    try:
        fast: object = fetch.parse_request(view, version)
    except ProtocolError:
        fast = None
    try:
        general: object = fetch._parse_any(fetch.Reader(view), version)
    except ProtocolError:
        general = None
    assert general == fast


@every_version
@few_examples
@given(st.binary(max_size=120))
def test_any_bytes_raise_nothing_but_protocol_errors(version: int, body: bytes) -> None:
    try:
        fetch.parse_request(memoryview(body), version)
    except ProtocolError:
        pass


DATA = st.builds(
    lambda parts, **rest: PartitionData(records_size=sum(map(len, parts)), records_parts=parts, **rest),
    partition=INT32,
    error=st.sampled_from([int(code) for code in ErrorCode]),
    high_watermark=INT64,
    last_stable_offset=INT64,
    log_start_offset=INT64,
    aborted=st.none() | st.lists(st.tuples(INT64, INT64), max_size=2),
    parts=st.lists(st.binary(min_size=1, max_size=20) | st.sampled_from([bytes(130), bytes(20000)]), max_size=3),
)
TOPICS = st.lists(
    st.tuples(st.sampled_from(["", "a", "x" * 126, "x" * 127, "x" * 128, "ü"]), st.lists(DATA, max_size=3)),
    max_size=3,
)


def response_fields(topics: list[tuple[str | bytes, list[PartitionData]]]) -> list[dict[str, Any]]:
    return [
        {
            "topic_id" if isinstance(topic, bytes) else "topic": UUID(bytes=topic)
            if isinstance(topic, bytes)
            else topic,
            "partitions": [
                {
                    "partition_index": data.partition,
                    "error_code": data.error,
                    "high_watermark": data.high_watermark,
                    "last_stable_offset": data.last_stable_offset,
                    "log_start_offset": data.log_start_offset,
                    "aborted_transactions": None
                    if data.aborted is None
                    else [{"producer_id": producer, "first_offset": first} for producer, first in data.aborted],
                    "preferred_read_replica": -1,
                    "records": b"".join(data.records_parts),
                }
                for data in partitions
            ],
        }
        for topic, partitions in topics
    ]


@every_version
@few_examples
@given(TOPICS | st.tuples(st.tuples(st.just("t"), st.tuples(DATA))).map(list), INT32, INT32, INT16, INT32)
def test_a_response_is_written_as_the_schema_says(
    version: int,
    topics: list[tuple[str | bytes, list[PartitionData]]],
    number: int,
    throttle_ms: int,
    error: int,
    session_id: int,
) -> None:
    if version >= fetch.FIRST_WITH_TOPIC_ID:
        topics = [(id_of(str(topic)).bytes, partitions) for topic, partitions in topics]
    fields = {
        "throttle_time": throttle_ms,
        "error_code": error,
        "session_id": session_id,
        "responses": response_fields(topics),
    }
    # test_control.py compares control's writer with kio's.
    expected = control.encode_response(ApiKey.FETCH, version, number, fields)
    assert expected == b"".join(fetch.response_parts(number, version, throttle_ms, error, session_id, topics))


@every_version
@pytest.mark.parametrize("count", [1, 2])
def test_records_pass_through_untouched(version: int, count: int) -> None:
    class Region:
        """A part like a region of a file: its bytes cannot be read here."""

    regions = [Region(), Region()]
    partitions = [PartitionData(i, 0, 9, 9, 0, None, 1000, regions) for i in range(count)]
    parts = fetch.response_parts(1, version, 0, 0, 0, [(TOPIC[version >= 13], partitions)])
    assert regions * count == [part for part in parts if isinstance(part, Region)]
    total = sum(len(part) for part in parts if isinstance(part, bytes)) + 1000 * count
    assert parts[0][:4] == (total - 4).to_bytes(4, "big")


@every_version
def test_a_partition_without_records_adds_no_part(version: int) -> None:
    empty = PartitionData(0, 0, 9, 9, 0, None, 0, [])
    topic = TOPIC[version >= 13]
    assert len(fetch.response_parts(1, version, 0, 0, 0, [(topic, [empty])])) == 1
    assert len(fetch.response_parts(1, version, 0, 0, 0, [(topic, [empty, empty])])) == 1


# -- the client's side ------------------------------------------------------------------------------------------------

COUNT = st.integers(0, 2**31 - 1)
TOPIC_ID = st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number))


@every_client_version
@few_examples
@given(st.data())
def test_client_request_matches_kafka_schema(version: int, data: st.DataObject) -> None:
    topic: Any = data.draw(TOPIC_ID if version >= 13 else st.text(max_size=200))
    partition, offset = data.draw(INT32), data.draw(INT64)
    wait, least, most, level = data.draw(COUNT), data.draw(INT32), data.draw(INT32), data.draw(st.integers(0, 1))
    frame = fetch.request(
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
        (getattr(requested, "topic_id" if version >= 13 else "topic"), requested.partitions)
        for requested in message.topics
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


@every_client_version
@few_examples
@given(
    st.lists(st.tuples(st.text(max_size=10), TOPIC_ID, st.lists(PARTITION, max_size=3)), max_size=3), COUNT, st.data()
)
def test_an_answer_reads_as_it_was_written(
    version: int, topics: list[tuple[str, UUID, list[dict[str, Any]]]], throttle: int, data: st.DataObject
) -> None:
    error = data.draw(st.sampled_from([0, 70])) if version >= 7 else 0
    frame = answer(version, topics, throttle_time=throttle, error_code=error)
    parsed = fetch.parse_response(frame, version)
    assert (5, throttle, error) == parsed[:3]
    assert [
        (
            topic_id if version >= 13 else name,
            fetched["partition_index"],
            fetched["error_code"],
            fetched["high_watermark"],
            fetched["last_stable_offset"],
            fetched["log_start_offset"] if version >= 5 else -1,
            None
            if fetched["aborted_transactions"] is None
            else [(each["producer_id"], each["first_offset"]) for each in fetched["aborted_transactions"]],
            fetched["records"],
        )
        for name, topic_id, partitions in topics
        for fetched in partitions
    ] == [(*fetched[:7], bytes(fetched.records)) for fetched in parsed.partitions]


@every_client_version
@few_examples
@given(st.binary(max_size=64), st.lists(PARTITION, min_size=1, max_size=2), st.data())
def test_invalid_response_bytes_raise_only_protocol_error(
    version: int, noise: bytes, partitions: list[dict[str, Any]], data: st.DataObject
) -> None:
    frame = bytearray(answer(version, [("t", UUID(int=1), partitions)]))
    at = data.draw(st.integers(4, len(frame)))
    frame[at : at + len(noise)] = noise
    for cut in (frame, frame[:at]):
        try:
            fetch.parse_response(bytes(cut), version)
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
    (partition,) = fetch.parse_response(frame, 12).partitions
    frame[frame.index(b"abc")] = ord("x")
    assert b"xbc" == partition.records
