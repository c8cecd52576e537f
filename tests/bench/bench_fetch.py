"""What a Fetch request costs the broker, beside a bare loop that does the same (``bare.py``), both in turns.

    python -m tests.bench.bench_fetch [large small pipelined tail] [--rounds 3] [--scale 1.0] [--no-floor]

Large: 16 MB and 1 MB a response, from the page cache. Small: one record of 100 bytes a response, one request in flight.
Pipelined: 16 requests in flight. Tail: consumers that wait at the end of a partition; one record is appended, all of them are
answered and ask again. Its figure is the CPU of one append and all answers, divided by the answers. The medians of the rounds.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from tests.bench.process import BrokerProcess, figure
from tests.bench.wire import Wire, batch, fetch_all, fetch_frame, produce, produce_frame

_WAIT_MS = 30_000


class BareProcess:
    """The floor, as ``BrokerProcess``."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="broker-bench-")

    def __enter__(self) -> "BareProcess":
        command = [sys.executable, "-m", "tests.bench.bare", self._directory.name]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent.parent
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()

    def cpu_s(self) -> float:
        return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[0]) / 1e9


Server = BrokerProcess | BareProcess


def _prepared(server: Server, records: int, size: int, count: int, topic: str = "bench") -> Wire:
    wire = Wire(server.address)
    if isinstance(server, BrokerProcess):
        wire.create_topic(topic)
    produce(wire, produce_frame(topic, batch(records, size)), topic, count, 5)
    return wire


def large(server: Server, scale: float) -> Iterator[tuple[str, float]]:
    count = max(50, int(200 * scale))
    wire = _prepared(server, 1000, 1000, count)
    for name, most in (("16 MB", 16 << 20), ("1 MB", 1 << 20)):
        fetch_all(wire, "bench", 0, count * 1000, most)
        size, cpu = 0, server.cpu_s()
        for _ in range(3):
            size += fetch_all(wire, "bench", 0, count * 1000, most)[0]
        yield f"fetch, {name} a response: us a MB", (server.cpu_s() - cpu) / size * 1e12


def _in_turn(server: Server, scale: float, depth: int) -> float:
    count = max(1000, int(10_000 * scale))
    wire = _prepared(server, 1, 100, count)
    most = len(batch(1, 100)) + 10  # one batch
    frames = [fetch_frame("bench", offset, most) for offset in range(count)]
    cpu = 0.0
    for start in range(0, count, depth):
        if start == count // 10 // depth * depth:
            cpu = server.cpu_s()
        wire.send(b"".join(frames[start : start + depth]))
        for _ in range(min(depth, count - start)):
            wire.receive()
    return (server.cpu_s() - cpu) / (count - count // 10 // depth * depth) * 1e6


def small(server: Server, scale: float) -> Iterator[tuple[str, float]]:
    yield "fetch, one record: us a request", _in_turn(server, scale, 1)


def pipelined(server: Server, scale: float) -> Iterator[tuple[str, float]]:
    yield "fetch, one record, 16 in flight: us a request", _in_turn(server, scale, 16)


def tail(server: Server, scale: float) -> Iterator[tuple[str, float]]:
    for consumers in (1, 10, 100):
        turns = max(20, int(4_000 * scale / (consumers + 3)))
        topic = f"bench-{consumers}"
        wire = _prepared(server, 1, 100, 10, topic)
        record = produce_frame(topic, batch(1, 100))
        end = produce(wire, record, topic, 1, 1)[0] + 1
        waiting = [Wire(server.address) for _ in range(consumers)]
        for one in waiting:
            one.send(fetch_frame(topic, end, 1 << 20, _WAIT_MS))
        cpu = 0.0
        for turn in range(turns + 10):
            if turn == 10:
                cpu = server.cpu_s()
            produce(wire, record, topic, 1, 1)
            end += 1
            again = fetch_frame(topic, end, 1 << 20, _WAIT_MS)
            for one in waiting:
                one.receive()
            for one in waiting:
                one.send(again)
        yield f"{consumers} consumers at the end: us a fetch", (server.cpu_s() - cpu) / turns / consumers * 1e6
        for one in waiting:
            one.close()


CASES: dict[str, Callable[[Server, float], Iterator[tuple[str, float]]]] = {
    "large": large,
    "small": small,
    "pipelined": pipelined,
    "tail": tail,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="fewer or more requests")
    parser.add_argument("--no-floor", action="store_true", help="do not measure the bare loop")
    options = parser.parse_args()
    servers = [BrokerProcess] if options.no_floor else [BrokerProcess, BareProcess]
    for case in options.cases:
        found: dict[str, dict[type, list[float]]] = {}
        for turn in range(options.rounds):
            for kind in servers if turn % 2 == 0 else servers[::-1]:
                with kind() as server:
                    for name, cost in CASES[case](server, options.scale):
                        found.setdefault(name, {}).setdefault(kind, []).append(cost)
        for name, costs in found.items():
            broker = statistics.median(costs[BrokerProcess])
            figure(name, broker)
            line = f"{name:50} broker {broker:8.2f}"
            if BareProcess in costs:
                floor = statistics.median(costs[BareProcess])
                line += f"  bare {floor:8.2f}  {broker / floor:5.2f}x"
            print(line, flush=True)


if __name__ == "__main__":
    main()
