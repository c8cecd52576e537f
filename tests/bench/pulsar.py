"""What Pulsar's path does and costs: ``python -m tests.bench.pulsar [--quick] [SECTION...]``.

The broker runs in a process of its own. The clients here are raw sockets that look at as little as they can; they group
acknowledgements and give permits as Pulsar's C++ client does. CPU is the broker's, all threads, as the scheduler counts it.
Sections: unbatched, batched, latency, idle, shared, slow, catch-up.
"""

import argparse
import itertools
import os
import selectors
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from protocol.pulsar.pulsar_pb2 import BaseCommand
from tests.bench.process import BrokerProcess, figure
from tests.pulsar_frames import Incoming, command, connect, send, send_batch

EXCLUSIVE, SHARED = 0, 1
_INT = struct.Struct(">I")
_QUEUE = 1000  # of a consumer, as the client has it by default
_topics = (f"persistent://public/default/bench-{os.getpid()}-{number}" for number in itertools.count())


class Process(BrokerProcess):
    """With a Pulsar listener."""

    listener = "pulsar://127.0.0.1:0"


class Wire:
    """A connection. Requests wait for their answers; the rest is left to those who poll it."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()
        self._incoming = Incoming()
        self._requests = itertools.count(1)
        self.socket.sendall(connect())
        self._answer("CONNECTED")

    def _answer(self, *kinds: str) -> Any:
        while True:
            for frame in self._incoming.feed(self.socket.recv(1 << 16)):
                if frame.kind in kinds:
                    return frame
                assert frame.kind != "ERROR", frame

    def ask(self, kind: str, **fields: Any) -> Any:
        self.socket.sendall(command(kind, request_id=next(self._requests), **fields))
        return self._answer("SUCCESS", "PRODUCER_SUCCESS", "ACK_RESPONSE")

    def produce_to(self, topic: str) -> "Wire":
        self.ask("PRODUCER", topic=topic, producer_id=0)
        return self

    def subscribe_to(self, topic: str, name: str, kind: int = EXCLUSIVE, consumer_id: int = 0) -> "Wire":
        self.ask("SUBSCRIBE", topic=topic, subscription=name, subType=kind, consumer_id=consumer_id, initialPosition=1)
        return self

    def frames(self) -> Iterator[memoryview]:
        """What has come, without the sizes of the frames."""
        self.buffer += self.socket.recv(1 << 20)
        data = memoryview(bytes(self.buffer))
        at = 0
        while len(data) - at >= 4:
            (size,) = _INT.unpack_from(data, at)
            if len(data) - at < 4 + size:
                break
            yield data[at + 4 : at + 4 + size]
            at += 4 + size
        del self.buffer[:at]


class Consumer:
    """One of several on a connection. Acknowledges what it has got whenever half of its queue is used up."""

    def __init__(self, wire: Wire, consumer_id: int, messages_per_entry: int) -> None:
        self.wire = wire
        self.id = consumer_id
        self.per_entry = messages_per_entry
        self.got = 0  # messages
        self._ids: list[Any] = []
        self.flow(_QUEUE)

    def flow(self, permits: int) -> None:
        self.wire.socket.sendall(command("FLOW", consumer_id=self.id, messagePermits=permits))

    def take(self, message: Any) -> None:
        self.got += self.per_entry
        self._ids.append({"ledgerId": message.message_id.ledgerId, "entryId": message.message_id.entryId})
        if len(self._ids) * self.per_entry >= _QUEUE // 2:
            self.acknowledge()

    def acknowledge(self) -> None:
        if self._ids:
            ack = command("ACK", consumer_id=self.id, ack_type=0, message_id=self._ids)
            flow = command("FLOW", consumer_id=self.id, messagePermits=len(self._ids) * self.per_entry)
            self.wire.socket.sendall(ack + flow)
            self._ids = []


def carry(
    address: str, topic: str, frames: list[bytes], per_entry: int, consumers: list[Consumer], window: int
) -> float:
    """Send all frames, at most ``window`` without a receipt, until all of it has come and is acknowledged. Seconds."""
    producer = Wire(address).produce_to(topic)
    by_id: dict[Wire, dict[int, Consumer]] = {}
    for consumer in consumers:
        by_id.setdefault(consumer.wire, {})[consumer.id] = consumer
    selector = selectors.DefaultSelector()
    selector.register(producer.socket, selectors.EVENT_READ, producer)
    for wire in by_id:
        selector.register(wire.socket, selectors.EVENT_READ, wire)
    parse = BaseCommand.FromString
    due = len(frames) * per_entry
    before = sum(consumer.got for consumer in consumers)
    sent = receipts = 0
    began = time.perf_counter()
    while sum(consumer.got for consumer in consumers) - before < due or receipts < len(frames):
        while sent < len(frames) and sent - receipts <= window - 100:
            part = frames[sent : sent + 100]
            producer.socket.sendall(b"".join(part))
            sent += len(part)
        for key, _ in selector.select(10):
            wire = key.data
            if wire is producer:
                receipts += sum(1 for _ in wire.frames())
                continue
            mine = by_id[wire]
            for frame in wire.frames():
                (size,) = _INT.unpack_from(frame)
                base = parse(frame[4 : 4 + size])
                if base.type == BaseCommand.MESSAGE:
                    mine[base.message.consumer_id].take(base.message)
                elif base.type == BaseCommand.PING:
                    wire.socket.sendall(command("PONG"))
    for consumer in consumers:
        consumer.acknowledge()
    for wire in by_id:  # what was acknowledged before is done when this is answered
        wire.ask("ACK", consumer_id=next(iter(by_id[wire])), ack_type=0, message_id=[{"ledgerId": 0, "entryId": 0}])
    took = time.perf_counter() - began
    selector.close()
    producer.socket.close()
    return took


def single_frames(count: int, size: int) -> list[bytes]:
    payload = os.urandom(size)
    return [send(0, number, payload) for number in range(count)]


def batch_frames(count: int, per_entry: int, size: int) -> list[bytes]:
    payloads = [os.urandom(size)] * per_entry
    return [send_batch(0, number * per_entry, payloads) for number in range(count)]


def measured(what: str, process: Process, messages: int, work: Callable[[], float]) -> float:
    before = process.cpu_s()
    took = work()
    cpu = process.cpu_s() - before
    figure(what, cpu / messages * 1e6)
    print(f"{what}: {cpu / messages * 1e6:.2f} us of broker CPU a message, {messages / took:,.0f} messages/s")
    return cpu / messages


def one_consumer(process: Process, per_entry: int) -> tuple[str, list[Consumer]]:
    topic = next(_topics)
    wire = Wire(process.address).subscribe_to(topic, "sub")
    return topic, [Consumer(wire, 0, per_entry)]


def unbatched(quick: bool) -> None:
    count = 10_000 if quick else 50_000
    with Process() as process:
        topic, consumers = one_consumer(process, 1)
        carry(process.address, topic, single_frames(3_000, 1024), 1, consumers, 1000)
        frames = single_frames(count, 1024)
        measured(
            "unbatched, 1 KB, one consumer",
            process,
            count,
            lambda: carry(process.address, topic, frames, 1, consumers, 1000),
        )


def batched(quick: bool) -> None:
    count = 1_000 if quick else 5_000
    with Process() as process:
        topic, consumers = one_consumer(process, 100)
        carry(process.address, topic, batch_frames(200, 100, 100), 100, consumers, 200)
        frames = batch_frames(count, 100, 100)
        measured(
            "batches of 100, 100 bytes, one consumer",
            process,
            count * 100,
            lambda: carry(process.address, topic, frames, 100, consumers, 200),
        )


def shared(quick: bool) -> None:
    count = 10_000 if quick else 50_000
    frames = single_frames(count, 1024)
    for number, connections in ((1, 1), (100, 10), (100, 100)):
        with Process() as process:
            topic = next(_topics)
            consumers = []
            wires = [Wire(process.address) for _ in range(connections)]
            for which in range(number):
                wire = wires[which % connections]
                wire.subscribe_to(topic, "sub", SHARED, which)
            consumers = [Consumer(wires[which % connections], which, 1) for which in range(number)]
            carry(process.address, topic, single_frames(3_000, 1024), 1, consumers, 1000)
            measured(
                f"Shared, {number} consumers on {connections} connections",
                process,
                count,
                lambda: carry(process.address, topic, frames, 1, consumers, 1000),  # noqa: B023
            )


def latency(quick: bool) -> None:
    seconds = 3 if quick else 15
    for per_second in (200,):
        with Process() as process:
            topic, consumers = one_consumer(process, 1)
            wire = consumers[0].wire
            producer = Wire(process.address).produce_to(topic)
            receipts, ends = [], []
            payload = os.urandom(1024)
            next_at = time.perf_counter()
            for number in range(seconds * per_second):
                next_at += 1 / per_second
                while (left := next_at - time.perf_counter()) > 0:
                    time.sleep(left)
                began = time.perf_counter()
                producer.socket.sendall(send(0, number, payload))
                ended = received = 0.0
                waiting = {producer.socket: producer, wire.socket: wire}
                with selectors.DefaultSelector() as selector:
                    for sock, one in waiting.items():
                        selector.register(sock, selectors.EVENT_READ, one)
                    while not (ended and received):
                        for key, _ in selector.select(10):
                            for frame in key.data.frames():
                                if key.data is producer:
                                    received = time.perf_counter()
                                else:
                                    ended = time.perf_counter()
                                    (size,) = _INT.unpack_from(frame)
                                    base = BaseCommand.FromString(frame[4 : 4 + size])
                                    if base.type == BaseCommand.MESSAGE:
                                        consumers[0].take(base.message)
                receipts.append(received - began)
                ends.append(ended - began)
            for what, values in (("end to end", ends), ("receipt", receipts)):
                values = [value * 1000 for value in values]
                p50, p99 = statistics.median(values), statistics.quantiles(values, n=100)[98]
                print(f"{per_second}/s, 1 KB, {what}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")


def idle(quick: bool) -> None:
    count = 2_000 if quick else 10_000
    with Process() as process:
        topics = [next(_topics) for _ in range(100)]
        wires = [Wire(process.address) for _ in range(10)]
        for wire, topic in zip(itertools.cycle(wires), topics, strict=False):
            wire.produce_to(topic) if topic is topics[0] else None
        warm = Wire(process.address)
        for topic in topics:
            warm.subscribe_to(topic, "warm", SHARED, consumer_id=hash(topic) & 0xFFFFFF)
        time.sleep(1)
        before = process.rss_mb()
        began = time.perf_counter()
        for number in range(count):
            wire = wires[number % 10]
            wire.subscribe_to(topics[number % 100], f"sub {number}", SHARED, number)
            wire.socket.sendall(command("FLOW", consumer_id=number, messagePermits=_QUEUE))
        took = time.perf_counter() - began
        time.sleep(3)
        after = process.rss_mb()
        cpu = process.cpu_s()
        wait_s = 5
        time.sleep(wait_s)
        print(
            f"{count} idle subscriptions on 100 topics: {after - before:.1f} MB, "
            f"{(process.cpu_s() - cpu) / wait_s * 100:.2f} % of a CPU; made in {took / count * 1e6:.0f} us each"
        )


def slow(quick: bool) -> None:
    count = 5_000 if quick else 20_000
    frames = single_frames(count, 1024)
    for stalled in (0, 10):
        with Process() as process:
            topic, consumers = one_consumer(process, 1)
            others = []
            for number in range(stalled):
                wire = Wire(process.address).subscribe_to(topic, f"stalled {number}", SHARED)
                wire.socket.sendall(command("FLOW", consumer_id=0, messagePermits=2**31))
                others.append(wire)
            carry(process.address, topic, single_frames(20_000, 1024), 1, consumers, 1000)
            measured(
                f"unbatched beside {stalled} consumers that do not read",
                process,
                count,
                lambda: carry(process.address, topic, frames, 1, consumers, 1000),  # noqa: B023
            )


def catch_up(quick: bool) -> None:
    count = 10_000 if quick else 100_000
    with Process() as process:
        topic, consumers = one_consumer(process, 1)
        carry(process.address, topic, single_frames(count, 1024), 1, consumers, 1000)
        wire = Wire(process.address).subscribe_to(topic, "late")

        def read() -> float:
            began = time.perf_counter()
            consumer = Consumer(wire, 0, 1)
            while consumer.got < count:
                for frame in wire.frames():
                    (size,) = _INT.unpack_from(frame)
                    base = BaseCommand.FromString(frame[4 : 4 + size])
                    if base.type == BaseCommand.MESSAGE:
                        consumer.take(base.message)
            consumer.acknowledge()
            return time.perf_counter() - began

        measured(f"catch-up of {count} entries of 1 KB", process, count, read)


_SECTIONS = {
    "unbatched": unbatched,
    "batched": batched,
    "latency": latency,
    "idle": idle,
    "shared": shared,
    "slow": slow,
    "catch-up": catch_up,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pulsar", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few messages, for a look")
    parser.add_argument("sections", nargs="*", choices=[*_SECTIONS, []], help="all of them if none is given")
    arguments = parser.parse_args()
    for name in arguments.sections or _SECTIONS:
        _SECTIONS[name](arguments.quick)


if __name__ == "__main__":
    main()
