"""What connections cost each other: several at once, each with requests of its own kind, in a closed loop.

    python -m tests.bench.connections [small] [few] [runs] [large] ... [--seconds 2] [--rounds 3] [--json]

Each connection sends as soon as it is answered. One thread drives all of them, so rates are those of broker and driver together.
By kind of connection: the rate, and the median and the 99th percentile of the latency. The broker's CPU is that of all requests
together. Medians of the rounds.
"""

import argparse
import json
import os
import select
import socket
import statistics
import struct
import time
from typing import NamedTuple

from tests.bench.process import BrokerProcess, figure, show
from tests.bench.wire import Wire, batch, produce_frame

Figures = dict[str, float]
_INT = struct.Struct(">i")


class Kind(NamedTuple):
    """So many connections, each with so many requests at a time, of so many records of so many bytes."""

    name: str
    connections: int
    requests: int = 1
    records: int = 1
    size: int = 100


SMALL = Kind("small", 10)
# By name: acks, and the connections.
CASES: dict[str, tuple[int, list[Kind]]] = {
    "small": (1, [SMALL._replace(connections=100)]),
    "few": (1, [SMALL._replace(connections=3)]),
    "small acks=all": (-1, [SMALL._replace(connections=100)]),
    "medium": (1, [SMALL, Kind("16 KB", 10, records=16, size=1000)]),
    "runs": (1, [SMALL, Kind("100 at a time", 3, requests=100)]),
    "long runs": (1, [SMALL, Kind("1,000 at a time", 1, requests=1000)]),
    "large": (1, [Kind("1 MB", 6, records=1000, size=1000)]),
    "small and large": (1, [SMALL, Kind("1 MB", 3, records=1000, size=1000)]),
    "small and large acks=all": (-1, [SMALL, Kind("1 MB", 3, records=1000, size=1000)]),
}


class Connection:
    def __init__(self, address: str, topic: str, kind: Kind, acks: int) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        """Take what is there, and go on when all is answered."""
        reply = self.socket.recv(1 << 18)
        assert reply, "the broker has closed the connection"
        if not self._reply_bytes:  # all replies are of the same length
            self._reply_bytes = self._missing = (_INT.unpack_from(reply)[0] + 4) * self._requests
        self._missing -= len(reply)
        if not self._missing:
            self.latencies_s.append(time.perf_counter() - self._sent_at)
            self.send()


def measure(broker: BrokerProcess, acks: int, kinds: list[Kind], seconds: float) -> dict[str, Figures]:
    groups = {
        kind: [Connection(broker.address, "bench", kind, acks) for _ in range(kind.connections)] for kind in kinds
    }
    connections = {each.socket.fileno(): each for group in groups.values() for each in group}
    poll = select.epoll()
    for descriptor in connections:
        poll.register(descriptor, select.EPOLLIN)
    cpu, began = broker.cpu_s(), time.perf_counter()
    for each in connections.values():
        each.send()
    while time.perf_counter() - began < seconds:
        for descriptor, _ in poll.poll(1.0):
            connections[descriptor].receive()
    cpu, took = broker.cpu_s() - cpu, time.perf_counter() - began
    results: dict[str, Figures] = {}
    answered = 0
    for kind, group in groups.items():
        latencies = sorted(each for connection in group for each in connection.latencies_s)
        answered += len(latencies) * kind.requests
        results[kind.name] = {
            "requests/s": len(latencies) * kind.requests / took,
            "p50 ms": latencies[len(latencies) // 2] * 1000,
            "p99 ms": latencies[len(latencies) * 99 // 100] * 1000,
        }
    results["broker"] = {"us CPU": cpu / answered * 1e6}
    poll.close()
    for each in connections.values():
        each.socket.close()
    return results


def run(name: str, seconds: float, rounds: int) -> dict[str, Figures]:
    acks, kinds = CASES[name]
    with BrokerProcess() as broker:
        Wire(broker.address).create_topic("bench")
        measure(broker, acks, kinds, 0.3)
        runs = [measure(broker, acks, kinds, seconds) for _ in range(rounds)]
    medians = {
        who: {what: statistics.median(each[who][what] for each in runs) for what in figures}
        for who, figures in runs[0].items()
    }
    figure(f"connections: {name}", medians["broker"]["us CPU"])
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    for name in options.cases or CASES:
        results[name] = run(name, options.seconds, options.rounds)
        if not options.json:
            show(name, results[name], 16)
    if options.json:
        print(json.dumps({"load": os.getloadavg()[0], "results": results}, indent=1))


if __name__ == "__main__":
    main()
