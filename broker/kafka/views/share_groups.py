"""What ``/api/v1/groups`` shows of share groups: who reads what, where the group begins, and how far it is behind.

Tests: tests/kafka/views/test_groups.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.groups.share.values import ShareGroupDescription
from broker.kafka.share.share_service import ShareOffset
from broker.kafka.share.share_store import Key
from broker.kafka.views.view_context import ViewContext
from broker.network.routes import Call
from broker.security.acl import ResourceType

Offsets = Mapping[tuple[str, int], ShareOffset]


def visible_offsets(context: ViewContext, call: Call, keys: list[Key]) -> dict[tuple[str, int], ShareOffset]:
    """Where a group begins in the topics that the client may describe."""
    offsets = context.kafka.share.offsets_of(keys)
    visible = {
        topic: context.may_describe(call, ResourceType.TOPIC, topic) for topic in {topic for topic, _ in offsets}
    }
    return {key: offset for key, offset in offsets.items() if visible[key[0]]}


def total_lag(offsets: Offsets) -> int:
    return sum(max(0, offset.lag) for offset in offsets.values())


def members_of(context: ViewContext, call: Call, group: ShareGroupDescription, most: int) -> list[dict[str, Any]]:
    """The first ``most`` members, with what they have of the topics that the client may describe."""
    names: dict[object, str] = {}
    for topic in {name for member in group.members for name in member.subscribed_topic_names}:
        info = context.kafka.logs.topic(topic)
        if info is not None and context.may_describe(call, ResourceType.TOPIC, topic):
            names[info.topic_id] = topic
    return [
        {
            "member_id": member.member_id,
            "client_id": member.client_id,
            "host": member.client_host.removeprefix("/"),
            "instance_id": None,
            "assignment": [
                {"topic": names[topic_id], "partitions": list(partitions)}
                for topic_id, partitions in member.assignment.items()
                if topic_id in names
            ],
        }
        for member in group.members[:most]
    ]


def partitions_of(context: ViewContext, offsets: Offsets, most: int) -> list[dict[str, Any]]:
    """The partitions that are furthest behind. Several members may read one, so none is named."""
    behind = sorted(offsets.items(), key=lambda item: (-item[1].lag, item[0]))
    shown = []
    for (topic, partition), offset in behind[:most]:
        log = context.kafka.logs.get(topic, partition)
        shown.append(
            {
                "topic": topic,
                "partition": partition,
                "committed": None if offset.start < 0 else offset.start,
                "end_offset": None if log is None else log.high_watermark,
                "lag": None if offset.lag < 0 else offset.lag,
                "lag_s": None,
                "member_id": None,
                "committed_ms": None,
            }
        )
    return shown
