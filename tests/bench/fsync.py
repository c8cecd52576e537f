"""What an acknowledgement after an fsync costs, beside a loop that does nothing but ``pwrite`` and ``fdatasync``.

    python -m tests.bench.fsync [latency] [bulk] [producers] [--directory DIR] [--seconds 10] [--json]

``latency``: one producer, one record of 100 bytes, 200 requests/s, acks=all. Between any two requests the loop writes as many
bytes to a file on the same file system and syncs it, so that both see the same disk. A server that does no more than that for a
request is asked as well, which shows what the way through a socket and another process costs.

``bulk``: the same while another producer writes 1 MB batches to another topic, with acks=1 and with acks=all.

``producers``: the rate of 100 connections that send one record at a time, with acks=all and acks=1 in turn, to one partition and
to 100, and the broker's CPU of a request.

A disk is shared with whatever else runs, so only figures of one run can be compared.
"""

import argparse
import json
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.bench.process import BrokerProcess, figure, show
from tests.bench.wire import Wire, batch, produce, produce_frame

Figures = dict[str, float]

_RATE = 200
_PRODUCERS = 100
_BULK_MB_PER_S = 100
_INT = struct.Struct(">i")


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class BareLoop:
    """Appends to a file and syncs it."""

    def __init__(self, directory: str, size: int) -> None:
        self._file = os.open(f"{directory}/bare", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._data = os.urandom(size)
        self._end = 0

    def once(self) -> None:
        os.pwrite(self._file, self._data, self._end)
        os.fdatasync(self._file)
        self._end += len(self._data)


def serve_bare(directory: str) -> None:
    """A server of one connection that appends and syncs each frame, and answers with 50 bytes."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    file, end = os.open(f"{directory}/served", os.O_RDWR | os.O_CREAT | os.O_TRUNC), 0
    reply = _INT.pack(46) + bytes(46)
    while data := connection.recv(65536):
        end += os.pwrite(file, data, end)
        os.fdatasync(file)
        connection.sendall(reply)


def send_bulk(address: str, topic: str, acks: int, megabytes_per_s: int) -> None:
    """Produce 1 MB batches at a fixed rate until the process is ended."""
    wire = Wire(address)
    frame = produce_frame(topic, batch(1000, 1000), acks)
    interval = 1 / megabytes_per_s
    due = time.perf_counter()
    print("ready", flush=True)
    while True:
        produce(wire, frame, topic, 1, 1)
        due = max(due + interval, time.perf_counter() - 0.1)
        time.sleep(max(0.0, due - time.perf_counter()))


@contextmanager
def _helper(*arguments: str) -> Iterator[str]:
    """A process of this module; its first line."""
    command = [sys.executable, "-m", "tests.bench.fsync", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def _in_turn(works: dict[str, Callable[[], None]], seconds: float) -> dict[str, list[float]]:
    """Do each work ``_RATE`` times a second, in turn; how long each took, in ms."""
    took: dict[str, list[float]] = {name: [] for name in works}
    interval = 1 / _RATE / len(works)  # if the disk is too slow for the rate, there are no pauses
    now = time.perf_counter()
    due, end = now, now + seconds
    while now < end:
        for name, work in works.items():
            due = max(due + interval, now)
            time.sleep(due - now)
            began = time.perf_counter()
            work()
            now = time.perf_counter()
            took[name].append((now - began) * 1000)
    return took


def _latency(broker: BrokerProcess, directory: str, seconds: float) -> dict[str, Figures]:
    wire = Wire(broker.address)
    frame = produce_frame("bench", batch(1, 100), -1)
    loop = BareLoop(directory, 170)
    with _helper("serve", directory) as port:
        bare = Wire(f"127.0.0.1:{port}")

        def through_server() -> None:
            bare.send(frame[-170:])
            bare.receive()

        def through_broker() -> None:
            produce(wire, frame, "bench", 1, 1)

        works = {"loop": loop.once, "bare server": through_server, "broker": through_broker}
        _in_turn(works, 0.5)
        cpu = broker.cpu_s()
        took = _in_turn(works, seconds)
        cpu = (broker.cpu_s() - cpu) / len(took["broker"])
        bare.close()
    results: dict[str, Figures] = {}
    for name, times in took.items():
        results[name] = {f"p{share * 100:g} ms": percentile(times, share) for share in (0.5, 0.9, 0.99)}
        if name != "loop":
            for share in (0.5, 0.9, 0.99):
                results[name][f"p{share * 100:g} ratio"] = percentile(times, share) / percentile(took["loop"], share)
    results["broker"]["us CPU"] = cpu * 1e6
    return results


def bench_latency(directory: str, seconds: float) -> dict[str, Figures]:
    with BrokerProcess(directory=directory) as broker:
        wire = Wire(broker.address)
        wire.create_topic("bench")
        results = _latency(broker, directory, seconds)
        figure("produce acks=all, 200/s", results["broker"]["us CPU"])
        return results


def bench_bulk(directory: str, seconds: float) -> dict[str, Figures]:
    results = {}
    for acks in (1, -1):
        with BrokerProcess(directory=directory) as broker:
            wire = Wire(broker.address)
            wire.create_topic("bench")
            wire.create_topic("bulk")
            with _helper("send", broker.address, "bulk", str(acks), str(_BULK_MB_PER_S)):
                for name, figures in _latency(broker, directory, seconds).items():
                    results[f"bulk acks={acks}, {name}"] = figures
    return results


def _closed_loop(address: str, frames: list[bytes], seconds: float) -> int:
    """Each frame on a connection of its own, again as soon as it is answered. The number of answers."""
    host, port = address.rsplit(":", 1)
    connections: dict[int, tuple[socket.socket, bytes]] = {}
    poll = select.epoll()
    for frame in frames:
        connection = socket.create_connection((host, int(port)), timeout=20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections[connection.fileno()] = connection, frame
        poll.register(connection, select.EPOLLIN)
        connection.sendall(frame)
    answers, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for descriptor, _ in poll.poll():
            connection, frame = connections[descriptor]
            reply = connection.recv(4096)
            (size,) = _INT.unpack_from(reply)
            assert len(reply) == size + 4, "a reply in pieces"
            connection.send(frame)
            answers += 1
    for connection, _ in connections.values():
        connection.close()
    return answers


def bench_producers(directory: str, seconds: float) -> dict[str, Figures]:
    results: dict[str, Figures] = {}
    for topics in (1, _PRODUCERS):
        with BrokerProcess(directory=directory) as broker:
            wire = Wire(broker.address)
            names = [f"bench-{number}" for number in range(topics)]
            for name in names:
                wire.create_topic(name)
            runs: dict[int, list[Figures]] = {1: [], -1: []}
            for _ in range(5):
                for acks, done in runs.items():
                    records = batch(1, 100)
                    frames = [produce_frame(names[n % topics], records, acks) for n in range(_PRODUCERS)]
                    cpu = broker.cpu_s()
                    answers = _closed_loop(broker.address, frames, seconds / 10)
                    cpu = broker.cpu_s() - cpu
                    done.append({"requests/s": answers / (seconds / 10), "us CPU": cpu / answers * 1e6})
            for acks, done in runs.items():
                results[f"{topics} partitions, acks={acks}"] = {
                    key: statistics.median(run[key] for run in done) for key in done[0]
                }
            ratio = statistics.median(
                durable["requests/s"] / fast["requests/s"] for fast, durable in zip(runs[1], runs[-1], strict=True)
            )
            results[f"{topics} partitions, acks=-1"]["beside acks=1"] = ratio
            figure(f"100 producers, {topics} partitions, acks=all", results[f"{topics} partitions, acks=-1"]["us CPU"])
    return results


SECTIONS = {"latency": bench_latency, "bulk": bench_bulk, "producers": bench_producers}


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        serve_bare(sys.argv[2])
    elif sys.argv[1:2] == ["send"]:
        send_bulk(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        _main()


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=[])
    parser.add_argument("--directory", default=None, help="where to write; its file system is measured")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, dict[str, Figures]] = {}
    for name in options.sections or SECTIONS:
        with tempfile.TemporaryDirectory(prefix="broker-bench-", dir=options.directory) as directory:
            results[name] = SECTIONS[name](directory, options.seconds)
        if not options.json:
            show(name, results[name], 28)
    if options.json:
        print(json.dumps({"load": os.getloadavg()[0], "results": results}, indent=1))


if __name__ == "__main__":
    main()
