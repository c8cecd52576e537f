"""The cost of 10,000 connections and 10,000 partitions, beside 10 of them, and of a broker at rest and at its start.

``connections``: requests of one record at 4,000/s over 10 connections; over 100; and over 100 of 10,000. ``partitions``: the same
over 10 partitions; over 10 of 10,000; over all 10,000. Both produce and fetch, in two brokers, of which one rests meanwhile.
``idle``: one connection with five requests in flight, with and without 1,000 that are idle, in one broker. ``rest``: CPU (ms/s)
and memory of a broker that only has connections, partitions or records. ``start``: from exec to ready, of a new broker and of one
with 10,000 partitions after a clean stop and after a kill. ``scrape``: all metrics of 10,000 partitions and 1,000 groups.

Needs 20,000 descriptors (``ulimit -n``), and 40,000 for each of 10,000 partitions to keep its file open.
"""

import argparse
import random
import select
import signal
import socket
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial

from protocol.kafka.api_keys import ApiKey
from tests.bench.frame import Figures, Meter, Options, Row, compared, percentiles
from tests.bench.process import BrokerProcess
from tests.bench.wire import Wire, batch, fetch_frame, idle, produce, produce_frame

FEW = 10
BUSY = 100
_RECORD = batch(1, 100)
_TOPIC = "scale"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=4000, help="requests/s (default: 4,000)")


def _many(options: Options) -> int:
    return options.count(10_000, BUSY + 1)


def _frames(partitions: int, fetch: bool) -> list[bytes]:
    """Fetch requests of the first record, or Produce requests of one record, one for each partition."""
    if fetch:
        return [fetch_frame(_TOPIC, 0, 1, partition=number) for number in range(partitions)]
    return [produce_frame(_TOPIC, _RECORD, partition=number) for number in range(partitions)]


class Load:
    """Requests at a fixed rate over some connections, one in flight on each."""

    def __init__(self, connections: Sequence[socket.socket], frames: Sequence[bytes], seed: int = 1) -> None:
        self._by_fd = {each.fileno(): each for each in connections}
        self._idle = list(connections)
        self._frames = frames
        self._random = random.Random(seed)
        self._sent_at: dict[int, float] = {}
        self._poll = select.epoll()
        for each in connections:
            self._poll.register(each, select.EPOLLIN)

    def run(self, rate: float, seconds: float) -> list[float]:
        """The latency (s) of each request, from when it was sent. A rate that is too high is not reached: then a request
        follows as soon as a connection is free."""
        latencies: list[float] = []
        due = time.perf_counter()
        end = due + seconds
        waiting = 0  # requests that are due and have no connection yet
        while True:
            now = time.perf_counter()
            while due <= now and due < end:
                waiting += 1
                due += 1 / rate
            while waiting and self._idle:
                number = self._random.randrange(len(self._idle))
                connection = self._idle[number]
                self._idle[number] = self._idle[-1]
                self._idle.pop()
                waiting -= 1
                self._sent_at[connection.fileno()] = time.perf_counter()
                connection.send(self._random.choice(self._frames))
            if now >= end:
                waiting = 0
                if not self._sent_at:
                    return latencies
            for fd, _ in self._poll.poll(max(0.0, due - time.perf_counter()) if now < end else 1.0, 64):
                assert self._by_fd[fd].recv(65536), "the broker closed the connection"
                latencies.append(time.perf_counter() - self._sent_at.pop(fd))
                self._idle.append(self._by_fd[fd])

    def measure(self, broker: BrokerProcess, options: Options) -> Figures:
        self.run(options.rate, min(0.3, options.seconds))
        with Meter(broker) as meter:
            latencies = self.run(options.rate, options.seconds)
        return meter.figures(len(latencies)) | percentiles("", latencies)


def _compare(
    options: Options, what: str, cases: dict[str, tuple[BrokerProcess, list[socket.socket], list[bytes]]]
) -> Iterator[Row]:
    loads = {name: (broker, Load(connections, frames)) for name, (broker, connections, frames) in cases.items()}
    works = {name: partial(load.measure, broker, options) for name, (broker, load) in loads.items()}
    yield from compared(options.rounds, works, f"{what}: ")
    for _, connections, _ in cases.values():
        for each in connections:
            each.close()


def bench_connections(options: Options) -> Iterator[Row]:
    many_connections = _many(options)
    with BrokerProcess() as few, BrokerProcess() as many:
        for broker in (few, many):
            _fill(broker.address, FEW, 0)
        others = idle(many.address, many_connections - BUSY)
        for fetch in (False, True):
            frames = _frames(FEW, fetch)
            if fetch:
                for broker in (few, many):
                    _write_each(broker.address, FEW)
            cases = {
                f"{FEW} connections": (few, idle(few.address, FEW), frames),
                f"{BUSY} connections": (few, idle(few.address, BUSY), frames),
                f"{BUSY} of {many_connections} connections": (many, idle(many.address, BUSY), frames),
            }
            yield from _compare(options, "fetch" if fetch else "produce", cases)
        for each in others:
            each.close()


def _write_each(address: str, partitions: int) -> None:
    """One record into each partition."""
    wire, frames = Wire(address), _frames(partitions, fetch=False)
    for first in range(0, partitions, 100):
        wire.send(b"".join(frames[first : first + 100]))
        for _ in frames[first : first + 100]:
            wire.receive()
    wire.close()


def _fill(address: str, partitions: int, records: int) -> None:
    wire = Wire(address)
    wire.create_topic(_TOPIC, partitions)
    wire.close()
    for _ in range(records):
        _write_each(address, partitions)


def bench_partitions(options: Options) -> Iterator[Row]:
    partitions = _many(options)
    with BrokerProcess() as few, BrokerProcess() as many:
        _fill(few.address, FEW, 1)
        _fill(many.address, partitions, 1)
        for fetch in (False, True):
            frames = _frames(partitions, fetch)
            cases = {
                f"{FEW} partitions": (few, idle(few.address, FEW), frames[:FEW]),
                f"{FEW} of {partitions} partitions": (many, idle(many.address, FEW), frames[:FEW]),
                f"{partitions} partitions": (many, idle(many.address, FEW), frames),
            }
            yield from _compare(options, "fetch" if fetch else "produce", cases)


def bench_idle(options: Options) -> Iterator[Row]:
    count, idle_connections = options.count(30_000, 10), options.count(1000)
    frame = produce_frame(_TOPIC, _RECORD)
    with BrokerProcess() as broker:
        wire = Wire(broker.address)
        wire.create_topic(_TOPIC)

        def once(beside: int) -> Figures:
            others = idle(broker.address, beside)
            with Meter(broker) as meter:
                produce(wire, frame, _TOPIC, count, 5)
            for each in others:
                each.close()
            return meter.figures(count)

        works = {str(count): partial(once, count) for count in (0, idle_connections)}
        yield from compared(options.rounds, works, "produce 1 x 100 B, idle connections: ")


def bench_rest(options: Options) -> Iterator[Row]:
    many = _many(options)

    def rested(broker: BrokerProcess, name: str, count: int, before_mb: float) -> Row:
        time.sleep(min(2.0, options.seconds))
        with Meter(broker) as meter:
            time.sleep(options.seconds)
        rss = broker.rss_mb()
        each = {"KB each": (rss - before_mb) * 1024 / count} if count else {}
        return Row(name, {"CPU ms/s": meter.cpu_s / meter.took_s * 1e3, "RSS MB": rss} | each)

    with BrokerProcess() as broker:
        before = broker.rss_mb()
        yield rested(broker, "nothing", 0, before)
        connections = idle(broker.address, many)
        yield rested(broker, f"{many} connections", many, before)
        for each in connections:
            each.close()
    with BrokerProcess() as broker:
        before = broker.rss_mb()
        _fill(broker.address, many, 0)
        yield rested(broker, f"{many} empty partitions", many, before)
        _write_each(broker.address, many)
        yield rested(broker, f"{many} partitions with records", many, before)
    with BrokerProcess() as broker:
        wire, frame = Wire(broker.address), produce_frame(_TOPIC, batch(16, 1000))
        wire.create_topic(_TOPIC)
        produce(wire, frame, _TOPIC, options.count(1000), 5)
        before, count = broker.rss_mb(), options.count(60_000)
        produce(wire, frame, _TOPIC, count, 5)
        yield Row("a log", {"GB": count * 16e-6, "MB a GB": (broker.rss_mb() - before) / (count * 16e-6)})


def bench_start(options: Options) -> Iterator[Row]:
    times = []
    for _ in range(options.rounds):
        with BrokerProcess(directory=options.directory) as broker:
            times.append(broker.ready_s)
    yield Row("a new broker", {"start s": statistics.median(times), "best s": min(times)})
    partitions = _many(options)
    with BrokerProcess(directory=options.directory) as broker:
        _fill(broker.address, partitions, 0)
        for what, sign, written in (
            ("clean stop, empty", signal.SIGTERM, False),
            ("kill, empty", signal.SIGKILL, False),
            ("clean stop, a record in each", signal.SIGTERM, True),
            ("kill, a record in each", signal.SIGKILL, True),
            ("clean stop, a further record in each", signal.SIGTERM, True),
        ):
            if written:
                _write_each(broker.address, partitions)
            ended_s = broker.end(sign)
            broker.start()
            figures = {"end s": ended_s, "start s": broker.ready_s, "CPU s": broker.cpu_s()}
            yield Row(f"{partitions} partitions, {what}", figures)


def bench_scrape(options: Options) -> Iterator[Row]:
    partitions, groups = options.count(1000) * 10, options.count(1000)
    with BrokerProcess(listener="kafka,http") as broker:
        wire = Wire(broker.address)
        wire.create_topic(_TOPIC, partitions)
        for number in range(groups):
            rows = [
                {"partition_index": number * 10 % partitions + n, "committed_offset": 1, "committed_leader_epoch": -1}
                for n in range(10)
            ]
            fields = {"group_id": f"group-{number}", "topics": [{"name": _TOPIC, "partitions": rows}]}
            reply = wire.call(ApiKey.OFFSET_COMMIT, 7, fields)
            assert not any(each.error_code for each in reply.topics[0].partitions)
        _write_each(broker.address, partitions)
        load = Load(idle(broker.address, FEW), _frames(FEW, fetch=False))
        url = f"http://{broker.listeners['http']}/metrics"
        sizes: list[int] = []

        def scrape() -> None:
            with urllib.request.urlopen(url) as answer:
                sizes.append(len(answer.read()))

        for what in ("nothing", "the first scrape", "a later scrape"):
            thread = threading.Thread(target=scrape if what != "nothing" else lambda: None)
            with Meter(broker) as meter:
                thread.start()
                latencies = load.run(100, options.seconds)
                thread.join()
            figures = {"KiB": sizes[-1] / 1024} if sizes else {}
            yield Row(what, figures | {"CPU ms": meter.cpu_s * 1e3} | percentiles("produce meanwhile ", latencies))


SECTIONS = {
    "connections": bench_connections,
    "partitions": bench_partitions,
    "idle": bench_idle,
    "rest": bench_rest,
    "start": bench_start,
    "scrape": bench_scrape,
}
