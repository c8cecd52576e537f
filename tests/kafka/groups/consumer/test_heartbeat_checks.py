"""Invalid ConsumerGroupHeartbeats get Kafka's messages."""

import attrs
import pytest

from broker.kafka.groups.consumer.values import HeartbeatRequest
from broker.kafka.groups.consumer_coordinator import check_heartbeat
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.consumer.consumer_group_driver import topic_id

JOIN = HeartbeatRequest("m", 0, rebalance_timeout_ms=1000, subscribed_topic_names=("t",), owned=())
ASSIGNORS = ("uniform", "range")
OWNED = ((topic_id("t"), (0,)),)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (attrs.evolve(JOIN, member_id=""), "MemberId can't be empty."),
        (attrs.evolve(JOIN, instance_id=""), "InstanceId can't be empty."),
        (attrs.evolve(JOIN, rack_id=""), "RackId can't be empty."),
        (attrs.evolve(JOIN, rebalance_timeout_ms=-1), "RebalanceTimeoutMs must be provided in first request."),
        (attrs.evolve(JOIN, owned=None), "TopicPartitions must be empty when (re-)joining."),
        (attrs.evolve(JOIN, owned=OWNED), "TopicPartitions must be empty when (re-)joining."),
        (
            attrs.evolve(JOIN, subscribed_topic_names=None),
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (HeartbeatRequest("m", -2), "InstanceId can't be null."),
        (HeartbeatRequest("m", -3), "MemberEpoch is invalid."),
    ],
)
def test_invalid_heartbeats_are_refused(request_: HeartbeatRequest, message: str) -> None:
    result = check_heartbeat("group", request_, 1, ASSIGNORS)
    assert result is not None
    assert (result.error, result.message) == (ErrorCode.invalid_request, message)


@pytest.mark.parametrize(
    "request_",
    [
        JOIN,
        attrs.evolve(JOIN, subscribed_topic_names=None, subscribed_topic_regex=""),
        attrs.evolve(JOIN, server_assignor="range"),
        HeartbeatRequest("m", 7),
        HeartbeatRequest("m", -1),
        HeartbeatRequest("m", -2, "i"),
    ],
)
def test_valid_heartbeats_are_accepted(request_: HeartbeatRequest) -> None:
    assert check_heartbeat("group", request_, 1, ASSIGNORS) is None


def test_group_has_a_name() -> None:
    result = check_heartbeat("", JOIN, 1, ASSIGNORS)
    assert result is not None
    assert result.message == "GroupId can't be empty."


def test_in_version_0_only_joining_members_lack_ids() -> None:
    assert check_heartbeat("group", attrs.evolve(JOIN, member_id=""), 0, ASSIGNORS) is None
    for epoch in (1, -1):
        assert check_heartbeat("group", HeartbeatRequest("", epoch), 0, ASSIGNORS) is not None


def test_missing_assignor_is_refused_with_the_supported_names() -> None:
    result = check_heartbeat("group", attrs.evolve(JOIN, server_assignor="sticky"), 1, ASSIGNORS)
    assert result is not None
    assert result.error is ErrorCode.unsupported_assignor
    assert result.message == "ServerAssignor sticky is not supported. Supported assignors: uniform, range."
