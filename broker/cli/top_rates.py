"""What `broker top` shows: samples of a cluster's offsets, and the rates and lags between two of them.

``take`` asks the cluster; ``view`` is pure. A rate is known from the second sample on.

Tests: tests/cli/test_top.py.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from broker.client.kafka import Cluster
    from broker.client.kafka.values import TopicPartition

# Each group costs a request a sample.
GROUPS_MAX = 200


@attrs.frozen
class Sample:
    """``at_s`` is monotonic. ``ends``: the end offset of each partition that can be read; ``unread`` counts the others.
    ``states``: the groups and their states; ``committed``: of those that were asked."""

    at_s: float
    ends: "Mapping[TopicPartition, int]"
    unread: "frozenset[TopicPartition]"
    states: Mapping[str, str]
    committed: "Mapping[str, Mapping[TopicPartition, int]]"


@attrs.frozen
class TopicLine:
    """``rate``: records/s, None as long as it is unknown. ``lag``: of all groups that read it, None without one."""

    topic: str
    partitions: int
    offline: int
    rate: float | None
    records: int
    lag: int | None


@attrs.frozen
class GroupLine:
    """``rate``: records/s that the group commits. ``left_s``: when it will have caught up at these rates; None for never."""

    group: str
    state: str
    topics: int
    lag: int
    rate: float | None
    left_s: float | None


@attrs.frozen
class View:
    """Topics by rate, groups by lag. ``rate`` is that of all topics; ``hidden`` counts the groups that were not asked."""

    topics: Sequence[TopicLine]
    groups: Sequence[GroupLine]
    rate: float | None
    hidden: int


def take(cluster: "Cluster", internal: bool) -> Sample:
    from broker.client.kafka.admin.groups import list_groups
    from broker.client.kafka.admin.positions import offsets_at
    from broker.client.kafka.admin.topics import describe_topics
    from broker.client.kafka.errors import BrokerAnswerError, UnsupportedVersionError
    from broker.client.kafka.values import LATEST

    routing = cluster.routing
    found = describe_topics(routing)
    shown = {one.name for one in found.topics if internal or not (one.is_internal or one.name.startswith("__"))}
    leaders = {key: leader for key, leader in found.leaders().items() if key[0] in shown}
    at = cluster.clock.monotonic()
    positions = offsets_at(routing, leaders, dict.fromkeys(leaders, LATEST))
    ends = {key: one.offset for key, one in positions.items() if one.offset is not None}
    try:
        states = {one.group: one.state for one in list_groups(routing)}
    except UnsupportedVersionError:  # a broker that is not Kafka itself
        states = {}
    committed = {}
    for group in sorted(states)[:GROUPS_MAX]:
        try:
            committed[group] = {key: one.offset for key, one in cluster.committed(group).items()}
        except BrokerAnswerError:  # it was deleted meanwhile, or the user may not see it
            continue
    return Sample(at, ends, frozenset(positions.keys() - ends.keys()), states, committed)


def view(before: Sample | None, now: Sample) -> View:
    passed = now.at_s - before.at_s if before is not None else 0.0
    rates = {} if before is None or passed <= 0 else _rates(before.ends, now.ends, passed)
    by_topic: dict[str, list[TopicPartition]] = {}
    for key in sorted([*now.ends, *now.unread]):
        by_topic.setdefault(key[0], []).append(key)
    lags = {group: _lags(own, now.ends) for group, own in now.committed.items()}
    of_topics: dict[str, int] = {}
    for own in lags.values():
        for (topic, _), lag in own.items():
            of_topics[topic] = of_topics.get(topic, 0) + lag
    topics = [
        TopicLine(
            topic,
            len(keys),
            sum(key in now.unread for key in keys),
            sum(rates.get(key, 0.0) for key in keys) if rates or passed > 0 else None,
            sum(now.ends.get(key, 0) for key in keys),
            of_topics.get(topic),
        )
        for topic, keys in by_topic.items()
    ]
    groups = [_group(group, before, now, lags[group], rates, passed) for group in lags]
    return View(
        sorted(topics, key=lambda one: (-(one.rate or 0.0), one.topic)),
        sorted(groups, key=lambda one: (-one.lag, one.group)),
        sum(rates.values()) if passed > 0 else None,
        len(now.states) - len(now.committed),
    )


def _rates(
    before: "Mapping[TopicPartition, int]", now: "Mapping[TopicPartition, int]", passed: float
) -> "dict[TopicPartition, float]":
    """A partition that is new has all its records from this interval. One whose end went back was made again."""
    rates = {}
    for key, end in now.items():
        start = before.get(key, 0)
        rates[key] = (end - start if end >= start else end) / passed
    return rates


def _lags(
    committed: "Mapping[TopicPartition, int]", ends: "Mapping[TopicPartition, int]"
) -> "dict[TopicPartition, int]":
    return {key: max(0, ends[key] - offset) for key, offset in committed.items() if key in ends}


def _group(
    group: str,
    before: Sample | None,
    now: Sample,
    lags: "Mapping[TopicPartition, int]",
    rates: "Mapping[TopicPartition, float]",
    passed: float,
) -> GroupLine:
    committed = now.committed[group]
    lag, rate, left = sum(lags.values()), None, None
    if before is not None and passed > 0 and group in before.committed:
        earlier = before.committed[group]
        # A group that was set back has no rate below zero.
        moved = sum(max(0, offset - earlier[key]) for key, offset in committed.items() if key in earlier)
        rate = moved / passed
        gains = rate - sum(rates.get(key, 0.0) for key in committed)
        left = 0.0 if not lag else lag / gains if gains > 0 else None
    return GroupLine(group, now.states[group], len({topic for topic, _ in committed}), lag, rate, left)
