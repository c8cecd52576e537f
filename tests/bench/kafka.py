"""What a Produce request costs the broker beside the least that a Python program needs for it.

    python -m tests.bench.kafka [--rounds 7] [--depth 5] [--directory DIR]

The loop is a blocking server for one connection without features: it takes the same requests (version 7, acks=1, one partition),
compares the checksum, writes the batch and answers. Both servers stay up and are measured in turns. The client is a process of
its own with ``--depth`` requests in flight. The figures are the CPU time of a request, all threads, and the rate: the medians of
the rounds, and the median of the ratios of each round.
"""

import argparse
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from crc32c import crc32c

from tests.bench.process import BrokerProcess, cpu_s, figure
from tests.bench.wire import Wire, batch, produce, produce_frame

# Name, records in a batch, bytes of each, requests of a round.
CASES = (("1 x 100 B", 1, 100, 60_000), ("16 KB", 1, 16_384, 15_000), ("1 MB", 1000, 1000, 300))

_INT = struct.Struct(">i")
_BATCH = struct.Struct(">qiibIhi")  # up to the last offset delta
_ANSWER = struct.Struct(">iihqqqi")
_CHECKED_FROM = 21
_MOST_BYTES = 4 << 20


class BareServer:
    """Of one connection at a time."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._logs: dict[bytes, list[int]] = {}  # by topic: descriptor, size, end offset

    def run(self) -> None:
        buffer = memoryview(bytearray(_MOST_BYTES))
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            have = 0
            while got := connection.recv_into(buffer[have:]):
                have += got
                at, answers = 0, []
                while have - at >= 4 and have - at >= (size := 4 + _INT.unpack_from(buffer, at)[0]):
                    answers.append(self._append(buffer[at : at + size]))
                    at += size
                if answers:
                    connection.sendall(b"".join(answers))
                if at:
                    buffer[: have - at] = buffer[at:have]
                    have -= at
            connection.close()

    def _append(self, frame: memoryview) -> bytes:
        _, _, correlation_id, client = struct.unpack_from(">hhih", frame, 4)
        # Transactional id, acks, timeout and the number of topics come before the name.
        (length,) = struct.unpack_from(">h", frame, at := 14 + client + 2 + 2 + 4 + 4)
        topic = bytes(frame[at + 2 : at + 2 + length])
        records = frame[at + 2 + length + 12 :]
        _, _, _, _, checksum, _, last = _BATCH.unpack_from(records)
        assert crc32c(records[_CHECKED_FROM:]) == checksum
        log = self._logs.get(topic)
        if log is None:
            path = f"{self._directory}/{topic.decode()}"
            log = self._logs[topic] = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), 0, 0]
        base = log[2]
        struct.pack_into(">q", records, 0, base)
        log[1] += os.pwrite(log[0], records, log[1])
        log[2] += last + 1
        body = struct.pack(">iih", correlation_id, 1, length) + topic + _ANSWER.pack(1, 0, 0, base, -1, 0, 0)
        return _INT.pack(len(body)) + body


@contextmanager
def _helper(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of this module, and its first line."""
    command = [sys.executable, "-m", "tests.bench.kafka", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def _measure(address: str, pid: int, topic: str, case: int, depth: int) -> tuple[float, float]:
    """us of CPU a request, and requests/s."""
    before = cpu_s(pid)
    with _helper("client", address, topic, str(case), str(depth)) as (_, line):
        return (cpu_s(pid) - before) / CASES[case][3] * 1e6, float(line)


def _client(address: str, topic: str, case: int, depth: int) -> None:
    _, records, size, count = CASES[case]
    wire = Wire(address)
    frame = produce_frame(topic, batch(records, size))
    began = time.perf_counter()
    offsets = produce(wire, frame, topic, count, depth)
    print(count / (time.perf_counter() - began), flush=True)
    assert offsets == [number * records for number in range(count)]


def _bench(directory: str, rounds: int, depth: int) -> None:
    with BrokerProcess(directory=directory) as broker, _helper("serve", directory) as (loop, port):
        wire = Wire(broker.address)
        servers = {"broker": (broker.address, broker.pid), "loop": (f"127.0.0.1:{port}", loop.pid)}
        for case, (name, *_) in enumerate(CASES):
            costs: dict[str, list[float]] = {server: [] for server in servers}
            rates: dict[str, list[float]] = {server: [] for server in servers}
            for number in range(rounds):
                topic = f"bench-{case}-{number}"
                wire.create_topic(topic)
                for server in sorted(servers, reverse=bool(number % 2)):
                    cost, rate = _measure(*servers[server], topic, case, depth)
                    costs[server].append(cost)
                    rates[server].append(rate)
            ratio = statistics.median(ours / bare for ours, bare in zip(costs["broker"], costs["loop"], strict=True))
            figure(f"produce {name}, beside a loop", statistics.median(costs["broker"]))
            print(
                f"{name:10} "
                + "  ".join(
                    f"{server} {statistics.median(costs[server]):8.1f} us {statistics.median(rates[server]):8,.0f}/s"
                    for server in servers
                )
                + f"  ratio of CPU {ratio:.2f}  load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        server = BareServer(sys.argv[2])
        print(server.port, flush=True)
        server.run()
    elif sys.argv[1:2] == ["client"]:
        _client(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--rounds", type=int, default=7)
        parser.add_argument("--depth", type=int, default=5, help="requests in flight")
        parser.add_argument("--directory", default=None, help="where both write")
        options = parser.parse_args()
        with tempfile.TemporaryDirectory(prefix="broker-bench-", dir=options.directory) as directory:
            _bench(directory, options.rounds, options.depth)


if __name__ == "__main__":
    main()
