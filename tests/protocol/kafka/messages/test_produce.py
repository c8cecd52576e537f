import tracemalloc
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import produce
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.messages.produce import PartitionResult, ProduceRequest
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

VERSIONS = range(produce.MIN_VERSION, produce.MAX_VERSION + 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
every_version = loop_over("version", VERSIONS)
every_client_version = loop_over("version", range(produce.CLIENT_MIN_VERSION, produce.CLIENT_MAX_VERSION + 1))

# Around the limits of what one, two, three and four bytes of a length can say.
SIZES = st.sampled_from([0, 1, 100, 126, 127, 128, 16382, 16383, 16384, 2097150, 2097151, 2097152])


def id_of(name: str) -> UUID:
    """An id for each name."""
    return uuid5(NAMESPACE_URL, name)


def named(topic: Any) -> str | bytes:
    """What a topic is called in a message of kio: its name, or its id."""
    if hasattr(topic, "name"):
        return str(topic.name)
    return bytes(16) if topic.topic_id is None else bytes(topic.topic_id.bytes)


def one_partition(version: int, topic: str, records: bytes, partition: int = 3) -> bytes:
    topics = [{"name": topic, "topic_id": id_of(topic), "partition_data": [{"index": partition, "records": records}]}]
    frame = control.encode_request(
        ApiKey.PRODUCE, version, 1, None, {"acks": -1, "timeout": 1500, "topic_data": topics}
    )
    return frame[parse_request_header(frame).body_offset :]


def flat(request: ProduceRequest) -> list[tuple[str | bytes, int, bytes | None]]:
    return [(topic, index, None if records is None else bytes(records)) for topic, index, records in request.topics]


def same_as_kio(request: ProduceRequest, version: int, body: bytes) -> None:
    message = read_by_kio(schema_of(REQUEST, ApiKey.PRODUCE, version), body)
    assert (message.acks, message.transactional_id) == (request.acks, request.transactional_id)
    assert control.milliseconds(message.timeout) == request.timeout_ms
    assert flat(request) == [
        (named(topic), data.index, data.records) for topic in message.topic_data for data in topic.partition_data
    ]


@every_version
def test_any_request_is_read_as_kio_reads_it(version: int) -> None:
    cls = schema_of(REQUEST, ApiKey.PRODUCE, version)

    @few_examples
    @given(mappings(cls), st.binary(max_size=5))
    def check(fields: dict[str, Any], before: bytes) -> None:
        body = written_by_kio(instance(cls, fields))
        same_as_kio(produce.parse_request(memoryview(body), version), version, body)
        same_as_kio(produce.parse_request(memoryview(before + body), version, len(before)), version, body)

    check()


@every_version
@few_examples
@given(size=SIZES, topic=st.text(min_size=0, max_size=200), partition=INT32)
def test_one_partition_request_is_parsed_as_by_kio(version: int, size: int, topic: str, partition: int) -> None:
    body = one_partition(version, topic, bytes(size), partition)
    same_as_kio(produce.parse_request(memoryview(body), version), version, body)


@every_version
def test_records_are_views_of_the_request(version: int) -> None:
    body = bytearray(one_partition(version, "t", b"records"))
    ((_, _, records),) = produce.parse_request(memoryview(body), version).topics
    assert records is not None
    records[0] = ord("R")
    assert b"Records" in body


@every_version
def test_bytes_after_the_request_change_nothing(version: int) -> None:
    body = one_partition(version, "t", b"records")
    expected = produce.parse_request(memoryview(body), version)
    assert expected == produce.parse_request(memoryview(body + b"more"), version)


@every_version
@few_examples
@given(st.data())
def test_each_truncation_is_a_protocol_error(version: int, data: st.DataObject) -> None:
    two = data.draw(st.booleans())
    if two:
        topics = [
            {"name": name, "topic_id": id_of(name), "partition_data": [{"index": 1, "records": b"abc"}]}
            for name in "ab"
        ]
        frame = control.encode_request(ApiKey.PRODUCE, version, 1, None, {"topic_data": topics})
        body = frame[parse_request_header(frame).body_offset :]
    else:
        body = one_partition(version, data.draw(st.text(max_size=5)), data.draw(st.binary(max_size=300)))
    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            produce.parse_request(memoryview(body[:size]), version)


@every_version
@few_examples
@given(st.data())
def test_mutations_take_general_path_or_are_refused(version: int, data: st.DataObject) -> None:
    body = bytearray(one_partition(version, "topic", bytes(data.draw(st.integers(0, 300)))))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, min(len(body) - 1, 60)) | st.integers(0, len(body) - 1))
        body[position] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    view = memoryview(body)
    try:
        fast: object = produce.parse_request(view, version)
    except ProtocolError:
        fast = None
    try:
        general: object = produce._parse_any(produce.Reader(view), version)
    except ProtocolError:
        general = None
    assert general == fast


@every_version
@few_examples
@given(st.binary(max_size=80))
def test_any_bytes_raise_nothing_but_protocol_errors(version: int, body: bytes) -> None:
    try:
        produce.parse_request(memoryview(body), version)
    except ProtocolError:
        pass


@every_version
def test_lengths_that_lie_allocate_nothing(version: int) -> None:
    lies = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f"]
    body = one_partition(version, "topic", bytes(50))
    tracemalloc.start()
    try:
        for position in range(len(body) - 54):
            for lie in lies:
                view = memoryview(body[:position] + lie + body[position + len(lie) :])
                try:
                    produce.parse_request(view, version)
                except ProtocolError:
                    pass
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


RESULTS = st.builds(
    PartitionResult,
    topic=st.sampled_from(["a", "b", "topic-" + "x" * 119, "topic-" + "x" * 120, "topic-" + "x" * 121, "ü"]),
    partition=INT32,
    error=st.sampled_from([int(code) for code in ErrorCode]),
    base_offset=INT64,
    log_append_time_ms=st.just(-1) | st.integers(0, 2**42),
    log_start_offset=INT64,
    error_message=st.none() | st.text(max_size=5),
    record_errors=st.just([]) | st.lists(st.tuples(INT32, st.none() | st.text(max_size=5)), max_size=2),
)


def of_version(version: int, results: list[PartitionResult]) -> list[PartitionResult]:
    """With ids in place of names, where the version has them."""
    if version < produce.FIRST_WITH_TOPIC_ID:
        return results
    return [result._replace(topic=id_of(str(result.topic)).bytes) for result in results]


def response_fields(results: list[PartitionResult], throttle_ms: int) -> dict[str, Any]:
    topics: dict[str | bytes, list[dict[str, Any]]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(
            {
                "index": result.partition,
                "error_code": result.error,
                "base_offset": result.base_offset,
                "log_append_time": result.log_append_time_ms,
                "log_start_offset": result.log_start_offset,
                "record_errors": [
                    {"batch_index": index, "batch_index_error_message": message}
                    for index, message in result.record_errors
                ],
                "error_message": result.error_message,
            }
        )
    responses = [
        {"topic_id" if isinstance(topic, bytes) else "name": UUID(bytes=topic) if isinstance(topic, bytes) else topic}
        | {"partition_responses": entries}
        for topic, entries in topics.items()
    ]
    return {"responses": responses, "throttle_time": throttle_ms}


@every_version
@few_examples
@given(st.lists(RESULTS, max_size=4), INT32, INT32)
def test_a_response_is_written_as_the_schema_says(
    version: int, results: list[PartitionResult], number: int, throttle_ms: int
) -> None:
    results = of_version(version, results)
    # control's writer is the one that test_control.py holds against kio's.
    expected = control.encode_response(ApiKey.PRODUCE, version, number, response_fields(results, throttle_ms))
    assert expected == produce.response(number, version, results, throttle_ms)


@every_version
@few_examples
@given(RESULTS)
def test_response_for_one_partition_matches_the_schema(version: int, result: PartitionResult) -> None:
    (plain,) = of_version(version, [result._replace(error_message=None, record_errors=())])
    expected = control.encode_response(ApiKey.PRODUCE, version, 9, response_fields([plain], 0))
    assert expected == produce.response(9, version, [plain])


@every_client_version
@few_examples
@given(st.lists(RESULTS, min_size=1, max_size=3, unique_by=lambda result: result.topic))
def test_a_client_reads_what_the_broker_wrote(version: int, results: list[PartitionResult]) -> None:
    number, found = produce.parse_response(memoryview(produce.response(7, version, results)), version)
    blank: dict[str, Any] = {}
    if version < 8:
        blank |= {"error_message": None, "record_errors": []}
    if version < 5:
        blank |= {"log_start_offset": -1}
    assert (number, found) == (7, [result._replace(**blank) for result in results])


@pytest.mark.parametrize("version", [3, 8, 9])
def test_truncated_responses_raise_protocol_error(version: int) -> None:
    frame = produce.response(7, version, [PartitionResult("t", 1, error_message="no", record_errors=[(0, "bad")])])
    for size in range(len(frame)):
        # The throttle time at the end is nothing a client here looks at.
        if size < len(frame) - 7:
            with pytest.raises(ProtocolError):
                produce.parse_response(memoryview(frame[:size]), version)


# -- the client's side ------------------------------------------------------------------------------------------------

BATCHES = st.dictionaries(
    st.tuples(st.sampled_from(["a", "topic", "ü" * 60]), st.integers(0, 2**31 - 1)),
    st.binary(min_size=1, max_size=300),
    min_size=1,
    max_size=5,
)


@every_client_version
@few_examples
@given(BATCHES, st.none() | st.text(max_size=20), st.sampled_from([-1, 0, 1]), st.integers(0, 2**31 - 1))
def test_client_request_parts_match_kafka_schema(
    version: int, batches: dict[tuple[str, int], bytes], name: str | None, acks: int, timeout: int
) -> None:
    listed = [(topic, partition, data) for (topic, partition), data in batches.items()]
    parts = produce.request_parts(7, "me", version, name, acks, timeout, listed)
    frame = b"".join(parts)
    assert len(frame) - 4 == int.from_bytes(frame[:4], "big")
    header = parse_request_header(frame)
    assert (ApiKey.PRODUCE, version, 7, "me") == header[:4]
    message = read_by_kio(schema_of(REQUEST, ApiKey.PRODUCE, version), frame[header.body_offset :])
    assert (name, acks, timeout) == (message.transactional_id, message.acks, control.milliseconds(message.timeout))
    read = {(topic.name, one.index): bytes(one.records) for topic in message.topic_data for one in topic.partition_data}
    assert batches == read


def test_batches_go_out_as_they_are() -> None:
    batch = bytearray(b"records")
    parts = produce.request_parts(1, None, 9, None, -1, 0, [("t", 0, batch)])
    assert any(part is batch for part in parts)


@pytest.mark.parametrize("version", range(10, 13))
def test_answers_with_tags_of_later_versions_are_parsed(version: int) -> None:
    partition = {
        "index": 3,
        "error_code": 6,
        "base_offset": -1,
        "log_start_offset": 2,
        "current_leader": {"leader_id": 1, "leader_epoch": 2},
    }
    fields = {
        "responses": [{"name": "t", "partition_responses": [partition]}],
        "node_endpoints": [{"node_id": 1, "host": "h", "port": 1, "rack": None}],
    }
    frame = control.encode_response(ApiKey.PRODUCE, version, 9, fields)
    correlation_id, results = produce.parse_response(memoryview(frame), version)
    assert (9, [("t", 3, 6, -1)]) == (correlation_id, [one[:4] for one in results])
