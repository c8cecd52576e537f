"""What Pulsar's path does and costs: to send, deliver and acknowledge a message, all threads of the broker.

The clients are raw sockets that look at as little as they can; they group acknowledgements and give permits as Pulsar's client in
C++ does. ``exclusive``: one consumer, single messages and batches of 100. ``shared``: 1 and 100 consumers. ``stalled``: beside
consumers that do not read. ``catch-up``: what was stored before. ``latency``: at 200/s, until the receipt and until the delivery.
``idle``: 2,000 subscriptions on 100 topics, each with a consumer.
"""

import itertools
import os
import selectors
import struct
import time
from collections.abc import Iterator
from typing import Any

from protocol.pulsar.pulsar_pb2 import BaseCommand
from tests.bench.frame import Figures, Meter, Options, Row, medians, percentiles
from tests.bench.process import BrokerProcess
from tests.pulsar_frames import command, send, send_batch
from tests.raw_pulsar import SHARED, RawPulsar

_INT = struct.Struct(">I")
_QUEUE = 1000  # of a consumer, as the client has it by default
_topics = (f"persistent://public/default/bench-{number}" for number in itertools.count())


class Wire(RawPulsar):
    """Requests wait for their answers; the rest is left to those who poll it."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._buffer = bytearray()

    def frames(self) -> Iterator[memoryview]:
        """What has come, without the sizes of the frames."""
        self._buffer += self.socket.recv(1 << 20)
        data = memoryview(bytes(self._buffer))
        at = 0
        while len(data) - at >= 4 and len(data) - at >= 4 + (size := _INT.unpack_from(data, at)[0]):
            yield data[at + 4 : at + 4 + size]
            at += 4 + size
        del self._buffer[:at]

    def messages(self) -> Iterator[Any]:
        """The deliveries among the received bytes. Answers pings."""
        for frame in self.frames():
            base = BaseCommand.FromString(frame[4 : 4 + _INT.unpack_from(frame)[0]])
            if base.type == BaseCommand.Type.MESSAGE:
                yield base.message
            elif base.type == BaseCommand.Type.PING:
                self.socket.sendall(command("PONG"))


class Consumer:
    """One of several on a connection. Acknowledges its messages whenever half of its queue is used up."""

    def __init__(self, wire: Wire, consumer_id: int = 0, messages_per_entry: int = 1) -> None:
        self.wire = wire
        self.id = consumer_id
        self._per_entry = messages_per_entry
        self.got = 0  # messages
        self._ids: list[Any] = []
        wire.socket.sendall(command("FLOW", consumer_id=consumer_id, messagePermits=_QUEUE))

    def take(self, message: Any) -> None:
        self.got += self._per_entry
        self._ids.append({"ledgerId": message.message_id.ledgerId, "entryId": message.message_id.entryId})
        if len(self._ids) * self._per_entry >= _QUEUE // 2:
            self.acknowledge()

    def acknowledge(self) -> None:
        if self._ids:
            ack = command("ACK", consumer_id=self.id, ack_type=0, message_id=self._ids)
            flow = command("FLOW", consumer_id=self.id, messagePermits=len(self._ids) * self._per_entry)
            self.wire.socket.sendall(ack + flow)
            self._ids = []


def carry(address: str, topic: str, frames: list[bytes], per_entry: int, consumers: list[Consumer]) -> None:
    """Send all frames, at most 1,000 (of batches 200) without a receipt, until all of it has come and is acknowledged."""
    producer = Wire(address).produce_to(topic)
    window = 1000 if per_entry == 1 else 200
    by_id: dict[Wire, dict[int, Consumer]] = {}
    for consumer in consumers:
        by_id.setdefault(consumer.wire, {})[consumer.id] = consumer
    due = len(frames) * per_entry + sum(consumer.got for consumer in consumers)
    sent = receipts = 0
    with selectors.DefaultSelector() as selector:
        for wire in (producer, *by_id):
            selector.register(wire.socket, selectors.EVENT_READ, wire)
        while sum(consumer.got for consumer in consumers) < due or receipts < len(frames):
            while sent < len(frames) and sent - receipts <= window - 100:
                producer.socket.sendall(b"".join(frames[sent : sent + 100]))
                sent = min(sent + 100, len(frames))
            for key, _ in selector.select(10):
                wire = key.data
                if wire is producer:
                    receipts += sum(1 for _ in wire.frames())
                else:
                    for message in wire.messages():
                        by_id[wire][message.consumer_id].take(message)
    for consumer in consumers:
        consumer.acknowledge()
    for wire in by_id:  # earlier acknowledgements are done when this is answered
        wire.request("ACK", consumer_id=next(iter(by_id[wire])), ack_type=0, message_id=[{"ledgerId": 0, "entryId": 0}])
    producer.socket.close()


def singles(count: int, size: int = 1024) -> list[bytes]:
    payload = os.urandom(size)
    return [send(0, number, payload) for number in range(count)]


def batches(count: int, per_entry: int = 100, size: int = 100) -> list[bytes]:
    payloads = [os.urandom(size)] * per_entry
    return [send_batch(0, number * per_entry, payloads) for number in range(count)]


def measured(
    options: Options, name: str, broker: BrokerProcess, topic: str, consumers: list[Consumer], frames: list[bytes]
) -> Row:
    """After a tenth as many that warm up."""
    per_entry = consumers[0]._per_entry
    carry(broker.address, topic, frames[: len(frames) // 10], per_entry, consumers)
    runs: list[Figures] = []
    for _ in range(options.rounds):
        with Meter(broker) as meter:
            carry(broker.address, topic, frames, per_entry, consumers)
        runs.append(meter.figures(len(frames) * per_entry))
    return Row(name, medians(runs))


def _broker(options: Options) -> BrokerProcess:
    return BrokerProcess(listener="pulsar", directory=options.directory)


def _alone(broker: BrokerProcess, per_entry: int = 1) -> tuple[str, list[Consumer]]:
    """A topic, and its only consumer."""
    topic = next(_topics)
    return topic, [Consumer(Wire(broker.address).subscribe_to(topic, "sub"), 0, per_entry)]


def bench_exclusive(options: Options) -> Iterator[Row]:
    with _broker(options) as broker:
        frames = singles(options.count(50_000))
        yield measured(options, "1 KB, one in a SEND", broker, *_alone(broker), frames)
        frames = batches(options.count(5_000))
        yield measured(options, "100 bytes, batches of 100", broker, *_alone(broker, 100), frames)


def bench_shared(options: Options) -> Iterator[Row]:
    frames = singles(options.count(50_000))
    for count, connections in ((1, 1), (100, 10), (100, 100)):
        with _broker(options) as broker:
            topic = next(_topics)
            wires = [Wire(broker.address) for _ in range(connections)]
            for which in range(count):
                wires[which % connections].subscribe_to(topic, "sub", SHARED, which)
            consumers = [Consumer(wires[which % connections], which) for which in range(count)]
            name = f"1 KB, Shared, {count} consumers on {connections} connections"
            yield measured(options, name, broker, topic, consumers, frames)


def bench_stalled(options: Options) -> Iterator[Row]:
    frames = singles(options.count(20_000))
    for stalled in (0, 10):
        with _broker(options) as broker:
            topic, consumers = _alone(broker)
            others = [Wire(broker.address).subscribe_to(topic, f"stalled {n}", SHARED) for n in range(stalled)]
            for wire in others:
                wire.socket.sendall(command("FLOW", consumer_id=0, messagePermits=2**31))
            name = f"1 KB, beside {stalled} consumers that do not read"
            yield measured(options, name, broker, topic, consumers, frames)


def bench_catch_up(options: Options) -> Iterator[Row]:
    count = options.count(100_000)
    with _broker(options) as broker:
        topic, consumers = _alone(broker)
        carry(broker.address, topic, singles(count), 1, consumers)
        wire = Wire(broker.address).subscribe_to(topic, "late")
        with Meter(broker) as meter:
            consumer = Consumer(wire)
            while consumer.got < count:
                for message in wire.messages():
                    consumer.take(message)
        yield Row(f"1 KB, catch-up of {count} entries", meter.figures(count))


def bench_latency(options: Options) -> Iterator[Row]:
    rate, payload = 200, os.urandom(1024)
    receipts, deliveries = [], []
    with _broker(options) as broker, selectors.DefaultSelector() as selector:
        topic, (consumer,) = _alone(broker)
        producer = Wire(broker.address).produce_to(topic)
        for wire in (producer, consumer.wire):
            selector.register(wire.socket, selectors.EVENT_READ, wire)
        due = time.perf_counter()
        for number in range(max(1, int(options.seconds * rate))):
            due += 1 / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            producer.socket.sendall(send(0, number, payload))
            is_received = is_delivered = False
            while not (is_received and is_delivered):
                for key, _ in selector.select(10):
                    if key.data is producer:
                        is_received |= any(True for _ in list(producer.frames()))
                        receipts.append(time.perf_counter() - began)
                        continue
                    for message in consumer.wire.messages():
                        consumer.take(message)
                        deliveries.append(time.perf_counter() - began)
                        is_delivered = True
    figures = percentiles("receipt ", receipts) | percentiles("delivery ", deliveries)
    yield Row(f"1 KB, {rate}/s", figures)


def bench_idle(options: Options) -> Iterator[Row]:
    count, topics = options.count(2_000), [next(_topics) for _ in range(options.count(100))]
    with _broker(options) as broker:
        wires = [Wire(broker.address) for _ in range(10)]
        warm = Wire(broker.address)
        for number, topic in enumerate(topics):
            warm.subscribe_to(topic, "warm", SHARED, number)
        before, began = broker.rss_mb(), time.perf_counter()
        for number in range(count):
            wire = wires[number % 10]
            wire.subscribe_to(topics[number % len(topics)], f"sub {number}", SHARED, number)
            wire.socket.sendall(command("FLOW", consumer_id=number, messagePermits=_QUEUE))
        made_us = (time.perf_counter() - began) / count * 1e6
        time.sleep(min(3.0, options.seconds))
        after = broker.rss_mb()
        with Meter(broker) as meter:
            time.sleep(options.seconds)
        figures = {"MB": after - before, "% of a CPU": meter.cpu_s / meter.took_s * 100, "us to make each": made_us}
        yield Row(f"{count} idle subscriptions on {len(topics)} topics", figures)


SECTIONS = {
    "exclusive": bench_exclusive,
    "shared": bench_shared,
    "stalled": bench_stalled,
    "catch-up": bench_catch_up,
    "latency": bench_latency,
    "idle": bench_idle,
}
