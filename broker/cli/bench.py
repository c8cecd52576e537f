"""`broker bench`: measures how fast a broker is, with Kafka's protocol, so that it measures any Kafka broker.

It measures producing, consuming, and the way of a record from end to end, each with this project's own client, and says
so: other clients give other figures. The client moves whole record batches and does not make a Python object of each
record, so that the broker is measured and not the client. A run ends after its time, or when it is interrupted; the
results until then count.
"""

import base64
import contextlib
import math
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import click

from broker.cli import completing
from broker.cli.broker_options import Target, broker_options, compression_option
from broker.cli.client import kafka
from broker.cli.output import Interrupts, is_formatted, output_option, print_object, print_table, say
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


# How many latencies are kept: enough for minutes, and 32 MB.
_LATENCIES_MAX = 4_000_000
_END_TO_END_WAIT_MS = 500
_MANY_PARTITIONS = 1000
_RANDOM_BYTES = 64 * 1024


@attrs.frozen
class Load:
    """The load to produce. ``record_bytes``: the size of a value; records have no keys. ``rate``: records/s, None for
    as many as possible. ``bytes_max``: bytes of values after which producing ends."""

    record_bytes: int
    batch_records: int
    acks: str = "all"
    compression: int = 0
    rate: float | None = None
    bytes_max: int = 2**62


@attrs.frozen
class Measured:
    """``latencies_s``: one of each request (of each record for ``end-to-end``), sorted."""

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
        """The smallest latency that ``percent`` of all do not exceed; None without latencies."""
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
    """A latency is the time from sending a batch to its acknowledgement. With a rate it begins when the batch was due,
    because a slow broker delays all batches that become due meanwhile."""
    template = _template(load)
    clock, latencies = cluster.clock, Latencies()
    with cluster.producer(acks=load.acks) as producer:
        sent = dict.fromkeys(partitions, 0)
        for partition in partitions[:_MANY_PARTITIONS]:  # opens connections and gets the producer's id
            producer.send(topic, partition, bytearray(template), load.batch_records)
            sent[partition] += load.batch_records
        producer.flush()
        waiting = _Waiting(producer, clock, topic, latencies)
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
        return Measured("produce", count, size, clock.monotonic() - begun, latencies.sorted())


class _Waiting:
    """Batches that are sent and not yet acknowledged, by partition."""

    def __init__(self, producer: "Producer", clock: "Clock", topic: str, latencies: Latencies) -> None:
        self._producer, self._clock, self._topic, self._found = producer, clock, topic, latencies
        self._batches: dict[TopicPartition, deque[tuple[int, float]]] = {}

    def add(self, partition: int, records: int, started: float) -> None:
        """``records``: the number of the partition's records when this batch is acknowledged."""
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
    """Read each partition from its first to its last offset of ``ends``, in turn. A latency is the time until the next
    answer is available, which the client has requested while it counted the previous answer. The bytes are those of the
    batches, compressed."""
    clock, latencies = cluster.clock, Latencies()
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
                latencies.add(clock.monotonic() - asked)
                size += len(fetched.data)
                records += sum(header.record_count for _, header in batches(fetched.data))
        return Measured("consume", records, size, clock.monotonic() - begun, latencies.sorted())
    finally:
        for fetcher in fetchers.values():
            fetcher.close()


def end_to_end(
    cluster: "Cluster", topic: str, partition: int, load: Load, seconds: float, stop: Callable[[], bool]
) -> Measured:
    """Send one record at a time while a fetch waits for it at the broker. A latency is the time from sending the record
    to its arrival."""
    from broker.client.kafka.values import LATEST

    clock, latencies = cluster.clock, Latencies()
    template = _template(attrs.evolve(load, batch_records=1))
    start = cluster.offsets({(topic, partition): LATEST})[topic, partition] or 0
    count, begun = 0, clock.monotonic()
    with (
        cluster.producer(acks=load.acks) as producer,
        cluster.fetcher(topic, partition, start, max_wait_ms=_END_TO_END_WAIT_MS, min_bytes=1) as fetcher,
    ):

        def move_one() -> float:
            """Returns the time of arrival."""
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
            latencies.add(move_one() - sent)
            count += 1
            if load.rate is not None:
                pause(begun + count / load.rate - clock.monotonic())
        return Measured("end-to-end", count, count * load.record_bytes, clock.monotonic() - begun, latencies.sorted())


def _template(load: Load) -> bytearray:
    """Values of random letters, all different, so that a codec has about as much to do as with text."""
    letters = base64.b64encode(SystemEntropy.bytes(load.record_bytes + _RANDOM_BYTES))
    starts = (7 * index % _RANDOM_BYTES for index in range(load.batch_records))
    values = (letters[start : start + load.record_bytes] for start in starts)
    return build_batch([(None, value, [], 0) for value in values], compression=load.compression)


_TESTS = ("produce", "consume", "end-to-end")
_CLIENT = "reactor-broker's own client, whole batches, records not decoded"
_PERCENTS = (50.0, 95.0, 99.0, 99.9, 100.0)
_COLUMNS = ("test", "records", "seconds", "records/s", "MB/s", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms")
_RECORD_OVERHEAD_BYTES = 8
_PARTITIONS = 4


class _Bytes(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on only
    """A number of bytes, with k, m or g for factors of 1024."""

    name = "size"

    def convert(self, value: object, parameter: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).lower()
        number, factor = (text[:-1], 1024 ** (" kmg".index(text[-1]))) if text[-1:] in ("k", "m", "g") else (text, 1)
        if not number.isdecimal() or not 0 < int(number) * factor < 2**50:
            self.fail(f"write a number of bytes as 100, 16k, 1m or 2g, not as {value!r}.", parameter, ctx)
        return int(number) * factor


@click.command()
@click.argument("tests", metavar="[produce|consume|end-to-end]...", nargs=-1, type=click.Choice(_TESTS))
@click.option(
    "--topic",
    metavar="NAME",
    shell_complete=completing.topics,
    help="An existing topic to write to.  [default: a topic of its own, deleted at the end]",
)
@click.option(
    "--partitions", "-p", type=click.IntRange(min=1, max=1000), help="Partitions of a topic of its own.  [default: 4]"
)
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Time of each test at most."
)
@click.option("--max-bytes", type=_Bytes(), default="1g", show_default=True, help="Values that are produced at most.")
@click.option("--record-size", "-s", type=_Bytes(), default="100", show_default=True, help="Bytes of a value.")
@click.option(
    "--batch-size", type=_Bytes(), default="16k", show_default=True, help="Bytes of a batch before it is compressed."
)
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@compression_option
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Records/s to produce.  [default: as many as possible]",
)
@output_option
@broker_options
def command(
    tests: tuple[str, ...],
    topic: str | None,
    partitions: int | None,
    seconds: float,
    max_bytes: int,
    record_size: int,
    batch_size: int,
    acks: str,
    compression: str,
    rate: float | None,
    as_json: bool,
    target: Target,
) -> None:
    """Measure how fast a broker takes and gives records: all three tests, or those that are named.

    \b
    produce     batches as fast as they are acknowledged (or at --rate)
    consume     a topic from its beginning to its end
    end-to-end  single records, from the producer to a waiting consumer

    The percentiles of produce and consume are those of requests, of end-to-end those of records. The client is this project's
    own, which moves whole batches and does not decode records: it measures the broker, not an application.
    """

    from protocol.kafka.records.compression import CODEC_NAMES

    if topic is not None and partitions is not None:
        raise click.UsageError("--partitions is for a topic of its own: leave out --topic or --partitions.")
    records = max(1, batch_size // (record_size + _RECORD_OVERHEAD_BYTES))
    load = Load(record_size, records, acks, CODEC_NAMES.index(compression), rate, max_bytes)
    wanted = [test for test in _TESTS if test in tests] or list(_TESTS)
    with kafka(target, "bench") as cluster, _topic(cluster, topic, partitions or _PARTITIONS) as (name, numbers):
        if is_formatted() and not as_json:
            say(
                f"{target.bootstrap} with {_CLIENT}; values of {record_size} bytes, batches of {records} records,"
                f" {compression}, acks={acks}, {len(numbers)} partition{'s' * (len(numbers) != 1)}"
            )
        with Interrupts() as interrupts:
            results = _run(cluster, name, numbers, load, seconds, wanted, lambda: interrupts.requested)
        stopped = interrupts.requested
    if as_json:
        for result in results:
            _print_as_json(result, load, compression, len(numbers))
    else:
        print_table(_COLUMNS, [_row(result) for result in results])
    if stopped:
        raise click.Abort


def _run(
    cluster: "Cluster",
    topic: str,
    partitions: Sequence[int],
    load: "Load",
    seconds: float,
    wanted: Sequence[str],
    stop: Callable[[], bool],
) -> "list[Measured]":

    from broker.client.kafka.values import EARLIEST, LATEST

    results = []
    keys = [(topic, partition) for partition in partitions]
    if "produce" in wanted:
        results.append(produce(cluster, topic, partitions, load, seconds, stop))
    if "consume" in wanted and not stop():
        starts = cluster.offsets(dict.fromkeys(keys, EARLIEST))
        ends = cluster.offsets(dict.fromkeys(keys, LATEST))
        if starts == ends:  # a topic of its own, without a test that fills it
            produce(cluster, topic, partitions, load, seconds, stop)
            ends = cluster.offsets(dict.fromkeys(keys, LATEST))
        results.append(consume(cluster, {key: (starts[key] or 0, ends[key] or 0) for key in keys}, seconds, stop))
    if "end-to-end" in wanted and not stop():
        results.append(end_to_end(cluster, topic, partitions[0], load, seconds, stop))
    return results


@contextlib.contextmanager
def _topic(cluster: "Cluster", name: str | None, partitions: int) -> Iterator[tuple[str, Sequence[int]]]:
    """The topic and its partitions; a topic of the command's own is deleted in any case."""
    from broker.client.kafka.admin.configs import create_topics, delete_topics
    from broker.runtime.entropy import SystemEntropy

    if name is not None:
        known = cluster.topics([name]).get(name)
        if known is None:
            raise BrokerError(f"There is no topic {name!r}: create it, or leave out --topic for a topic of its own.")
        yield name, known.partitions
        return
    name = f"broker-bench-{SystemEntropy.bytes(4).hex()}"
    (outcome,) = create_topics(cluster.routing, [name], partitions=partitions, replication_factor=None, settings={})
    if outcome.code:
        raise BrokerError(f"The topic {name!r} cannot be created: {outcome.message or outcome.code}.")
    try:
        # Other brokers of a cluster learn of the topic one after the other.
        cluster.make_topics([name])
        yield name, range(partitions)
    finally:
        delete_topics(cluster.routing, [name])


def _row(measured: "Measured") -> tuple[object, ...]:
    latencies = [measured.percentile_ms(percent) for percent in _PERCENTS]
    return (
        measured.what,
        measured.records,
        round(measured.seconds, 2),
        round(measured.records_s),
        round(measured.bytes_s / 1e6, 2),
        *(None if latency is None else round(latency, 3) for latency in latencies),
    )


def _print_as_json(measured: "Measured", load: "Load", compression: str, partitions: int) -> None:
    print_object(
        {
            "test": measured.what,
            "client": _CLIENT,
            "record_bytes": load.record_bytes,
            "batch_records": 1 if measured.what == "end-to-end" else load.batch_records,
            "acks": load.acks,
            "compression": compression,
            "partitions": partitions,
            "rate": load.rate,
            "records": measured.records,
            "bytes": measured.bytes,
            "seconds": measured.seconds,
            "records_s": measured.records_s,
            "bytes_s": measured.bytes_s,
            "requests": len(measured.latencies_s),
            "latency_ms": {
                f"p{percent:g}".replace("p100", "max"): measured.percentile_ms(percent) for percent in _PERCENTS
            },
        }
    )
