"""What `broker bench` measures: producing, consuming, and the way of a record from end to end, each with our own Kafka client.

The client moves whole record batches and does not make a Python object of each record, so that the broker is measured and not the
client. A run ends after its time, or when it is told to stop; what it has measured until then counts.

Tests: tests/cli/test_bench.py.
"""

import base64
import math
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from broker.errors import BrokerError
from broker.runtime.dial import pause
from broker.runtime.entropy import SystemEntropy
from protocol.kafka.records.batch import batches, set_times
from protocol.kafka.records.records import build_batch

if TYPE_CHECKING:
    from broker.client.kafka import Cluster
    from broker.client.kafka.producer import Producer
    from broker.client.kafka.values import TopicPartition
    from broker.runtime.clock import Clock

# Latencies that are kept: enough for minutes, and 32 MB.
_LATENCIES_MAX = 4_000_000
_END_TO_END_WAIT_MS = 500
_MANY_PARTITIONS = 1000
_RANDOM_BYTES = 64 * 1024


@attrs.frozen
class Load:
    """What is sent. ``record_bytes`` is the size of a value; records have no keys. ``rate``: records/s, None for as many as
    possible. ``bytes_max``: bytes of values after which producing ends."""

    record_bytes: int
    batch_records: int
    acks: str = "all"
    compression: int = 0
    rate: float | None = None
    bytes_max: int = 2**62


@attrs.frozen
class Measured:
    """``latencies_s`` are those of one request each (of a record for ``end-to-end``), sorted."""

    what: str
    records: int
    bytes: int
    seconds: float
    latencies_s: Sequence[float]

    @property
    def records_s(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def bytes_s(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0

    def percentile_ms(self, percent: float) -> float | None:
        """The smallest latency that ``percent`` of all do not exceed; None without any."""
        if not self.latencies_s:
            return None
        rank = math.ceil(len(self.latencies_s) * percent / 100)
        return self.latencies_s[max(rank, 1) - 1] * 1000


class Latencies:
    def __init__(self) -> None:
        self._found = array("d")

    def add(self, seconds: float) -> None:
        if len(self._found) < _LATENCIES_MAX:
            self._found.append(seconds)

    def sorted(self) -> Sequence[float]:
        return sorted(self._found)


def produce(
    cluster: "Cluster", topic: str, partitions: Sequence[int], load: Load, seconds: float, stop: Callable[[], bool]
) -> Measured:
    """A latency is the time from the sending of a batch to its acknowledgement. With a rate it begins when the batch was due:
    a broker that is slow for a moment delays all that is due meanwhile."""
    template = _template(load)
    clock, found = cluster.clock, Latencies()
    with cluster.producer(acks=load.acks) as producer:
        sent = dict.fromkeys(partitions, 0)
        for partition in partitions[:_MANY_PARTITIONS]:  # connections and the producer's id
            producer.send(topic, partition, bytearray(template), load.batch_records)
            sent[partition] += load.batch_records
        producer.flush()
        waiting = _Waiting(producer, clock, topic, found)
        begun = clock.monotonic()
        due, count, size = begun, 0, 0
        while not stop() and size < load.bytes_max:
            now = clock.monotonic()
            if load.rate is not None and now < due:
                producer.flush()
                waiting.take()
                pause(due - clock.monotonic())
                now = clock.monotonic()
            if now - begun >= seconds:
                break
            partition = partitions[count // load.batch_records % len(partitions)]
            data = bytearray(template)
            set_times(data, clock.time_ms())
            started = now if load.rate is None else due
            producer.send(topic, partition, data, load.batch_records)
            sent[partition] += load.batch_records
            count, size = count + load.batch_records, size + load.record_bytes * load.batch_records
            if load.acks != "0":
                waiting.add(partition, sent[partition], started)
                waiting.take()
            if load.rate is not None:
                due += load.batch_records / load.rate
        producer.flush()
        waiting.take()
        return Measured("produce", count, size, clock.monotonic() - begun, found.sorted())


class _Waiting:
    """Batches that are sent and not yet acknowledged, by partition."""

    def __init__(self, producer: "Producer", clock: "Clock", topic: str, found: Latencies) -> None:
        self._producer, self._clock, self._topic, self._found = producer, clock, topic, found
        self._batches: dict[TopicPartition, deque[tuple[int, float]]] = {}

    def add(self, partition: int, records: int, started: float) -> None:
        """``records``: how many the partition has when this batch is acknowledged."""
        self._batches.setdefault((self._topic, partition), deque()).append((records, started))

    def take(self) -> None:
        acknowledged, now = self._producer.acknowledged, self._clock.monotonic()
        for key in list(self._batches):
            waiting, done = self._batches[key], acknowledged.get(key, 0)
            while waiting and waiting[0][0] <= done:
                self._found.add(now - waiting.popleft()[1])
            if not waiting:
                del self._batches[key]


def consume(
    cluster: "Cluster", ends: "Mapping[TopicPartition, tuple[int, int]]", seconds: float, stop: Callable[[], bool]
) -> Measured:
    """Read each partition from its first to its last offset of ``ends``, all in turn. A latency is the time until the next answer
    is there, which the client has asked for while it counted the last one. The bytes are those of the batches, compressed."""
    clock, found = cluster.clock, Latencies()
    fetchers = {key: cluster.fetcher(*key, start, end) for key, (start, end) in ends.items() if end > start}
    records = size = 0
    begun = clock.monotonic()
    try:
        while fetchers and not stop() and clock.monotonic() - begun < seconds:
            for key, fetcher in list(fetchers.items()):
                asked = clock.monotonic()
                fetched = next(fetcher, None)
                if fetched is None:
                    del fetchers[key]
                    continue
                found.add(clock.monotonic() - asked)
                size += len(fetched.data)
                records += sum(header.record_count for _, header in batches(fetched.data))
        return Measured("consume", records, size, clock.monotonic() - begun, found.sorted())
    finally:
        for fetcher in fetchers.values():
            fetcher.close()


def end_to_end(
    cluster: "Cluster", topic: str, partition: int, load: Load, seconds: float, stop: Callable[[], bool]
) -> Measured:
    """One record at a time, while a fetch waits for it at the broker. A latency is the time from the sending of the record to its
    arrival."""
    from broker.client.kafka.values import LATEST

    clock, found = cluster.clock, Latencies()
    template = _template(attrs.evolve(load, batch_records=1))
    start = cluster.offsets({(topic, partition): LATEST})[topic, partition] or 0
    count, begun = 0, clock.monotonic()
    with (
        cluster.producer(acks=load.acks) as producer,
        cluster.fetcher(topic, partition, start, max_wait_ms=_END_TO_END_WAIT_MS, min_bytes=1) as fetcher,
    ):

        def move_one() -> float:
            """The time when it has arrived."""
            data = bytearray(template)
            set_times(data, clock.time_ms())
            producer.send(topic, partition, data, 1)
            producer.transmit()
            given_up = clock.monotonic() + cluster.config.api_timeout_ms / 1000
            while not len(next(fetcher).data):
                if clock.monotonic() >= given_up:
                    raise BrokerError(f"A record that was sent to {topic}-{partition} does not arrive.")
            arrived = clock.monotonic()
            producer.flush()
            return arrived

        move_one()  # opens the connections
        begun = clock.monotonic()
        while not stop() and (sent := clock.monotonic()) - begun < seconds:
            found.add(move_one() - sent)
            count += 1
            if load.rate is not None:
                pause(begun + count / load.rate - clock.monotonic())
        return Measured("end-to-end", count, count * load.record_bytes, clock.monotonic() - begun, found.sorted())


def _template(load: Load) -> bytearray:
    """Values of random letters, each another, so that a codec has about as much to do as with text."""
    letters = base64.b64encode(SystemEntropy.bytes(load.record_bytes + _RANDOM_BYTES))
    starts = (7 * index % _RANDOM_BYTES for index in range(load.batch_records))
    values = (letters[start : start + load.record_bytes] for start in starts)
    return build_batch([(None, value, [], 0) for value in values], compression=load.compression)
