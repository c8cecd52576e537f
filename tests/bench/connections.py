"""What connections cost each other: several at once, each with requests of its own kind, in a closed loop.

Each connection sends as soon as it is answered. One thread drives all of them, so rates are those of broker and driver together.
By kind of connection: the rate, and the median and the 99th percentile of the latency. The CPU is that of all requests together.
If a case has both acks=1 and acks=all, they take turns in one broker.
"""

import select
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tests.bench.frame import CPU, Figures, Meter, Options, Row, compared, percentiles
from tests.bench.process import BrokerProcess
from tests.bench.wire import Wire, batch, connect, produce_frame

_INT = struct.Struct(">i")


class Kind(NamedTuple):
    """So many connections, each with so many requests at a time, of so many records of so many bytes."""

    name: str
    connections: int
    requests: int = 1
    records: int = 1
    size: int = 100
    topics: int = 1  # that the connections share out


SMALL = Kind("small", 10)
LARGE = Kind("1 MB", 3, records=1000, size=1000)
BOTH = (1, -1)
# By name: acks, and the connections.
CASES: dict[str, tuple[Sequence[int], list[Kind]]] = {
    "100 small": (BOTH, [SMALL._replace(connections=100)]),
    "100 small, a topic each": (BOTH, [SMALL._replace(connections=100, topics=100)]),
    "3 small": ((1,), [SMALL._replace(connections=3)]),
    "small and 16 KB": ((1,), [SMALL, Kind("16 KB", 10, records=16, size=1000)]),
    "small and runs": ((1,), [SMALL, Kind("100 at a time", 3, requests=100)]),
    "small and long runs": ((1,), [SMALL, Kind("1,000 at a time", 1, requests=1000)]),
    "large": ((1,), [LARGE._replace(connections=6)]),
    "small and large": (BOTH, [SMALL, LARGE]),
}


class Connection:
    def __init__(self, address: str, topic: str, kind: Kind, acks: int) -> None:
        self.socket = connect(address)
        self.latencies_s: list[float] = []
        self._requests = kind.requests
        self._data = produce_frame(topic, batch(kind.records, kind.size), acks) * kind.requests
        self._reply_bytes = self._missing = 0
        self._sent_at = 0.0

    def send(self) -> None:
        self._missing = self._reply_bytes
        self._sent_at = time.perf_counter()
        self.socket.sendall(self._data)

    def receive(self) -> None:
        """Receive the pending answers, and go on when all are there."""
        reply = self.socket.recv(1 << 18)
        assert reply, "the broker has closed the connection"
        if not self._reply_bytes:  # all replies are of the same length
            self._reply_bytes = self._missing = (_INT.unpack_from(reply)[0] + 4) * self._requests
        self._missing -= len(reply)
        if not self._missing:
            self.latencies_s.append(time.perf_counter() - self._sent_at)
            self.send()


def measure(broker: BrokerProcess, acks: int, kinds: Sequence[Kind], seconds: float) -> Figures:
    groups = {
        kind: [Connection(broker.address, f"bench-{n % kind.topics}", kind, acks) for n in range(kind.connections)]
        for kind in kinds
    }
    connections = {each.socket.fileno(): each for group in groups.values() for each in group}
    with select.epoll() as poll, Meter(broker) as meter:
        for descriptor, each in connections.items():
            poll.register(descriptor, select.EPOLLIN)
            each.send()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or not all(each.latencies_s for each in connections.values()):
            for descriptor, _ in poll.poll(1.0):
                connections[descriptor].receive()
    figures: Figures = {}
    answered = 0
    for kind, group in groups.items():
        latencies = [each for connection in group for each in connection.latencies_s]
        answered += len(latencies) * kind.requests
        figures |= {f"{kind.name}/s": len(latencies) * kind.requests / meter.took_s}
        figures |= percentiles(f"{kind.name} ", latencies)
    for each in connections.values():
        each.socket.close()
    return {CPU: meter.cpu_s / answered * 1e6} | figures


def case(name: str) -> Callable[[Options], Iterator[Row]]:
    def section(options: Options) -> Iterator[Row]:
        all_acks, kinds = CASES[name]
        kinds = [kind._replace(requests=options.count(kind.requests)) for kind in kinds]
        with BrokerProcess(directory=options.directory) as broker:
            for number in range(max(kind.topics for kind in kinds)):
                Wire(broker.address).create_topic(f"bench-{number}")
            measure(broker, 1, kinds, options.seconds / 10)
            variants = {
                "all" if acks < 0 else str(acks): partial(measure, broker, acks, kinds, options.seconds)
                for acks in all_acks
            }
            yield from compared(options.rounds, variants, f"{name}, acks=")

    return section


SECTIONS = {name.replace(" ", "-").replace(",", ""): case(name) for name in CASES}
