import subprocess
import sys
import tracemalloc
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from protocol.errors import ProtocolError
from protocol.frames import framed
from protocol.kafka.api_keys import ApiKey, response_header_version
from protocol.kafka.messages.headers import parse_request_header, response_header
from protocol.kafka.schema import control
from tests.loops import loop_over
from tests.protocol.kafka.message_strategies import (
    MESSAGES,
    REQUEST,
    RESPONSE,
    SERVED,
    instance,
    mappings,
    read_by_kio,
    schema_of,
    written_by_kio,
)

every_message = loop_over(
    ("kind", "key", "version"),
    {key.name.lower(): [message for message in MESSAGES if message[1] is key] for _, key, _ in MESSAGES},
)


def encode(kind: str, key: int, version: int, fields: dict[str, Any]) -> bytes:
    if kind == REQUEST:
        return control.encode_request(key, version, 5, "me", fields)
    return control.encode_response(key, version, 5, fields)


def body_of(kind: str, key: int, version: int, frame: bytes) -> bytes:
    if kind == REQUEST:
        return frame[parse_request_header(frame).body_offset :]
    return frame[4 + len(response_header(5, response_header_version(key, version))) :]


def parse(kind: str, key: int, version: int, body: bytes | memoryview) -> Any:
    if kind == REQUEST:
        return control.parse_request(key, version, body)
    number, message = control.parse_response(
        key, version, framed(response_header(5, response_header_version(key, version)) + body)
    )
    assert number == 5
    return message


@every_message
def test_every_message_is_encoded_and_parsed_like_kio(kind: str, key: ApiKey, version: int) -> None:
    cls = schema_of(kind, key, version)

    @settings(max_examples=10)
    @given(mappings(cls))
    def check(fields: dict[str, Any]) -> None:
        message = instance(cls, fields)
        frame = encode(kind, key, version, fields)
        body = body_of(kind, key, version, frame)
        assert written_by_kio(message) == body
        assert frame[:4] == (len(frame) - 4).to_bytes(4, "big")
        assert message == read_by_kio(cls, body)
        assert message == parse(kind, key, version, body)
        assert message == parse(kind, key, version, memoryview(bytearray(body + b"more")))

    check()


@every_message
def test_each_truncation_is_a_protocol_error(kind: str, key: ApiKey, version: int) -> None:
    cls = schema_of(kind, key, version)

    @settings(max_examples=3)
    @given(mappings(cls))
    def check(fields: dict[str, Any]) -> None:
        body = body_of(kind, key, version, encode(kind, key, version, fields))
        for size in range(len(body)):
            with pytest.raises(ProtocolError):
                parse(kind, key, version, body[:size])

    check()


@cache
def _bodies(kind: str, key: int, version: int) -> st.SearchStrategy[bytes]:
    return mappings(schema_of(kind, key, version)).map(
        lambda fields: body_of(kind, key, version, encode(kind, key, version, fields))
    )


@settings(max_examples=1000)
@given(st.sampled_from(MESSAGES), st.data())
def test_any_mutation_raises_only_protocol_errors_or_parses(
    kind_key_version: tuple[str, ApiKey, int], data: st.DataObject
) -> None:
    body = bytearray(data.draw(_bodies(*kind_key_version)))
    assume(body)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    try:
        parse(*kind_key_version, bytes(body))
    except ProtocolError:
        pass


@settings(max_examples=500)
@given(st.sampled_from(MESSAGES), st.binary(max_size=80))
def test_any_bytes_raise_only_protocol_errors_or_parse(kind_key_version: tuple[str, ApiKey, int], body: bytes) -> None:
    try:
        parse(*kind_key_version, body)
    except ProtocolError:
        pass


@pytest.mark.parametrize("version", SERVED[ApiKey.CREATE_TOPICS])
def test_false_count_is_refused_before_any_allocation(version: int) -> None:
    # kio's own reader asks for 200 GB here, and aborts the process when it does not get them.
    count = b"\xff\xff\xff\xff\x07" if version >= 5 else b"\x7f\xff\xff\xff"
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="an array of 21474836"):
            control.parse_request(ApiKey.CREATE_TOPICS, version, count + bytes(100))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_null_where_an_array_must_be_is_refused() -> None:
    with pytest.raises(ProtocolError, match="null"):
        control.parse_request(ApiKey.CREATE_TOPICS, 4, b"\xff\xff\xff\xff" + bytes(10))
    with pytest.raises(ProtocolError, match="null"):
        control.parse_request(ApiKey.CREATE_TOPICS, 7, bytes(10))


def test_booleans_other_than_zero_are_true() -> None:
    request = control.parse_request(ApiKey.CREATE_TOPICS, 4, bytes(8) + b"\x02")
    assert request.validate_only is True


@pytest.mark.parametrize(("key", "version"), [(ApiKey.HEARTBEAT, 99), (ApiKey.HEARTBEAT, -1), (999, 0), (4, 0)])
def test_unknown_version_is_protocol_error_or_caller_mistake(key: int, version: int) -> None:
    with pytest.raises(ProtocolError):
        control.parse_request(key, version, b"")
    with pytest.raises(LookupError):
        control.encode_response(key, version, 1, {})


def test_missing_fields_get_schema_defaults() -> None:
    frame = control.encode_response(ApiKey.CREATE_TOPICS, 7, 1, {"topics": [{"name": "a"}]})
    _, response = control.parse_response(ApiKey.CREATE_TOPICS, 7, frame)
    assert response.throttle_time == timedelta(0)
    (topic,) = response.topics
    assert (topic.topic_id, topic.error_code, topic.error_message) == (None, ErrorCode.none, None)
    assert (topic.num_partitions, topic.replication_factor, topic.configs) == (-1, -1, None)
    assert control.parse_response(ApiKey.CREATE_TOPICS, 7, control.encode_response(19, 7, 1, {}))[1].topics == ()


def test_fields_missing_in_a_version_are_omitted() -> None:
    fields = {"topics": [{"name": "a", "num_partitions": 3, "configs": [{"name": "x", "value": "y"}]}]}
    _, response = control.parse_response(
        ApiKey.CREATE_TOPICS, 2, control.encode_response(ApiKey.CREATE_TOPICS, 2, 1, fields)
    )
    assert response.topics[0].name == "a"
    # FindCoordinator changed its fields: a mapping with both sets of fields serves all versions.
    both = {"node_id": 1, "host": "h", "port": 9, "coordinators": [{"key": "k", "node_id": 1, "host": "h", "port": 9}]}
    for version in SERVED[ApiKey.FIND_COORDINATOR]:
        _, response = control.parse_response(10, version, control.encode_response(10, version, 1, both))
        assert (response if version < 4 else response.coordinators[0]).port == 9


def test_field_of_no_version_is_a_mistake() -> None:
    for _ in range(2):  # not only the first time
        with pytest.raises(KeyError, match=r"topics\.nam"):
            control.encode_response(ApiKey.CREATE_TOPICS, 7, 1, {"topics": [{"nam": "a"}]})
        with pytest.raises(KeyError, match="partition_index"):
            control.encode_response(ApiKey.CREATE_TOPICS, 2, 1, {"partition_index": 1})


def test_value_of_wrong_type_names_its_field() -> None:
    with pytest.raises(TypeError) as caught:
        control.encode_response(ApiKey.CREATE_TOPICS, 7, 1, {"topics": [{"name": None}]})
    assert caught.value.__notes__ == [
        "in field name of CreatableTopicResult v7",
        "in field topics of CreateTopicsResponse v7",
    ]


def test_plain_numbers_do_for_codes_durations_and_times() -> None:
    fields: dict[str, Any] = {"throttle_time": 1500, "error_code": 7, "api_keys": ({"api_key": k} for k in (1, 2))}
    _, response = control.parse_response(18, 1, control.encode_response(ApiKey.API_VERSIONS, 1, 1, fields))
    assert response.throttle_time == timedelta(milliseconds=1500)
    assert response.error_code is ErrorCode.request_timed_out
    assert [entry.api_key for entry in response.api_keys] == [1, 2]
    assert control.milliseconds(response.throttle_time) == 1500


def test_unknown_error_code_becomes_unknown_server_error() -> None:
    _, response = control.parse_response(12, 0, control.encode_response(ApiKey.HEARTBEAT, 0, 1, {"error_code": 9999}))
    assert response.error_code is ErrorCode.unknown_server_error


def test_tagged_field_must_have_its_stated_length() -> None:
    fields = {"cluster_id": "c", "topics": []}
    frame = control.encode_request(ApiKey.FETCH, 12, 1, None, fields)
    assert frame.endswith(b"\x01\x00\x02\x02c")
    body = frame[parse_request_header(frame).body_offset :]
    assert control.parse_request(ApiKey.FETCH, 12, body).cluster_id == "c"
    with pytest.raises(ProtocolError, match="cluster_id"):
        control.parse_request(ApiKey.FETCH, 12, body[:-3] + b"\x03\x02cd")


def test_missing_tagged_structure_is_empty() -> None:
    frame = control.encode_response(ApiKey.FETCH_SNAPSHOT, 1, 1, {"topics": [{"partitions": [{}]}]})
    cls = schema_of(RESPONSE, ApiKey.FETCH_SNAPSHOT, 1)
    _, message = control.parse_response(ApiKey.FETCH_SNAPSHOT, 1, frame)
    assert message.topics[0].partitions[0].current_leader.leader_id == 0
    assert message == read_by_kio(cls, body_of(RESPONSE, ApiKey.FETCH_SNAPSHOT, 1, frame))


def test_using_it_imports_no_hypothesis_and_no_asyncio() -> None:
    """kio would import both, which take 30 MB of memory."""
    code = (
        "import sys; from protocol.kafka.schema import control; control.encode_response(12, 4, 1, {}); "
        "assert not {'hypothesis', 'asyncio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_kind_of_message_is_here() -> None:
    assert {kind for kind, _, _ in MESSAGES} == {REQUEST, RESPONSE}
