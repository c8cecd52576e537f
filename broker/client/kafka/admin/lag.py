"""How far a group is behind, in records and in time.

Tests: tests/cli/test_groups.py.
"""

import attrs

from broker.client.kafka.admin.groups import SHARE, Group, Member
from broker.client.kafka.admin.positions import offsets_at, times_at
from broker.client.kafka.admin.share_groups import start_offsets
from broker.client.kafka.admin.topics import describe_topics
from broker.client.kafka.errors import code_name
from broker.client.kafka.offsets import fetch_committed
from broker.client.kafka.routing import Routing
from broker.client.kafka.values import EARLIEST, LATEST, TopicPartition

# For the times of all partitions of a group: each costs the broker one small read.
_TIMES_MS = 10_000


@attrs.frozen
class PartitionLag:
    """``lag`` counts offsets from the committed one, or from the start of the log if that is later, to the end; ``lag_s`` is the
    age of the first record among them, 0 without any. None: unknown. ``problem``: why the end offset is not known.

    For a share group ``committed`` is its start offset, ``lag`` does not count what is acknowledged beyond that, and ``member``
    is one of those that read the partition.
    """

    topic: str
    partition: int
    committed: int | None
    end_offset: int | None
    lag: int | None
    lag_s: float | None
    problem: str | None
    member: Member | None


def lag_of(routing: Routing, group: Group, now_ms: int, *, with_times: bool = True) -> list[PartitionLag]:
    """Of the partitions that the group has committed or its members have, by topic and partition."""
    known: dict[TopicPartition, int | None] = {}
    if group.type == SHARE:
        begun = start_offsets(routing, group.group)
        committed = {key: one.start for key, one in begun.items()}
        known = {key: one.lag for key, one in begun.items()}
    else:
        committed = {key: one.offset for key, one in fetch_committed(routing, group.group, None, False).items()}
    owners = {key: member for member in group.members for key in member.partitions}
    keys = sorted(committed.keys() | owners.keys())
    if not keys:
        return []
    leaders = describe_topics(routing, {topic for topic, _ in keys}).leaders()
    ends = offsets_at(routing, leaders, dict.fromkeys(keys, LATEST))
    starts = offsets_at(routing, leaders, dict.fromkeys(committed, EARLIEST))
    first_unread: dict[TopicPartition, int] = {}
    lags: dict[TopicPartition, int] = {}
    for key, offset in committed.items():
        end, start = ends[key].offset, starts[key].offset
        if end is None:
            continue
        unread = max(offset, start or 0)
        own = known.get(key)
        lags[key] = max(0, end - unread) if own is None else own
        if lags[key]:
            first_unread[key] = unread
    times = times_at(routing, leaders, first_unread, _TIMES_MS) if with_times and first_unread else {}

    def lag_s(key: TopicPartition) -> float | None:
        if lags.get(key) == 0:
            return 0.0
        return max(0, now_ms - times[key]) / 1000 if key in times else None

    return [
        PartitionLag(
            topic,
            partition,
            committed.get((topic, partition)),
            ends[topic, partition].offset,
            lags.get((topic, partition)),
            lag_s((topic, partition)),
            code_name(ends[topic, partition].code) if ends[topic, partition].code else None,
            owners.get((topic, partition)),
        )
        for topic, partition in keys
    ]
