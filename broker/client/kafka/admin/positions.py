"""Where partitions begin and end, when the record at an offset was written, how far a group lags behind (in records and
in time), and the offset to which a group is reset (a pure decision for each partition).

Requests cover many partitions at once. A partition that cannot be read has an error in place of its offset, so that an
offline partition does not hide the others.

Tests: tests/cli/test_groups.py.
"""

from collections.abc import Mapping
from enum import Enum

import attrs

from broker.client.kafka.admin.configs import describe_topics
from broker.client.kafka.admin.groups import SHARE, Group, Member, start_offsets
from broker.client.kafka.config import Address
from broker.client.kafka.connection import Connection
from broker.client.kafka.errors import KafkaClientError, LinkError, TimedOutError, code_name
from broker.client.kafka.offsets import ask_leader, fetch_committed
from broker.client.kafka.routing import Routing
from broker.client.kafka.values import EARLIEST, LATEST, READ_UNCOMMITTED, TopicPartition
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import fetch
from protocol.kafka.records.batch import batches, whole_batches
from protocol.kafka.records.records import records

Leaders = Mapping[TopicPartition, Address | None]

# Requests in flight to one broker, each for one record batch.
_IN_FLIGHT = 16
# The bytes of a batch that are decompressed; a later record counts as written when the newest record of the batch was.
_DECOMPRESSED_MAX_BYTES = 16 * 1024 * 1024


@attrs.frozen
class Position:
    """``offset`` is None if there is none: the partition has failed with ``code``, or has no record that late."""

    offset: int | None
    code: int = 0


def offsets_at(
    routing: Routing, leaders: Leaders, times: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Position]:
    """As ``Cluster.offsets``, with an error for each partition instead of an exception for all."""
    positions = {key: Position(None, ErrorCode.leader_not_available) for key in times}
    for address, keys in _by_leader(leaders, times).items():
        try:
            answers = ask_leader(routing, address, {key: times[key] for key in keys}, READ_UNCOMMITTED)
        except (LinkError, TimedOutError):
            continue
        for topic, partition, offset, code in answers:
            positions[topic, partition] = Position(None if code or offset < 0 else offset, code)
    return positions


def times_at(
    routing: Routing, leaders: Leaders, offsets: Mapping[TopicPartition, int], budget_ms: float
) -> dict[TopicPartition, int]:
    """The time (ms) at which the record at each offset, or the first record after it, was written. Absent if unknown:
    for a partition that cannot be read, and for those that were not reached within ``budget_ms``."""
    times: dict[TopicPartition, int] = {}
    with routing.limit.within(budget_ms):
        for address, keys in _by_leader(leaders, offsets).items():
            try:
                # A version that sends names of topics, which all brokers since Kafka 0.11 serve.
                connection = routing.connection(address)
                version = connection.version(ApiKey.FETCH, fetch.CLIENT_MIN_VERSION, fetch.FIRST_WITH_TOPIC_ID - 1)
                for start in range(0, len(keys), _IN_FLIGHT):
                    wanted = {key: offsets[key] for key in keys[start : start + _IN_FLIGHT]}
                    _read_some(routing, connection, version, wanted, times)
            except KafkaClientError:
                continue
    return times


def _read_some(
    routing: Routing,
    connection: Connection,
    version: int,
    wanted: Mapping[TopicPartition, int],
    times: dict[TopicPartition, int],
) -> None:
    deadline = connection.deadline(routing.config.request_timeout_ms)
    for (topic, partition), offset in wanted.items():
        request = fetch.request(
            connection.next_id(),
            routing.config.client_id,
            version,
            topic,
            partition,
            offset,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1,  # the broker still sends a whole batch (KIP-74)
            isolation_level=0,
        )
        connection.send([request], deadline)
    for key, offset in wanted.items():
        frame = connection.receive(deadline, "a fetch")
        try:
            answer = fetch.parse_response(frame, version)
            time = _time_of(answer.partitions[0].records, offset) if answer.partitions else None
        except ProtocolError as error:
            raise connection.unreadable("FETCH", error) from None
        if time is not None:
            times[key] = time


def _time_of(data: memoryview, offset: int) -> int | None:
    """When the first record at or after ``offset`` in these batches was written."""
    size, _ = whole_batches(data)
    for pos, header in batches(data[:size]):
        if header.last_offset < offset:
            continue
        try:
            for record in records(data, pos, max_size=_DECOMPRESSED_MAX_BYTES):
                if record.offset >= offset:
                    return record.timestamp
        except ProtocolError:
            pass  # too large, or in a codec that cannot be read here
        return header.max_timestamp
    return None


def _by_leader(leaders: Leaders, keys: Mapping[TopicPartition, int]) -> dict[Address, list[TopicPartition]]:
    by_leader: dict[Address, list[TopicPartition]] = {}
    for key in keys:
        address = leaders.get(key)
        if address is not None:
            by_leader.setdefault(address, []).append(key)
    return by_leader


# For the times of all partitions of a group: each costs the broker a small read.
_TIMES_MS = 10_000


@attrs.frozen
class PartitionLag:
    """``lag`` counts offsets from the committed offset, or from the start of the log if that is later, to the end;
    ``lag_s`` is the age of the first record among them, 0 if there is none. None: unknown. ``problem``: why the end
    offset is not known.

    For a share group ``committed`` is its start offset, ``lag`` excludes records acknowledged beyond it, and ``member``
    is one of the members that read the partition.
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
    """The lag of each partition that the group has committed or that its members read, by topic and partition."""
    known: dict[TopicPartition, int | None] = {}
    if group.type == SHARE:
        begun = start_offsets(routing, group.group)
        committed = {key: share_offset.start for key, share_offset in begun.items()}
        known = {key: share_offset.lag for key, share_offset in begun.items()}
    else:
        committed = {key: commit.offset for key, commit in fetch_committed(routing, group.group, None, False).items()}
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


class To(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    OFFSET = "offset"
    TIME = "time"
    SHIFT = "shift"


@attrs.frozen
class Facts:
    """The offsets of one partition. ``at_time``: the first offset at the requested time, None if no record is that
    late."""

    start: int
    end: int
    committed: int | None = None
    at_time: int | None = None


def new_offset(to: To, number: int, facts: Facts) -> int:
    """``number`` is the offset or the shift. The result is within the partition, or its end.

    Without a committed offset there is nothing to keep or to shift: as with Kafka's own tool, the group then begins at
    the end.
    """
    if to is To.EARLIEST:
        return facts.start
    if to is To.LATEST:
        return facts.end
    if to is To.TIME:
        wanted = facts.end if facts.at_time is None else facts.at_time
    elif to is To.OFFSET:
        wanted = number
    else:
        base = facts.end if facts.committed is None else facts.committed
        wanted = base + number if to is To.SHIFT else base
    return min(max(wanted, facts.start), facts.end)
