"""Hints about leaders are written as Kafka's schemas say."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import fetch, produce, share_fetch
from protocol.kafka.messages.fetch import PartitionData
from protocol.kafka.messages.leaders import Endpoint, Hints, Leader
from protocol.kafka.messages.produce import PartitionResult
from protocol.kafka.messages.share_fetch import AcknowledgedPartition, FetchedPartition
from protocol.kafka.schema import control

INT32 = st.integers(-(2**31), 2**31 - 1)
LEADERS = st.builds(Leader, INT32, INT32)
ENDPOINTS = st.lists(
    st.builds(Endpoint, INT32, st.text(max_size=200), st.integers(0, 65535), st.none() | st.text(max_size=9)),
    max_size=4,
)
ID = UUID(int=5)
# Partitions 0 and 1 are with another leader; 2 is here.
BOTH = st.tuples(LEADERS, LEADERS)


def hints(topic: str | bytes, leaders: tuple[Leader, Leader], endpoints: list[Endpoint]) -> Hints:
    return Hints({(topic, number): leader for number, leader in enumerate(leaders)}, endpoints)


def told(partitions: Any) -> list[tuple[int, int]]:
    return [(each.current_leader.leader_id, each.current_leader.leader_epoch) for each in partitions]


def endpoints_of(response: Any) -> list[tuple[int, str, int, str | None]]:
    return [(each.node_id, each.host, each.port, each.rack) for each in response.node_endpoints]


@pytest.mark.parametrize("version", range(produce.FIRST_WITH_LEADERS, produce.MAX_VERSION + 1))
@given(leaders=BOTH, endpoints=ENDPOINTS)
def test_produce(version: int, leaders: tuple[Leader, Leader], endpoints: list[Endpoint]) -> None:
    topic: str | bytes = ID.bytes if version >= produce.FIRST_WITH_TOPIC_ID else "t"
    results = [PartitionResult(topic, number, 6) for number in range(3)]
    frame = produce.response(7, version, results, 0, hints(topic, leaders, endpoints))
    correlation_id, response = control.parse_response(ApiKey.PRODUCE, version, frame)
    assert 7 == correlation_id
    assert [*leaders, (-1, -1)] == told(response.responses[0].partition_responses)
    assert endpoints == endpoints_of(response)


@pytest.mark.parametrize("version", range(fetch.FIRST_WITH_LEADERS, fetch.MAX_VERSION + 1))
@given(leaders=BOTH, endpoints=ENDPOINTS)
def test_fetch(version: int, leaders: tuple[Leader, Leader], endpoints: list[Endpoint]) -> None:
    failed = [PartitionData(number, 6, -1, -1, -1, None, 0, ()) for number in range(2)]
    read = PartitionData(2, 0, 5, 5, 0, None, 3, (b"abc",))
    topics = [(ID.bytes, [*failed, read])]
    frame = b"".join(fetch.response_parts(7, version, 0, 0, 0, topics, hints(ID.bytes, leaders, endpoints)))
    correlation_id, response = control.parse_response(ApiKey.FETCH, version, frame)
    assert 7 == correlation_id
    assert [*leaders, (-1, -1)] == told(response.responses[0].partitions)
    assert [b"", b"", b"abc"] == [bytes(each.records) for each in response.responses[0].partitions]
    assert endpoints == endpoints_of(response)


@pytest.mark.parametrize("version", range(share_fetch.MIN_VERSION, share_fetch.MAX_VERSION + 1))
@given(leaders=BOTH, endpoints=ENDPOINTS)
def test_share_fetch_and_acknowledge(version: int, leaders: tuple[Leader, Leader], endpoints: list[Endpoint]) -> None:
    given_hints = hints(ID.bytes, leaders, endpoints)
    fetched = [FetchedPartition((ID.bytes, number), 6) for number in range(3)]
    acknowledged = [AcknowledgedPartition((ID.bytes, number), 6) for number in range(3)]
    frames = {
        ApiKey.SHARE_FETCH: b"".join(share_fetch.fetch_parts(7, 0, None, 9, fetched, given_hints)),
        ApiKey.SHARE_ACKNOWLEDGE: share_fetch.acknowledge_response(7, version, 0, None, 9, acknowledged, given_hints),
    }
    for key, frame in frames.items():
        _, response = control.parse_response(key, version, frame)
        assert [*leaders, (-1, -1)] == told(response.responses[0].partitions)
        assert endpoints == endpoints_of(response)
