"""`broker bench`: how fast a broker is, with Kafka's protocol, so that it measures any Kafka broker.

It measures with this project's own client, and says so: figures of another client are other figures. ``bench_runs.py`` has the
measuring.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from broker.cli import completing
from broker.cli.broker_options import Target, broker_options
from broker.cli.client import kafka
from broker.cli.interrupt import Interrupts
from broker.cli.output import is_formatted, output_option, print_object, print_table, say
from broker.errors import BrokerError

if TYPE_CHECKING:
    from broker.cli.bench_runs import Load, Measured
    from broker.client.kafka import Cluster

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
@click.option(
    "--compression",
    "-z",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Codec of the batches.",
)
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
    from broker.cli.bench_runs import Load
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
            found = _run(cluster, name, numbers, load, seconds, wanted, lambda: interrupts.requested)
        stopped = interrupts.requested
    if as_json:
        for one in found:
            _print_as_json(one, load, compression, len(numbers))
    else:
        print_table(_COLUMNS, [_row(one) for one in found])
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
    from broker.cli.bench_runs import consume, end_to_end, produce
    from broker.client.kafka.values import EARLIEST, LATEST

    found = []
    keys = [(topic, partition) for partition in partitions]
    if "produce" in wanted:
        found.append(produce(cluster, topic, partitions, load, seconds, stop))
    if "consume" in wanted and not stop():
        starts = cluster.offsets(dict.fromkeys(keys, EARLIEST))
        ends = cluster.offsets(dict.fromkeys(keys, LATEST))
        if starts == ends:  # a topic of its own, without a test that fills it
            produce(cluster, topic, partitions, load, seconds, stop)
            ends = cluster.offsets(dict.fromkeys(keys, LATEST))
        found.append(consume(cluster, {key: (starts[key] or 0, ends[key] or 0) for key in keys}, seconds, stop))
    if "end-to-end" in wanted and not stop():
        found.append(end_to_end(cluster, topic, partitions[0], load, seconds, stop))
    return found


@contextlib.contextmanager
def _topic(cluster: "Cluster", name: str | None, partitions: int) -> Iterator[tuple[str, Sequence[int]]]:
    """The topic and its partitions; one of its own is deleted in any case."""
    from broker.client.kafka.admin.topics import create_topics, delete_topics
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
        # Other brokers of a cluster hear of it one after the other.
        cluster.make_topics([name])
        yield name, range(partitions)
    finally:
        delete_topics(cluster.routing, [name])


def _row(one: "Measured") -> tuple[object, ...]:
    latencies = [one.percentile_ms(percent) for percent in _PERCENTS]
    return (
        one.what,
        one.records,
        round(one.seconds, 2),
        round(one.records_s),
        round(one.bytes_s / 1e6, 2),
        *(None if latency is None else round(latency, 3) for latency in latencies),
    )


def _print_as_json(one: "Measured", load: "Load", compression: str, partitions: int) -> None:
    print_object(
        {
            "test": one.what,
            "client": _CLIENT,
            "record_bytes": load.record_bytes,
            "batch_records": 1 if one.what == "end-to-end" else load.batch_records,
            "acks": load.acks,
            "compression": compression,
            "partitions": partitions,
            "rate": load.rate,
            "records": one.records,
            "bytes": one.bytes,
            "seconds": one.seconds,
            "records_s": one.records_s,
            "bytes_s": one.bytes_s,
            "requests": len(one.latencies_s),
            "latency_ms": {f"p{percent:g}".replace("p100", "max"): one.percentile_ms(percent) for percent in _PERCENTS},
        }
    )
