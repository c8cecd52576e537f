"""What measuring costs a request, and what a scrape costs.

    python tests/bench/bench_metrics.py requests [OTHER_TREE] [ROUNDS]
    python tests/bench/bench_metrics.py scrape [PARTITIONS] [GROUPS]

``requests`` steps a processor whose sockets and poller cost next to nothing, with a service that answers at once, so that
what is left is the reactor's own work. With OTHER_TREE, the root of a checkout without metrics, both run in turns, and
the difference is printed. Times are of the CPU of the thread.

``scrape`` fills a broker with topics and groups and renders all metrics, while another thread asks for the interpreter
every ms and notes how long it waits.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TREE = Path(__file__).parent.parent.parent
CASES = {"one request a step": (1, 1), "64 pipelined": (1, 64), "100 connections": (100, 1)}
FRAME = b"\x00" * 64


def requests_once(connections: int, pipelined: int, count: int) -> float:
    """Nanoseconds per request."""
    from broker.network.expiry import Unsent
    from broker.network.memory_pool import MemoryPool
    from broker.network.new_connection import NewConnection
    from broker.network.processor import Processor, ProcessorSettings
    from broker.network.quota import ConnectionQuotas
    from broker.network.request_channel import RequestChannel
    from broker.network.service import Peer, Request
    from broker.network.socket_server import ProcessorOutbox
    from broker.runtime.clock import SystemClock
    from broker.runtime.net import WOULD_BLOCK
    from broker.runtime.poller import READ
    from broker.runtime.threads import SystemThreads

    class Session:
        in_flight_max = 1

        def frame_size(self, data: memoryview) -> int:
            return len(FRAME)

        def receive(self, frame: memoryview) -> Request:
            return Request()

    class Service:
        def connect(self, peer: Peer) -> Session:
            return Session()

        def inline(self, request: Request) -> Any:
            return None

        def handle(self, request: Request, outbox: Any, prepared: Any) -> None:
            outbox.send(request, [FRAME])

        def writable(self, connection: Any) -> None: ...

        def stopping(self, connection: Any) -> None: ...

        def disconnected(self, connection: Any) -> None: ...

    class Socket:
        """Always has a whole read of requests, and takes every answer."""

        buffered = False
        data = FRAME * pipelined
        held_bytes = 0

        def recv_into(self, view: memoryview) -> int:
            view[: len(self.data)] = self.data
            return len(self.data)

        def send(self, buffers: Sequence[bytes], more: bool) -> int:
            return len(FRAME) * len(buffers)

        def close(self) -> None: ...

        def at_eof(self) -> bool:
            return False

    class Poller:
        """Every registered socket is readable."""

        def __init__(self) -> None:
            self.ready: list[Any] = []

        def arm(self) -> None: ...

        def wakeup(self) -> None: ...

        def poll(self, timeout: float) -> list[Any]:
            return self.ready

        def register(self, socket: Any, events: int, data: Any) -> None:
            class Ready:
                pass

            key = Ready()
            key.data = data  # type: ignore[attr-defined]
            self.ready = [*self.ready, (key, READ)]

        def modify(self, socket: Any, events: int, data: Any) -> None: ...

        def unregister(self, socket: Any) -> None: ...

    assert WOULD_BLOCK
    memory = MemoryPool(1 << 28)
    processor = Processor(
        0,
        settings=ProcessorSettings(600.0, 1 << 20, 1 << 18),
        poller=Poller(),  # type: ignore[arg-type]
        clock=SystemClock(),
        threads=SystemThreads(),
        channel=RequestChannel(100),
        memory=memory,
        unsent=Unsent(1 << 28),
        outbox=ProcessorOutbox(),
        quotas=ConnectionQuotas(0, 0, {}, 0),
        on_room=lambda: None,
    )
    for number in range(connections):
        peer = Peer("127.0.0.1", number, "bench", ("127.0.0.1", 0))
        processor.offer(NewConnection(Socket(), peer, Service(), 1 << 20, None))  # type: ignore[arg-type]
        processor.step(None)
    per_step = connections * pipelined
    steps = max(1, count // per_step)
    for _ in range(steps // 10 + 1):
        processor.step(None)
    began = time.thread_time_ns()
    for _ in range(steps):
        processor.step(None)
    return (time.thread_time_ns() - began) / (steps * per_step)


def requests(other: str | None, rounds: int) -> None:
    trees = [str(TREE)] if other is None else [other, str(TREE)]
    found: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds):
        for tree in trees if turn % 2 else trees[::-1]:
            environment = {**os.environ, "PYTHONPATH": tree}
            command = [sys.executable, __file__, "child"]
            output = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True, cwd="/"
            ).stdout
            for line in output.splitlines():
                name, _, value = line.rpartition(" ")
                found.setdefault((name, tree), []).append(float(value))
    for name in CASES:
        here = found[name, str(TREE)]
        line = f"{name}: {min(here):.0f} ns a request (median {statistics.median(here):.0f})"
        if other is not None:
            there = found[name, other]
            pairs = [a - b for a, b in zip(here, there, strict=True)]
            line += (
                f"; without: {min(there):.0f} ({statistics.median(there):.0f}); "
                f"difference of the best {min(here) - min(there):+.0f} ns, median of the pairs {statistics.median(pairs):+.0f} ns"
            )
        print(line)


def child() -> None:
    for name, (connections, pipelined) in CASES.items():
        best = min(requests_once(connections, pipelined, 100_000) for _ in range(5))
        print(f"{name} {best:.1f}")


def scrape(partitions: int, groups: int) -> None:
    """Topics have ten partitions, and groups have committed offsets of the ten of one topic."""
    import gc
    import tempfile
    import threading

    from broker.client.embedded import Broker
    from broker.metrics.text import OPENMETRICS, render
    from protocol.kafka.records.records import build_batch

    with tempfile.TemporaryDirectory() as directory, Broker(directory, listeners=["kafka://127.0.0.1:0"]) as broker:
        logs, coordinator = broker.server.kafka.logs, broker.server.kafka.groups
        topics = [f"topic-{number}" for number in range(max(1, partitions // 10))]
        for name in topics:
            logs.create_topic(name, 10)
        now_ms = broker.server.runtime.clock.time_ms()
        for log in list(logs.partitions.values()):
            log.append(memoryview(build_batch([(None, b"x", (), now_ms)] * 3)), now_ms=now_ms)
        waiting = threading.Semaphore(0)
        for number in range(groups):
            topic = topics[number % len(topics)]
            row = {(topic, partition): (1, -1, "") for partition in range(10)}
            commit(coordinator, f"group-{number}", row, now_ms, waiting.release)
        for _ in range(groups):
            waiting.acquire()
        gc.collect()
        sys.setswitchinterval(broker.server.config.switch_interval_us / 1e6)
        late: list[float] = []
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                began = time.perf_counter()
                time.sleep(0.001)
                late.append(time.perf_counter() - began - 0.001)

        for what in ("nothing", "the first scrape", "a scrape", "a scrape"):
            late.clear()
            over.clear()
            asking = threading.Thread(target=ask)
            asking.start()
            began, cpu = time.perf_counter(), time.thread_time()
            size = 0
            if what == "nothing":
                time.sleep(1)
            else:
                size = len(render(broker.server.metrics, OPENMETRICS, lambda: time.sleep(0.0005)))
            took, cpu = time.perf_counter() - began, time.thread_time() - cpu
            over.set()
            asking.join()
            late.sort()
            print(
                f"{what}: {took * 1000:.0f} ms, {cpu * 1000:.0f} ms of CPU, {size / 1024:.0f} KiB; another thread waits "
                f"{late[len(late) // 2] * 1000:.2f} ms (median), {late[int(len(late) * 0.99)] * 1000:.2f} ms (99 %), "
                f"{late[-1] * 1000:.2f} ms (longest) beyond its 1 ms"
            )
            time.sleep(6)  # until what is kept is too old


def commit(coordinator: Any, group: str, offsets: Any, now_ms: int, done: Any) -> None:
    from broker.kafka.groups.offsets import CommittedOffset

    committed = {
        key: CommittedOffset(offset, epoch, metadata, now_ms) for key, (offset, epoch, metadata) in offsets.items()
    }
    entry = coordinator._registry.get_or_create(group)
    with entry.lock:
        for (topic, partition), each in committed.items():
            entry.offsets.load(topic, partition, each)
    done()


def main(arguments: list[str]) -> None:
    if arguments == ["child"]:
        child()
    elif arguments[:1] == ["requests"]:
        other = arguments[1] if len(arguments) > 1 else None
        requests(other, int(arguments[2]) if len(arguments) > 2 else 5)
    elif arguments[:1] == ["scrape"]:
        partitions, groups = map(int, [*arguments[1:], "10000", "1000"][:2])
        scrape(partitions, groups)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
