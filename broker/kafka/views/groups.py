"""``/api/v1/groups``: type, state, members, and the lag of each group in records and in time. Where the coordinator assigns the
partitions, also the epochs and the target assignment of each member. Share groups are shown with their members, where they begin
in each partition, and how far they are behind.

The list gives the lag of all groups of a page, in time only for as many partitions as a page may look up in the logs. The
description of a group gives its partitions up to a bound, those furthest behind first. Unknown figures are null.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.consumer.values import Assignment, ConsumerGroupDescription
from broker.kafka.groups.group import GroupType
from broker.kafka.groups.lag import PartitionLag, longest_s, total_lag
from broker.kafka.groups.offsets import CommittedOffset
from broker.kafka.groups.share.values import ShareGroupDescription
from broker.kafka.groups.values import CONSUMER, GroupDescription, GroupFigures
from broker.kafka.share.share_service import ShareOffset
from broker.kafka.share.share_store import Key
from broker.kafka.views.topics import Spending
from broker.kafka.views.view_context import ViewContext
from broker.security.acl import Operation, ResourceType
from broker.web.routes import NOT_FOUND, Answer, Call, HttpError, Route, json_answer, page_of
from protocol.errors import ProtocolError
from protocol.kafka.messages.consumer_protocol import parse_assignment

Offsets = Mapping[tuple[str, int], ShareOffset]


def visible_offsets(context: ViewContext, call: Call, keys: list[Key]) -> dict[tuple[str, int], ShareOffset]:
    """Where a group begins in the topics that the client may describe."""
    offsets = context.kafka.share.offsets_of(keys)
    visible = {
        topic: context.may_describe(call, ResourceType.TOPIC, topic) for topic in {topic for topic, _ in offsets}
    }
    return {key: offset for key, offset in offsets.items() if visible[key[0]]}


def total_share_lag(offsets: Offsets) -> int:
    return sum(max(0, offset.lag) for offset in offsets.values())


def members_of(context: ViewContext, call: Call, group: ShareGroupDescription, most: int) -> list[dict[str, Any]]:
    """The first ``most`` members, with their partitions of the topics that the client may describe."""
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
    """The partitions that are furthest behind. Several members may read a partition, so none is named."""
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


# Partitions that a page looks at, and partitions with a looked-up lag in time.
_PARTITIONS_MAX = 100_000
_TIMED_MAX = 5_000
# Shown partitions of a group, those with a lag in time, shown members, and named topics.
_SHOWN_MAX = 2_000
_TOPICS_SHOWN = 100
# Bytes of a group's assignments that are read.
_ASSIGNMENTS_MAX_BYTES = 1024 * 1024


class Groups:
    def __init__(self, context: ViewContext) -> None:
        self._context = context
        self._groups = context.kafka.groups

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/groups", self.page),
            self._context.at_coordinator(Route("GET", "/api/v1/groups/{group}", self.describe)),
        ]

    def page(self, call: Call) -> Answer:
        context = self._context
        names: Iterable[str] = self._groups.names()
        if context.callers.authorizer is not None:
            names = (name for name in names if context.may_describe(call, ResourceType.GROUP, name))
        page, following = page_of(call, names)
        looked, timed = Spending(_PARTITIONS_MAX), Spending(_TIMED_MAX)
        now_ms = context.kafka.clock.time_ms()
        groups = []
        shares = context.kafka.share.keys_of(page)
        for name in call.work.each(page):
            figures = self._groups.figures(name)
            if figures is None:
                continue
            if figures.type is GroupType.SHARE:
                groups.append(self._share_summary(call, figures, shares[name], looked))
                continue
            topics: list[str] = []
            if looked.take(len(figures.topics)):
                topics = self._visible(call, figures)
            else:
                looked.left = 0
            lag = lag_s = None
            if looked.left > 0:  # else nothing is copied any more
                offsets = self._groups.committed(name, topics)
                number = sum(map(len, offsets.values()))
                looked.left -= number
                lag = context.lags.records(offsets)
            if lag is not None and timed.take(number):
                lag_s = longest_s([context.lags.in_time(each, now_ms) for each in self._each(call, offsets)])
            groups.append({**_summary(figures, topics), "lag": lag, "lag_s": lag_s})
        return json_answer({"groups": groups, "next": following})

    def describe(self, call: Call) -> Answer:
        context, name = self._context, call.names["group"]
        context.callers.require(call, Operation.DESCRIBE, ResourceType.GROUP, name)
        figures = self._groups.figures(name)
        if figures is None:
            raise HttpError(NOT_FOUND, f"There is no group {name[:300]!r}.")
        if figures.type is GroupType.SHARE:
            return self._describe_share(call, figures)
        description = self._groups.consumers.describe(name) if figures.type is GroupType.CONSUMER else None
        assigned: list[tuple[str, dict[str, list[int]]]]
        if isinstance(description, ConsumerGroupDescription):
            members, assigned, more = self._consumer_members(call, description)
        else:
            members, assigned = self._classic_members(call, name)
            more = {}
        owners = {
            (topic, number): member
            for member, partitions in assigned
            for topic, numbers in partitions.items()
            for number in numbers
        }
        topics = self._visible(call, figures)
        offsets = self._groups.committed(name, topics)
        lags = self._each(call, offsets) if sum(map(len, offsets.values())) <= _PARTITIONS_MAX else None
        is_known = lags is not None and context.lags.are_here(offsets)
        now_ms = context.kafka.clock.time_ms()
        shown = sorted(lags or (), key=_furthest_behind)[:_SHOWN_MAX]
        shown = [context.lags.in_time(each, now_ms) for each in call.work.each(shown)]
        return json_answer(
            {
                **_summary(figures, topics),
                **more,
                "lag": total_lag(lags) if lags is not None and is_known else None,
                "lag_s": longest_s(shown) if is_known else None,
                "members": members,
                "member_count": figures.members,
                "partitions": [_partition(lag, owners) for lag in shown],
            }
        )

    def _classic_members(self, call: Call, name: str) -> tuple[list[Any], list[tuple[str, dict[str, list[int]]]]]:
        """The members as they are shown, and their assignments."""
        _, description = self._groups.describe(name)
        assigned = list(self._assigned(call, description)) if description.protocol_type == CONSUMER else []
        of_member = dict(assigned)
        members = [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.client_host.removeprefix("/"),
                "instance_id": member.group_instance_id,
                "assignment": _by_topic(of_member.get(member.member_id, {})),
            }
            for member in description.members[:_SHOWN_MAX]
        ]
        return members, assigned

    def _consumer_members(
        self, call: Call, group: ConsumerGroupDescription
    ) -> tuple[list[Any], list[tuple[str, dict[str, list[int]]]], dict[str, Any]]:
        """The same for a group of the newer protocol, and the fields that only such a group has."""
        name_of = self._groups.topics.now.name_of
        visible: dict[UUID, str | None] = {}

        def named(assignment: Assignment) -> dict[str, list[int]]:
            for topic_id in assignment:
                if topic_id not in visible:
                    name = name_of.get(topic_id)
                    known = name is not None and self._context.may_describe(call, ResourceType.TOPIC, name)
                    visible[topic_id] = name if known else None
            return {name: list(numbers) for one, numbers in assignment.items() if (name := visible[one]) is not None}

        assigned = [(member.member_id, named(member.assignment)) for member in call.work.each(group.members)]
        members = [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.client_host.removeprefix("/"),
                "instance_id": member.instance_id,
                "rack": member.rack_id,
                "protocol": GroupType.CONSUMER.value if member.member_type else GroupType.CLASSIC.value,
                "epoch": member.member_epoch,
                "assignment": _by_topic(owned),
                "target": _by_topic(named(member.target_assignment)),
            }
            for member, (_, owned) in zip(group.members[:_SHOWN_MAX], assigned, strict=False)
        ]
        return members, assigned, {"protocol": group.assignor, "assignment_epoch": group.assignment_epoch}

    def _share_summary(self, call: Call, figures: GroupFigures, keys: list[Key], looked: Spending) -> dict[str, Any]:
        offsets = visible_offsets(self._context, call, keys) if looked.take(len(keys)) else None
        topics = sorted({topic for topic, _ in offsets or ()})
        lag = None if offsets is None else total_share_lag(offsets)
        return {**_summary(figures, topics), "lag": lag, "lag_s": None}

    def _describe_share(self, call: Call, figures: GroupFigures) -> Answer:
        context, name = self._context, figures.group_id
        _, description = self._groups.share.describe(name)
        offsets = visible_offsets(context, call, context.kafka.share.keys_of([name])[name])
        topics = sorted({topic for topic, _ in offsets})
        members = [] if description is None else members_of(context, call, description, _SHOWN_MAX)
        return json_answer(
            {
                **_summary(figures, topics),
                "lag": total_share_lag(offsets),
                "lag_s": None,
                "members": members,
                "member_count": figures.members,
                "partitions": partitions_of(context, offsets, _SHOWN_MAX),
            }
        )

    def _visible(self, call: Call, figures: GroupFigures) -> list[str]:
        """The topics of the group that the client may describe."""
        topics = sorted(figures.topics)
        return [topic for topic in topics if self._context.may_describe(call, ResourceType.TOPIC, topic)]

    def _assigned(self, call: Call, group: GroupDescription) -> Iterator[tuple[str, dict[str, list[int]]]]:
        """Each member's assignment, without topics that the client may not describe."""
        visible: dict[str, bool] = {}
        for member, partitions in _assignments(group):
            for topic in partitions:
                if topic not in visible:
                    visible[topic] = self._context.may_describe(call, ResourceType.TOPIC, topic)
            yield member, {topic: numbers for topic, numbers in partitions.items() if visible[topic]}

    def _each(self, call: Call, offsets: Mapping[str, Mapping[int, CommittedOffset]]) -> list[PartitionLag]:
        of = self._context.lags.of
        each = ((topic, *item) for topic, partitions in offsets.items() for item in partitions.items())
        return [of(topic, number, committed) for topic, number, committed in call.work.each(each)]


def _summary(figures: GroupFigures, topics: list[str]) -> dict[str, Any]:
    return {
        "group": figures.group_id,
        "type": figures.type.value,
        "state": figures.state,
        "protocol": figures.protocol_name if figures.state == ClassicGroupState.STABLE.value else "",
        "protocol_type": figures.protocol_type,
        "members": figures.members,
        "topics": topics[:_TOPICS_SHOWN],
        "generation": figures.generation,
        "rebalances": figures.rebalances,
    }


def _by_topic(assignment: Mapping[str, Iterable[int]]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partitions": sorted(numbers)} for topic, numbers in sorted(assignment.items())]


def _assignments(group: GroupDescription) -> Iterator[tuple[str, dict[str, list[int]]]]:
    """Each member's assignment, as far as it can be read; the bytes are the clients' own."""
    left = _ASSIGNMENTS_MAX_BYTES
    for member in group.members:
        left -= len(member.assignment)
        if left < 0:
            return
        try:
            yield member.member_id, parse_assignment(member.assignment).partitions
        except ProtocolError:
            continue


def _furthest_behind(lag: PartitionLag) -> tuple[int, str, int]:
    return -(lag.lag or 0), lag.topic, lag.partition


def _partition(lag: PartitionLag, owners: dict[tuple[str, int], str]) -> dict[str, Any]:
    return {
        "topic": lag.topic,
        "partition": lag.partition,
        "committed": lag.committed.offset,
        "end_offset": lag.end_offset,
        "lag": lag.lag,
        "lag_s": lag.lag_s,
        "member_id": owners.get((lag.topic, lag.partition)),
        "committed_ms": lag.committed.commit_ms,
    }
