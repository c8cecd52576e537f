"""Whether a ConsumerGroupHeartbeat is valid by itself, with Kafka's messages. Pure: any thread, before the group is looked
for.
"""

from broker.kafka.groups.consumer.values import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    HeartbeatRequest,
    HeartbeatResult,
)
from protocol.kafka.errors import ErrorCode

# The first version in which members make their ids themselves.
CLIENT_MEMBER_ID_VERSION = 1


def check_heartbeat(
    group_id: str, request: HeartbeatRequest, version: int, assignors: tuple[str, ...]
) -> HeartbeatResult | None:
    """The refusal; None if the request is valid."""
    message = _invalid(group_id, request, version)
    if message is not None:
        return HeartbeatResult(ErrorCode.invalid_request, message)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        return HeartbeatResult(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor[:100]} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )
    return None


def _invalid(group_id: str, request: HeartbeatRequest, version: int) -> str | None:
    epoch = request.member_epoch
    needs_member_id = version >= CLIENT_MEMBER_ID_VERSION or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    if needs_member_id and not request.member_id:
        return "MemberId can't be empty."
    if not group_id:
        return "GroupId can't be empty."
    if request.instance_id == "":
        return "InstanceId can't be empty."
    if request.rack_id == "":
        return "RackId can't be empty."
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == -1:
            return "RebalanceTimeoutMs must be provided in first request."
        if request.owned is None or request.owned:
            return "TopicPartitions must be empty when (re-)joining."
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif epoch == LEAVE_FOR_A_WHILE_EPOCH:
        if request.instance_id is None:
            return "InstanceId can't be null."
    elif epoch < LEAVE_FOR_A_WHILE_EPOCH:
        return "MemberEpoch is invalid."
    return None
