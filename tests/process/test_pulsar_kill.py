"""kill -9 under Pulsar's load, again and again: receipts are durable, what is acknowledged stays so, and nothing is lost.

``BROKER_KILL_CYCLES`` says how often (5); ``BROKER_KILL_SEED`` when (drawn anew each time, and shown when it fails).
"""

import itertools
import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.broker_process import PATIENCE_S, BrokerProcess
from tests.process.test_kill import inspect
from tests.pulsar_frames import Frame, Incoming, command, connect, send, send_batch

CYCLES = int(os.environ.get("BROKER_KILL_CYCLES", "5"))
SEED = int(os.environ.get("BROKER_KILL_SEED", random.SystemRandom().randrange(2**32)))
TOPIC = "persistent://public/default/killed"
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
EARLIEST = 1
SETTINGS = ("log_segment_bytes=4000000", "log_retention_check_interval_ms=200")
pytestmark = pytest.mark.timeout(180 + 15 * CYCLES)


class Peer(threading.Thread):
    """A client that connects again whenever the broker is gone."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name=name)
        self.stopping = threading.Event()
        self.wrong: list[str] = []
        self._address = address
        self.requests = itertools.count(1)

    def run(self) -> None:
        while not self.over:
            try:
                self._converse()
            except OSError:
                self.lost()
                time.sleep(0.02)
            except AssertionError as error:
                self.wrong.append(f"{self.name}: {error!r}")
                return

    def _converse(self) -> None:
        host, port = self._address.rsplit(":", 1)
        incoming = Incoming()
        with socket.create_connection((host, int(port)), timeout=5) as self.socket:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.sendall(connect())
            self.begin()
            self.socket.settimeout(0.05)
            while not self.over:
                try:
                    data = self.socket.recv(1 << 16)
                except TimeoutError:
                    data = None
                if data == b"":
                    raise ConnectionError
                for frame in incoming.feed(data or b""):
                    if frame.kind == "PING":
                        self.socket.sendall(command("PONG"))
                    else:
                        self.came(frame)
                self.go_on()

    def ask(self, kind: str, **fields: Any) -> int:
        number = next(self.requests)
        self.socket.sendall(command(kind, request_id=number, **fields))
        return number

    @property
    def over(self) -> bool:
        return self.stopping.is_set()

    def begin(self) -> None:
        raise NotImplementedError

    def came(self, frame: Frame) -> None:
        raise NotImplementedError

    def go_on(self) -> None: ...

    def lost(self) -> None: ...


class Writer(Peer):
    most = 50  # sends at a time

    def __init__(self, name: str, address: str, *, batched: bool) -> None:
        super().__init__(name, address)
        self.receipts: dict[int, bytes] = {}  # by offset
        self._batched = batched
        self._next = 0
        self._ready = False
        self._in_flight: deque[tuple[int, list[bytes]]] = deque()

    @property
    def over(self) -> bool:
        return self.stopping.is_set() and not self._in_flight

    def begin(self) -> None:
        self._ready = False
        self._ask_to_produce()

    def _ask_to_produce(self) -> None:
        self.ask("PRODUCER", topic=TOPIC, producer_id=0, producer_name=self.name, user_provided_producer_name=False)

    def came(self, frame: Frame) -> None:
        if frame.kind == "PRODUCER_SUCCESS":
            self._ready = True
            for sequence, values in self._in_flight:
                self._send(sequence, values)
        elif frame.kind == "ERROR":
            time.sleep(0.05)  # the broker comes up, or has not noticed that the last connection is gone
            self._ask_to_produce()
        elif frame.kind == "SEND_RECEIPT":
            sequence, values = self._in_flight.popleft()
            assert frame.body.sequence_id == sequence, f"a receipt for {frame.body.sequence_id}; {sequence} is due"
            for at, value in enumerate(values):
                offset = frame.body.message_id.entryId + at
                assert self.receipts.setdefault(offset, value) == value, f"two receipts for {offset}"
        else:
            assert frame.kind in ("CONNECTED", "CLOSE_PRODUCER"), frame

    def go_on(self) -> None:
        while self._ready and len(self._in_flight) < self.most and not self.stopping.is_set():
            count = 5 if self._batched else 1
            values = [b"%s/%d" % (self.name.encode(), self._next + at) for at in range(count)]
            self._in_flight.append((self._next, values))
            self._send(self._next, values)
            self._next += count

    def _send(self, sequence: int, values: list[bytes]) -> None:
        key = f"key {sequence % 7}"
        if self._batched:
            self.socket.sendall(send_batch(0, sequence, values, partition_key=key))
        else:
            self.socket.sendall(send(0, sequence, values[0], partition_key=key))


class Subscription:
    """What its consumers know together."""

    def __init__(self, name: str, kind: int) -> None:
        self.name = name
        self.kind = kind
        self.lock = threading.Lock()
        # Offsets, of messages in batches, too.
        self.seen: set[int] = set()
        self.acknowledged: set[int] = set()
        self.durable: set[int] = set()  # the broker has said so


class Worker(Peer):
    def __init__(self, name: str, address: str, subscription: Subscription) -> None:
        super().__init__(name, address)
        self.subscription = subscription
        self._rng = random.Random(f"{SEED}{name}")
        self._held: dict[int, Any] = {}
        self._left: dict[int, int] = {}  # by entry: the bits of its messages that are to be acknowledged
        self._sent: list[int] = []  # acknowledged on this connection
        self._asked: dict[int, list[int]] = {}
        self._durable_before: set[int] = set()

    def begin(self) -> None:
        self.lost()
        with self.subscription.lock:
            # Of these no consumer that subscribes from now on may be told.
            self._durable_before = set(self.subscription.durable)
        self._subscribe()

    def lost(self) -> None:
        self._held.clear()
        self._sent.clear()
        self._asked.clear()

    def _subscribe(self) -> None:
        self.ask(
            "SUBSCRIBE",
            topic=TOPIC,
            subscription=self.subscription.name,
            subType=self.subscription.kind,
            consumer_id=0,
            consumer_name=self.name,
            initialPosition=EARLIEST,
        )

    def came(self, frame: Frame) -> None:
        body = frame.body
        if frame.kind == "SUCCESS":
            self.socket.sendall(command("FLOW", consumer_id=0, messagePermits=200))
        elif frame.kind == "ERROR":
            time.sleep(0.05)
            self._subscribe()
        elif frame.kind == "CLOSE_CONSUMER":
            self._subscribe()
        elif frame.kind == "MESSAGE":
            entry = body.message_id.entryId
            count = len(frame.values)
            bits = body.ack_set[0] % (1 << count) if body.ack_set else (1 << count) - 1
            again = self._durable_before.intersection(_offsets(entry, bits))
            assert not again, f"{again} came again; their acknowledgements were durable"
            self._held[entry] = {"ledgerId": body.message_id.ledgerId, "entryId": entry, "batch_size": count}
            self._left[entry] = bits
            with self.subscription.lock:
                self.subscription.seen.update(range(entry, entry + count))
        elif frame.kind == "ACK_RESPONSE":
            assert not body.HasField("error"), body
            offsets = self._asked.pop(body.request_id)
            with self.subscription.lock:
                self.subscription.durable.update(offsets)
        else:
            assert frame.kind in ("CONNECTED", "ACTIVE_CONSUMER_CHANGE"), frame

    def go_on(self) -> None:
        if len(self._held) < 20 and self._rng.random() < 0.9:
            return
        held = sorted(self._held)
        if not held:
            return
        cumulative = self.subscription.kind == EXCLUSIVE and self._rng.random() < 0.5
        chosen = held if cumulative else self._rng.sample(held, self._rng.randrange(1, len(held) + 1))
        acked: list[int] = []
        ids = []
        for entry in chosen:
            bits, left = self._left[entry], 0
            if not cumulative and self._rng.random() < 0.3:
                left = bits & self._rng.getrandbits(bits.bit_length())  # the others are acknowledged by their indexes
            acked += _offsets(entry, bits ^ left)
            ids.append({**self._held[entry], "ack_set": [left]} if left else self._held[entry])
            self._left[entry] = left
            if not left:
                del self._held[entry]
        fields: dict[str, Any] = {
            "consumer_id": 0,
            "ack_type": int(cumulative),
            "message_id": ids[-1:] if cumulative else ids,
        }
        with self.subscription.lock:
            self.subscription.acknowledged.update(acked)
        self._sent += acked
        if self._rng.random() < 0.5:
            number = next(self.requests)
            # What was acknowledged before on this connection is durable, too, when this is answered.
            self._asked[number] = list(self._sent)
            self.socket.sendall(command("ACK", request_id=number, **fields))
        else:
            self.socket.sendall(command("ACK", **fields))
        if acked:
            self.socket.sendall(command("FLOW", consumer_id=0, messagePermits=len(acked)))


def _offsets(entry: int, bits: int) -> list[int]:
    return [entry + at for at in range(bits.bit_length()) if bits >> at & 1]


class Reader(Peer):
    """Reads everything once, without a durable subscription."""

    def __init__(self, address: str, end: int) -> None:
        super().__init__("reader", address)
        self.found: dict[int, bytes] = {}
        self._end = end

    @property
    def over(self) -> bool:
        return self.stopping.is_set() or max(self.found, default=-1) >= self._end

    def begin(self) -> None:
        start = {"ledgerId": 2**64 - 1, "entryId": 2**64 - 1}
        fields = {"subType": EXCLUSIVE, "consumer_id": 0, "durable": False, "start_message_id": start}
        self.ask("SUBSCRIBE", topic=TOPIC, subscription="reader", **fields)

    def came(self, frame: Frame) -> None:
        if frame.kind == "SUCCESS":
            self.socket.sendall(command("FLOW", consumer_id=0, messagePermits=2**31 - 1))
        elif frame.kind == "MESSAGE":
            for at, value in enumerate(frame.values):
                self.found[frame.body.message_id.entryId + at] = value


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    print(f"BROKER_KILL_SEED={SEED}")
    with BrokerProcess(tmp_path, *SETTINGS, listener="pulsar://127.0.0.1:0") as process:
        yield process


def wait_for(condition: Any, peers: list[Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        wrong = [one for peer in peers for one in peer.wrong]
        assert not wrong, wrong
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_receipts_and_acknowledgements_survive_kills_under_load(broker: BrokerProcess) -> None:
    chance = random.Random(SEED)
    address = broker.address
    writers = [Writer("single", address, batched=False), Writer("batched", address, batched=True)]
    kinds = {"exclusive": EXCLUSIVE, "shared": SHARED, "failover": FAILOVER, "key-shared": KEY_SHARED}
    subscriptions = [Subscription(name, kind) for name, kind in kinds.items()]
    workers = [
        Worker(f"{subscription.name} {number}", address, subscription)
        for subscription in subscriptions
        for number in range(1 if subscription.kind == EXCLUSIVE else 3)
    ]
    peers: list[Any] = [*writers, *workers]
    for peer in peers:
        peer.start()
    try:
        for _ in range(CYCLES):
            receipts = [len(writer.receipts) for writer in writers]
            done = [len(one.durable) for one in subscriptions]
            wait_for(
                lambda: (
                    all(len(writer.receipts) > before for writer, before in zip(writers, receipts, strict=True))  # noqa: B023
                    and all(len(one.durable) > before for one, before in zip(subscriptions, done, strict=True))  # noqa: B023
                ),
                peers,
                "nobody gets on",
            )
            time.sleep(chance.uniform(0.0, 0.5))
            broker.kill()
            broker.start()
        for writer in writers:
            writer.stopping.set()
        for writer in writers:
            writer.join(PATIENCE_S)
        promised = {offset: value for writer in writers for offset, value in writer.receipts.items()}
        for one in subscriptions:
            wait_for(
                lambda: promised.keys() <= one.acknowledged,  # noqa: B023
                peers,
                f"{one.name}: {len(promised.keys() - one.acknowledged)} messages are not acknowledged",
            )
    finally:
        for peer in peers:
            peer.stopping.set()
        for peer in peers:
            peer.join()
    assert [] == [one for peer in peers for one in peer.wrong]
    reader = Reader(address, max(promised))
    reader.start()
    reader.join(PATIENCE_S)
    reader.stopping.set()
    assert [] == reader.wrong
    assert promised.items() <= reader.found.items(), "a receipt was given for what is not there"
    assert broker.stop() == 0
    assert [] == broker.errors
    inspect(broker.data_dir)


def test_acknowledgements_without_a_receipt_are_durable_soon(broker: BrokerProcess) -> None:
    writer = Writer("writer", broker.address, batched=False)
    writer.start()
    subscription = Subscription("sub", SHARED)
    worker = Worker("worker", broker.address, subscription)
    worker._rng.random = lambda: 0.95  # type: ignore[method-assign]  # acknowledges at once, and asks for no receipts
    worker.start()
    wait_for(lambda: len(subscription.acknowledged) > 100, [writer, worker], "nothing is acknowledged")
    writer.stopping.set()
    writer.join()
    wait_for(lambda: writer.receipts.keys() <= subscription.acknowledged, [worker], "not all is acknowledged")
    time.sleep(5)  # "about a second" is promised
    worker.stopping.set()
    worker.join()
    broker.kill()
    broker.start()
    again = Worker("again", broker.address, Subscription("sub", SHARED))
    again.start()
    late = Writer("late", broker.address, batched=False)
    late.start()
    wait_for(lambda: again.subscription.seen, [again, late], "nothing comes")
    assert not again.subscription.seen & writer.receipts.keys()
    for peer in (again, late):
        peer.stopping.set()
        peer.join()
