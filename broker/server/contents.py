"""What a test puts into a running broker and looks up in it: topics, records, and the offsets of groups.

Functions over a ``BrokerServer``, for the thread that embeds it. They go past listeners, logins and rights, so that they work
whatever the clients must prove.

Tests: tests/client/test_embedded_calls.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from broker.config import BrokerConfig
from broker.errors import BrokerError, StorageError
from broker.faults.faults import Faults
from broker.kafka.context import KafkaContext
from broker.kafka.groups.lag import behind
from broker.metadata.catalogue import Catalogue
from broker.runtime.threads import Event
from broker.server.broker_server import BrokerServer
from broker.server.machine import Machine
from broker.storage.log import inspection
from broker.storage.log.log import Log
from broker.storage.refusals import OffsetOutOfRange, TopicExists
from protocol.kafka.records.batch import read_header
from protocol.kafka.records.records import read_records

TopicPartition = tuple[str, int]

_READ_BYTES = 1024 * 1024
# How long (s) an append may wait for its fsync.
_DURABLE_S = 30.0


class Record(NamedTuple):
    """A committed record. ``timestamp`` is in ms; ``headers`` are (name, value)."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Shape(NamedTuple):
    """What a producer must know of a topic. ``max_bytes``: of a batch. ``now_ms``: the broker's clock."""

    partitions: int
    max_bytes: int
    now_ms: int


# The offsets at which each partition begins and ends, with the topic's id. A reader that has seen the same has seen all.
Extent = tuple[bytes, tuple[tuple[int, int], ...]]


class AfterReset(NamedTuple):
    """For the first start on an older state, or on none: the cluster keeps its id, and producers get ids from ``first_id`` on,
    because clients that are still there may have got those before it."""

    cluster_id: str
    first_id: int

    def apply(self, catalogue: Catalogue) -> None:
        """Raises StorageError."""
        if catalogue.meta("cluster_id") is None:
            catalogue.set_meta("cluster_id", self.cluster_id)
        skipped = catalogue.allocate_producer_ids(1)
        if skipped + 1 < self.first_id:
            catalogue.allocate_producer_ids(self.first_id - skipped - 1)


def start(config: BrokerConfig, faults: Faults, after: AfterReset | None) -> BrokerServer:
    """A broker that serves, on a machine that has these faults. Raises ConfigError."""
    machine = Machine(faults)

    def open_catalogue(path: str) -> Catalogue:
        catalogue = machine.open_catalogue(path)
        if after is not None:
            after.apply(catalogue)
        return catalogue

    server = BrokerServer(config, machine.runtime, open_catalogue, faults)
    server.start()
    return server


def create_topic(server: BrokerServer, name: str, partitions: int, configs: Mapping[str, str]) -> None:
    """Raises a Refusal (``TopicExists``, ``InvalidTopicName``, ``InvalidPartitionCount``, ``InvalidSetting``), StorageError."""
    server.kafka.logs.create_topic(name, partitions, configs)


def shape(server: BrokerServer, topic: str) -> Shape:
    """Makes the topic, with the broker's defaults, if there is none."""
    logs = server.kafka.logs
    if logs.topic(topic) is None:
        try:
            logs.create_topic(topic)
        except TopicExists:  # a client was faster
            pass
    info = logs.require_topic(topic)
    return Shape(info.partitions, logs.topic_config(topic).max_message_bytes, logs.clock.time_ms())


def append(server: BrokerServer, topic: str, batches: Sequence[tuple[int, bytearray]]) -> list[int]:
    """Append record batches, each to its partition, durably. The base offset of each. Raises a Refusal or StorageError; then
    the batches before the refused one have been appended."""
    kafka = server.kafka
    offsets: list[int] = []
    ends: dict[int, int] = {}
    for partition, batch in batches:
        info = kafka.logs.require(topic, partition).append(memoryview(batch), now_ms=kafka.clock.time_ms())
        offsets.append(info.base_offset)
        ends[partition] = info.last_offset + 1
    for partition, end in ends.items():
        _wait_durable(kafka, kafka.logs.require(topic, partition), end)
    return offsets


def _wait_durable(kafka: KafkaContext, log: Log, end: int) -> None:
    done = Event()
    failures: list[StorageError] = []

    def flushed(error: StorageError | None) -> None:
        if error is not None:
            failures.append(error)
        done.set()

    kafka.flusher.wait_durable(log, end, flushed)
    if not done.wait(_DURABLE_S):
        raise StorageError(f"{log.topic}-{log.partition} was not written to the disk within {_DURABLE_S:g} s.")
    if failures:
        raise failures[0]


def records(server: BrokerServer, topic: str) -> list[Record]:
    """All committed records, partition by partition and by offset. Raises UnknownTopic, StorageError."""
    logs = server.kafka.logs
    info = logs.require_topic(topic)
    found: list[Record] = []
    for partition in range(info.partitions):
        log = logs.get(topic, partition)
        if log is not None:
            found += _committed(log)
    return found


def arrived(server: BrokerServer, topic: str, n: int, seen: Extent | None) -> tuple[Extent | None, list[Record] | None]:
    """What there is now, and the committed records if there are ``n`` of them and the extent is not ``seen``. A topic that does
    not exist has no extent."""
    logs = server.kafka.logs
    info = logs.topic(topic)
    if info is None:
        return None, [] if n <= 0 else None
    own = [log for log in (logs.get(topic, number) for number in range(info.partitions)) if log is not None]
    bounds = tuple((log.log_start_offset, log.last_stable_offset) for log in own)
    extent = info.topic_id.bytes, bounds
    # Markers of transactions and compaction make the records fewer than the offsets, and nothing makes them more.
    if extent == seen or sum(end - start for start, end in bounds) < n:
        return extent, None
    found = [record for log in own for record in _committed(log)]
    return extent, found if len(found) >= n else None


def _committed(log: Log) -> Iterator[Record]:
    """From the log's start to its last stable offset as they are now."""
    offset, stable = log.log_start_offset, log.last_stable_offset
    while offset < stable:
        try:
            read = log.read(offset, _READ_BYTES, up_to=stable)
        except OffsetOutOfRange:  # deleted meanwhile
            if log.log_start_offset <= offset:
                return
            offset = log.log_start_offset
            continue
        if not read.size:
            return
        aborted = log.transactions.aborted(offset, read, stable)
        for region in read.regions:
            data, position = region.file.pread(region.size, region.offset), 0
            while position < len(data):
                header = read_header(data, position)
                is_aborted = header.is_transactional and any(
                    each.producer_id == header.producer_id
                    and each.first_offset <= header.base_offset < each.last_offset
                    for each in aborted
                )
                if not header.is_control and not is_aborted:
                    yield from _opened(log, data[position : position + header.size], offset)
                position += header.size
                offset = max(offset, header.next_offset)


def _opened(log: Log, batch: bytes, start: int) -> list[Record]:
    """The records of a batch from ``start`` on. A message of Pulsar's is a record, as for a Kafka consumer."""
    header = read_header(batch)
    if header.is_entry:
        translated = inspection.as_records(memoryview(batch), header, log.around.large_entries)
        if translated is not None:
            header, batch = read_header(translated), bytes(translated)
    return inspection.inspect(
        batch,
        header,
        log.config,
        log.around.large_shown,
        lambda data: [
            Record(log.partition, record.offset, record.timestamp, record.key, record.value, record.headers)
            for record in read_records(header, data, start)
            if record.offset >= start
        ],
    )


def committed(server: BrokerServer, group: str) -> dict[TopicPartition, int]:
    """Raises BrokerError while the groups cannot be read."""
    error, topics = server.kafka.groups.offsets.fetch(group, None)
    if error:
        raise BrokerError(f"The offsets of the group {group!r} cannot be read now: {error.name}.")
    return {
        (topic, partition): offset.offset
        for topic, partitions in topics
        for partition, offset in partitions
        if offset is not None
    }


def lag(server: BrokerServer, group: str, topic: str | None) -> int:
    """See ``BrokerCalls.lag``."""
    kafka = server.kafka
    known = committed(server, group)
    topics = sorted({name for name, _ in known}) if topic is None else [topic]
    if not topics:
        raise BrokerError(
            f"The group {group!r} has committed no offset, so nothing says what it reads: name the topic, as in"
            f" lag({group!r}, 'orders')."
        )
    total = 0
    for name in topics:
        for partition in range(kafka.logs.require_topic(name).partitions):
            log = kafka.logs.require(name, partition)
            total += behind(max(known.get((name, partition), 0), log.log_start_offset), log.high_watermark)
    return total


def reset_topics(server: BrokerServer) -> None:
    """See ``BrokerCalls.reset_topics``. Raises StorageError."""
    kafka = server.kafka
    logs = list(kafka.logs.partitions.values())
    moved = []
    for log in logs:
        end = log.high_watermark
        if log.log_start_offset < end:
            log.durability.flush_to(end)  # a log must not begin after its durable end
            log.trimming.advance_start(end)
            moved.append(log)
    if moved:
        kafka.logs.checkpoints.save_log_starts()
    for log in moved:
        log.trimming.drop_old_segments()
    for info in kafka.logs.topics():
        kafka.groups.expiration.on_topic_deleted(info.name)


def add_user(server: BrokerServer, name: str, password: str) -> None:
    """Raises ConfigError."""
    server.security.credentials.set_password(name, password, server.runtime.entropy)
