import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.serial import entity_writer
from kio.static.constants import EntityType

from protocol.errors import ProtocolError, TooManyEntries
from protocol.kafka.messages import consumer_protocol
from protocol.kafka.messages.consumer_protocol import Assignment, Subscription

VERSIONS = range(consumer_protocol.NEWEST_VERSION + 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
PARTITIONS = st.dictionaries(st.text(max_size=9), st.lists(INT32, max_size=4), max_size=3)
USER_DATA = st.none() | st.binary(max_size=9)


def written_by_kio(name: str, version: int, fields: dict[str, Any]) -> bytes:
    cls: Any = load_entity_schema(name, version, EntityType.data)
    known = cls.__dataclass_fields__
    for key in ("owned_partitions", "assigned_partitions"):
        if key in known:
            kind: Any = known[key].type.__args__[0]
            fields[key] = tuple(kind(topic=topic, partitions=tuple(numbers)) for topic, numbers in fields[key].items())
    out = io.BytesIO()
    entity_writer(cls)(out, cls(**{key: value for key, value in fields.items() if key in known}))
    return version.to_bytes(2, "big") + out.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
@given(st.lists(st.text(max_size=9), max_size=3), USER_DATA, PARTITIONS, INT32, st.none() | st.text(max_size=5))
def test_subscription_is_encoded_and_parsed_as_by_kio(
    version: int,
    topics: list[str],
    user_data: bytes | None,
    owned: dict[str, list[int]],
    generation: int,
    rack: str | None,
) -> None:
    data = consumer_protocol.encode_subscription(
        topics, version=version, user_data=user_data, owned=owned, generation=generation, rack=rack
    )
    fields = {
        "topics": tuple(topics),
        "user_data": user_data,
        "owned_partitions": owned,
        "generation_id": generation,
        "rack_id": rack,
    }
    assert written_by_kio("consumer_protocol_subscription", version, fields) == data
    assert consumer_protocol.parse_subscription(data) == Subscription(
        version,
        topics,
        user_data,
        owned if version >= 1 else {},
        generation if version >= 2 else -1,
        rack if version >= 3 else None,
    )
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            consumer_protocol.parse_subscription(data[:size])


@given(st.lists(st.text(max_size=9), max_size=4), st.integers(0, 4), st.sampled_from(VERSIONS))
def test_subscribed_topics_are_parsed_alone(topics: list[str], most: int, version: int) -> None:
    data = consumer_protocol.encode_subscription(topics, version=version) + b"whatever comes"
    assert topics == consumer_protocol.parse_subscribed_topics(data)
    if len(topics) <= most:
        assert topics == consumer_protocol.parse_subscribed_topics(data, most)
    else:
        with pytest.raises(TooManyEntries):
            consumer_protocol.parse_subscribed_topics(data, most)


@pytest.mark.parametrize("version", VERSIONS)
@given(PARTITIONS, USER_DATA)
def test_assignment_is_encoded_and_parsed_as_by_kio(
    version: int, partitions: dict[str, list[int]], user_data: bytes | None
) -> None:
    data = consumer_protocol.encode_assignment(partitions, version=version, user_data=user_data)
    fields = {"assigned_partitions": partitions, "user_data": user_data}
    assert written_by_kio("consumer_protocol_assignment", version, fields) == data
    assert consumer_protocol.parse_assignment(data) == Assignment(version, partitions, user_data)
    for size in range(1, len(data)):
        with pytest.raises(ProtocolError):
            consumer_protocol.parse_assignment(data[:size])


def test_a_member_without_partitions_may_be_sent_nothing() -> None:
    assert consumer_protocol.parse_assignment(b"").partitions == {}


def test_future_version_is_parsed_as_newest_known() -> None:
    data = b"\x00\x63" + consumer_protocol.encode_subscription(["a"], version=3, rack="r")[2:] + b"and more"
    assert consumer_protocol.parse_subscription(data)[:2] == (99, ["a"])
    with pytest.raises(ProtocolError):
        consumer_protocol.parse_subscription(b"\xff\xff" + data[2:])


@given(st.binary(max_size=60))
def test_any_bytes_raise_nothing_but_protocol_errors(data: bytes) -> None:
    for parse in (consumer_protocol.parse_subscription, consumer_protocol.parse_assignment):
        try:
            parse(data)
        except ProtocolError:
            pass
