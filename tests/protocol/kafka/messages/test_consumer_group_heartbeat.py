"""The handwritten codec agrees with Kafka's schema."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.consumer_group_heartbeat import Unchanged, encode_unchanged, parse_unchanged
from protocol.kafka.messages.headers import parse_request_header
from protocol.kafka.schema import control
from tests.loops import loop_over

KEY = ApiKey.CONSUMER_GROUP_HEARTBEAT
TEXTS = st.text(max_size=40)
I32 = st.integers(-(2**31), 2**31 - 1)
UNCHANGED: dict[str, Any] = {
    "rack_id": None,
    "rebalance_timeout": -1,
    "subscribed_topic_names": None,
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": None,
}
VERSIONS = st.sampled_from([0, 1])


def frame_of(version: int, **fields: Any) -> bytes:
    fields = UNCHANGED | fields
    if version == 0:
        del fields["subscribed_topic_regex"]
    return control.encode_request(KEY, version, 7, "client", fields)


def read(frame: bytes, version: int) -> Unchanged | None:
    return parse_unchanged(memoryview(frame), parse_request_header(frame).body_offset, version)


@given(VERSIONS, TEXTS, TEXTS, I32, st.none() | TEXTS)
def test_a_heartbeat_that_says_nothing_new_is_read(
    version: int, group_id: str, member_id: str, epoch: int, instance_id: str | None
) -> None:
    frame = frame_of(version, group_id=group_id, member_id=member_id, member_epoch=epoch, instance_id=instance_id)
    expected = Unchanged(group_id, member_id, epoch, instance_id)
    is_short = all(len(text.encode()) < 127 for text in (group_id, member_id, instance_id or ""))
    assert read(frame, version) == (expected if is_short else None)


@loop_over("version", [0, 1])
@loop_over(
    "changed",
    [
        {"rack_id": "r"},
        {"rebalance_timeout": 5},
        {"subscribed_topic_names": []},
        {"subscribed_topic_regex": "a.*"},
        {"server_assignor": "range"},
        {"topic_partitions": []},
        {"group_id": "g" * 127},
        {"member_id": "m" * 127},
        {"instance_id": "i" * 127},
    ],
)
def test_whatever_says_something_is_left_to_the_schema(version: int, changed: dict[str, Any]) -> None:
    if version == 0 and "subscribed_topic_regex" in changed:
        return
    fields = {"group_id": "g", "member_id": "m", "member_epoch": 3, "instance_id": None} | changed
    assert read(frame_of(version, **fields), version) is None


@given(VERSIONS, st.binary(max_size=60))
def test_bytes_that_the_schema_reads_otherwise_are_declined(version: int, body: bytes) -> None:
    assert_agrees(version, body)


@given(VERSIONS, st.data())
def test_damaged_request_is_declined(version: int, data: st.DataObject) -> None:
    frame = frame_of(version, group_id="group", member_id="member", member_epoch=3, instance_id="i")
    body = bytearray(frame[parse_request_header(frame).body_offset :])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(0, len(body))) :]
    assert_agrees(version, bytes(body))


def assert_agrees(version: int, body: bytes) -> None:
    heartbeat = parse_unchanged(memoryview(body), 0, version)
    if heartbeat is None:
        return
    request = control.parse_request(KEY, version, body)
    assert (request.group_id, request.member_id, request.member_epoch, request.instance_id) == heartbeat
    for name, value in UNCHANGED.items():
        if name != "rebalance_timeout" and not (name == "subscribed_topic_regex" and version == 0):
            assert getattr(request, name) == value


@given(VERSIONS, I32, TEXTS, I32, st.integers(0, 2**31 - 1))
def test_the_answer_is_that_of_the_schema(
    version: int, correlation_id: int, member_id: str, epoch: int, interval_ms: int
) -> None:
    fields = {"member_id": member_id, "member_epoch": epoch, "heartbeat_interval": interval_ms, "assignment": None}
    expected = control.encode_response(KEY, version, correlation_id, fields)
    answer = encode_unchanged(correlation_id, member_id, epoch, interval_ms)
    assert answer == (expected if len(member_id.encode()) < 127 else None)


def test_a_null_group_is_no_heartbeat() -> None:
    with pytest.raises(ProtocolError):
        control.parse_request(KEY, 1, b"\0" * 30)
    assert parse_unchanged(memoryview(b"\0" * 30), 0, 1) is None
