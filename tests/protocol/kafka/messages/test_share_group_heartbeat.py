"""The heartbeat without changes agrees with Kafka's schema."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.consumer_group_heartbeat import encode_unchanged
from protocol.kafka.messages.share_group_heartbeat import parse_unchanged
from protocol.kafka.schema import control

KEY = ApiKey.SHARE_GROUP_HEARTBEAT
# Without its header: length, key, version, correlation id, client id "c", tags.
HEADER_BYTES = 4 + 2 + 2 + 4 + 2 + 1 + 1
ids = st.text(max_size=40)


def request(group_id: str, member_id: str, epoch: int, **more: Any) -> memoryview:
    fields = {"group_id": group_id, "member_id": member_id, "member_epoch": epoch, **more}
    return memoryview(control.encode_request(KEY, 1, 7, "c", fields))


@given(ids, ids, st.integers(-(2**31), 2**31 - 1))
def test_what_the_schema_writes_is_read(group_id: str, member_id: str, epoch: int) -> None:
    heartbeat = parse_unchanged(request(group_id, member_id, epoch), HEADER_BYTES)
    if max(len(group_id.encode()), len(member_id.encode())) < 127:
        assert heartbeat == (group_id, member_id, epoch)
    else:
        assert heartbeat is None


@pytest.mark.parametrize("more", [{"rack_id": "r"}, {"subscribed_topic_names": []}, {"subscribed_topic_names": ["t"]}])
def test_what_says_more_is_left_to_the_schema(more: dict[str, Any]) -> None:
    assert parse_unchanged(request("g", "m", 1, **more), HEADER_BYTES) is None


@given(st.binary(max_size=30))
def test_anything_else_is_left_to_the_schema(body: bytes) -> None:
    heartbeat = parse_unchanged(memoryview(body), 0)
    if heartbeat is not None:
        assert request(*heartbeat)[HEADER_BYTES:] == body


@given(ids, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_the_answer_is_that_of_the_schema(member_id: str, epoch: int, interval_ms: int) -> None:
    fields = {"error_code": 0, "member_id": member_id, "member_epoch": epoch, "heartbeat_interval": interval_ms}
    frame = encode_unchanged(7, member_id, epoch, interval_ms)
    assert frame in (None, control.encode_response(KEY, 1, 7, fields))
