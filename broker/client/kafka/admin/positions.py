"""Where partitions begin and end, and when the record at an offset was written, for many partitions at once.

A partition that cannot be asked has an error in place of its offset, so that one that is offline hides nothing of the others.

Tests: tests/cli/test_groups.py.
"""

from collections.abc import Mapping

import attrs

from broker.client.kafka.config import Address
from broker.client.kafka.connection import Connection
from broker.client.kafka.errors import KafkaClientError, LinkError, TimedOutError
from broker.client.kafka.offsets import ask_leader
from broker.client.kafka.routing import Routing
from broker.client.kafka.values import READ_UNCOMMITTED, TopicPartition
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import fetch
from protocol.kafka.records.batch import batches, whole_batches
from protocol.kafka.records.records import records

Leaders = Mapping[TopicPartition, Address | None]

# Requests in flight to one broker, each for one record batch.
_IN_FLIGHT = 16
# Records of a batch that are looked at; a later one counts as written when the newest of the batch was.
_DECOMPRESSED_MAX_BYTES = 16 * 1024 * 1024


@attrs.frozen
class Position:
    """``offset`` is None where there is none: the partition has failed with ``code``, or has no record that late."""

    offset: int | None
    code: int = 0


def offsets_at(
    routing: Routing, leaders: Leaders, times: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Position]:
    """As ``Cluster.offsets``, with the error of each partition in place of one for all."""
    found = {key: Position(None, ErrorCode.leader_not_available) for key in times}
    for address, keys in _by_leader(leaders, times).items():
        try:
            answers = ask_leader(routing, address, {key: times[key] for key in keys}, READ_UNCOMMITTED)
        except (LinkError, TimedOutError):
            continue
        for topic, partition, offset, code in answers:
            found[topic, partition] = Position(None if code or offset < 0 else offset, code)
    return found


def times_at(
    routing: Routing, leaders: Leaders, offsets: Mapping[TopicPartition, int], budget_ms: float
) -> dict[TopicPartition, int]:
    """When (ms) the record at each offset, or the first one after it, was written. Absent where that cannot be told: for a
    partition that cannot be read, and for those that were not reached within ``budget_ms``."""
    found: dict[TopicPartition, int] = {}
    with routing.limit.within(budget_ms):
        for address, keys in _by_leader(leaders, offsets).items():
            try:
                # The version is one that has names of topics, which all brokers since Kafka 0.11 serve.
                connection = routing.connection(address)
                version = connection.version(ApiKey.FETCH, fetch.CLIENT_MIN_VERSION, fetch.FIRST_WITH_TOPIC_ID - 1)
                for start in range(0, len(keys), _IN_FLIGHT):
                    wanted = {key: offsets[key] for key in keys[start : start + _IN_FLIGHT]}
                    _read_some(routing, connection, version, wanted, found)
            except KafkaClientError:
                continue
    return found


def _read_some(
    routing: Routing,
    connection: Connection,
    version: int,
    wanted: Mapping[TopicPartition, int],
    found: dict[TopicPartition, int],
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
            max_bytes=1,  # one whole batch all the same (KIP-74)
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
            found[key] = time


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
