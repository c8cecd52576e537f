"""What 10,000 connections and 10,000 partitions cost, beside 10 of them.

    python -m tests.bench.scale [connections] [partitions] [rest] [start] [--rounds 3] [--seconds 4] [--rate 4000]

``connections``: the same rate of one-record requests over 10 connections; over 100; and over 100 of 10,000. ``partitions``: the
same over 10 partitions; over 10 of 10,000; over all 10,000. Both in turn, in two brokers at the same time (of which one rests),
and both produce and fetch. The median over the rounds of the broker's CPU a request, and the latency at that rate.

``rest``: CPU (in 1/1000 of a core) and memory of a broker that only has them: 10,000 connections, 10,000 partitions.

``start``: how long a broker with 10,000 partitions takes from exec to ready after a clean stop and after a kill, and to stop.

Needs 20,000 descriptors (``ulimit -n``), and 40,000 for each of 10,000 partitions to keep its file open.
"""

import argparse
import os
import random
import select
import signal
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.process import BrokerProcess, figure
from tests.bench.wire import Wire, batch, fetch_frame, produce_frame

MANY = 10_000
FEW = 10
BUSY = 100
_RECORD = batch(1, 100)


def _partition_frame(partition: int, fetch: bool) -> bytes:
    """A Produce request of one record, or a Fetch request of the first record, for a partition of the topic ``scale``."""
    if fetch:
        frame = bytearray(fetch_frame("scale", 0, 1))
        struct.pack_into(">i", frame, len(frame) - 16, partition)
    else:
        frame = bytearray(produce_frame("scale", _RECORD))
        struct.pack_into(">i", frame, len(frame) - len(_RECORD) - 8, partition)
    return bytes(frame)


def connect(address: str, count: int) -> list[socket.socket]:
    """Connections that have been used once."""
    host, port = address.rsplit(":", 1)
    ask = struct.pack(">ihhih", 14, 18, 0, 1, 4) + b"idle"
    connections = []
    for _ in range(count):
        connection = socket.create_connection((host, int(port)), timeout=60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(ask)
        assert connection.recv(65536)
        connections.append(connection)
    return connections


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
        """The latency (s) of each request, from when it was sent. A rate that is too high is not reached: then a request follows
        as soon as a connection is free."""
        latencies: list[float] = []
        began = time.perf_counter()
        due = began
        end = began + seconds
        step = 1 / rate
        waiting = 0  # requests that are due and have no connection yet
        while True:
            now = time.perf_counter()
            while due <= now and due < end:
                waiting += 1
                due += step
            while waiting and self._idle:
                number = self._random.randrange(len(self._idle))
                connection = self._idle[number]
                self._idle[number] = self._idle[-1]
                self._idle.pop()
                waiting -= 1
                frame = self._random.choice(self._frames)
                self._sent_at[connection.fileno()] = time.perf_counter()
                connection.send(frame)
            if now >= end:
                waiting = 0
                if not self._sent_at:
                    return latencies
            for fd, _ in self._poll.poll(max(0.0, due - time.perf_counter()) if now < end else 1.0, 64):
                data = self._by_fd[fd].recv(65536)
                assert data, "the broker closed the connection"
                latencies.append(time.perf_counter() - self._sent_at.pop(fd))
                self._idle.append(self._by_fd[fd])


Case = tuple[str, BrokerProcess, Load]


def compare(cases: Sequence[Case], rounds: int, seconds: float, rate: float) -> None:
    """Run them in turn, and print the medians beside those of the first."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for number in range(rounds):
        for name, broker, load in cases if number % 2 == 0 else reversed(cases):
            load.run(rate, 0.3)
            cpu = broker.cpu_s()
            latencies = sorted(load.run(rate, seconds))
            cpu = broker.cpu_s() - cpu
            at = latencies.__getitem__
            count = len(latencies)
            found.setdefault(name, []).append((cpu / count * 1e6, at(count // 2) * 1e6, at(count * 99 // 100) * 1e6))
    first = found[cases[0][0]]
    for name, *_ in cases:
        medians = [statistics.median(column) for column in zip(*found[name], strict=True)]
        ratios = [
            statistics.median(one[n] / other[n] for one, other in zip(found[name], first, strict=True))
            for n in range(3)
        ]
        texts = [f"{median:8.1f} us ({ratio:4.2f}x)" for median, ratio in zip(medians, ratios, strict=True)]
        print(f"{name:50} CPU {texts[0]}  p50 {texts[1]}  p99 {texts[2]}", flush=True)
        figure(name, medians[0])


def bench_connections(rounds: int, seconds: float, rate: float) -> None:
    with BrokerProcess("num_partitions=10") as few, BrokerProcess("num_partitions=10") as many:
        for broker in (few, many):
            Wire(broker.address).create_topic("scale", FEW)
        idle = connect(many.address, MANY - BUSY)
        for fetch in (False, True):
            frames = [_partition_frame(number, fetch) for number in range(FEW)]
            what = "fetch" if fetch else "produce"
            cases: list[Case] = [
                (f"{what}: {FEW} connections", few, Load(connect(few.address, FEW), frames)),
                (f"{what}: {BUSY} connections", few, Load(connect(few.address, BUSY), frames)),
                (f"{what}: {BUSY} of {MANY} connections", many, Load(connect(many.address, BUSY), frames)),
            ]
            compare(cases, rounds, seconds, rate)
        del idle


def create(address: str, partitions: int) -> None:
    wire = Wire(address)
    wire.create_topic("scale", partitions)
    wire.close()


def write_each(address: str, partitions: int) -> None:
    """One record into each partition."""
    wire = Wire(address)
    for first in range(0, partitions, 100):
        numbers = range(first, min(first + 100, partitions))
        for number in numbers:
            wire.send(_partition_frame(number, False))
        for _ in numbers:
            wire.receive()
    wire.close()


def bench_partitions(rounds: int, seconds: float, rate: float) -> None:
    with BrokerProcess() as few, BrokerProcess() as many:
        create(few.address, FEW)
        create(many.address, MANY)
        write_each(few.address, FEW)
        write_each(many.address, MANY)
        for fetch in (False, True):
            frames = [_partition_frame(number, fetch) for number in range(MANY)]
            what = "fetch" if fetch else "produce"
            cases: list[Case] = [
                (f"{what}: {FEW} partitions", few, Load(connect(few.address, FEW), frames[:FEW])),
                (f"{what}: {FEW} of {MANY} partitions", many, Load(connect(many.address, FEW), frames[:FEW])),
                (f"{what}: {MANY} partitions", many, Load(connect(many.address, FEW), frames)),
            ]
            compare(cases, rounds, seconds, rate)


def _at_rest(name: str, broker: BrokerProcess, before_mb: float, count: int, seconds: float) -> None:
    time.sleep(2)
    cpu = broker.cpu_s()
    time.sleep(seconds)
    used = (broker.cpu_s() - cpu) / seconds
    rss = broker.rss_mb()
    print(
        f"{name:50} CPU {used * 1000:6.2f} ms/s  {rss:6.1f} MB, {(rss - before_mb) * 1024 / count:5.2f} KB each",
        flush=True,
    )


def bench_rest(rounds: int, seconds: float, rate: float) -> None:
    seconds = max(seconds, 10)
    with BrokerProcess() as broker:
        before = broker.rss_mb()
        _at_rest("nothing", broker, before, 1, seconds)
        idle = connect(broker.address, MANY)
        _at_rest(f"{MANY} connections", broker, before, MANY, seconds)
        for each in idle:
            each.close()
    with BrokerProcess() as broker:
        before = broker.rss_mb()
        began = time.perf_counter()
        create(broker.address, MANY)
        print(f"{MANY} partitions created in {time.perf_counter() - began:.1f} s")
        _at_rest(f"{MANY} empty partitions", broker, before, MANY, seconds)
        write_each(broker.address, MANY)
        _at_rest(f"{MANY} partitions with records", broker, before, MANY, seconds)


def bench_start(rounds: int, seconds: float, rate: float) -> None:
    class Kept(BrokerProcess):
        """Can be started again."""

        def end(self, sign: int) -> float:
            began = time.perf_counter()
            self._process.send_signal(sign)
            self._process.wait(120)
            (Path(self._directory.name) / "ready.json").unlink(missing_ok=True)
            return time.perf_counter() - began

    broker = Kept()
    broker.__enter__()
    try:
        create(broker.address, MANY)
        for what, sign, written in (
            ("clean stop, empty", signal.SIGTERM, 0),
            ("kill, empty", signal.SIGKILL, 0),
            ("clean stop, a record in each", signal.SIGTERM, 1),
            ("kill, a record in each", signal.SIGKILL, 1),
            ("clean stop, a further record in each", signal.SIGTERM, 1),
        ):
            if written:
                write_each(broker.address, MANY)
            took = broker.end(sign)
            broker.__enter__()
            print(
                f"{what:40} end {took:5.2f} s, start {broker.ready_s:5.2f} s, CPU {broker.cpu_s():5.2f} s", flush=True
            )
    finally:
        broker.__exit__(None, None, None)


TESTS: dict[str, Callable[[int, float, float], None]] = {
    "connections": bench_connections,
    "partitions": bench_partitions,
    "rest": bench_rest,
    "start": bench_start,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=[], choices=[*TESTS, []], help="all of them if none is given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rate", type=float, default=4000)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    for name in options.tests or TESTS:
        TESTS[name](options.rounds, options.seconds, options.rate)


if __name__ == "__main__":
    main()
