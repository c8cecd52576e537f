"""A producer of a Pulsar topic: sends in order, again after a lost connection, until it has a receipt for everything."""

from collections import deque
from typing import Any

import attrs

from tests.pulsar_frames import Frame, send, send_batch
from tests.sim.clients.pulsar_client import PulsarClient
from tests.sim.pulsar_ledger import LogLedger, Sent
from tests.sim.world import Violation

_PRODUCER = 7  # the id, on each of its connections
_HELD_BACK = 4  # sends at most that wait for the second act, so that consumers have something to do then


@attrs.define(eq=False)
class Batch:
    sequence: int
    messages: list[Sent]
    batched: bool


class PulsarProducer(PulsarClient):
    """``delays``: some messages are to be delivered later."""

    def __init__(self, *args: Any, log: LogLedger, topic: str, sends: int, size_most: int, delays: bool) -> None:
        super().__init__(*args)
        self._log = log
        self._topic = topic
        self._in_flight_most = self.rng.choice((1, 3, 20))
        self._producing = False
        self._in_flight: deque[Batch] = deque()
        self._waiting: deque[Batch] = deque()
        self._pace = self.rng.choice((0.1, 0.5, 1.0))
        self._size_most = size_most
        self._held_back = self.rng.randrange(1, min(_HELD_BACK, sends) + 1)
        sequence = 0
        for _ in range(sends):
            batched = self.rng.random() < 0.3
            key = f"key-{self.rng.randrange(4)}"
            count = self.rng.randrange(1, 5) if batched else 1
            messages = [Sent(self._value(sequence + number), key) for number in range(count)]
            if delays and not batched and self.rng.random() < 0.3:
                messages[0].deliver_at_ms = self.rng.randrange(1, 4_000)  # from when it is sent
            self._waiting.append(Batch(sequence, messages, batched))
            sequence += count
        log.writers.append(lambda: self.done)

    def _value(self, number: int) -> bytes:
        return f"{self.name}/{number}/".encode() + self.rng.randbytes(1) * self.rng.randrange(1, self._size_most)

    @property
    def done(self) -> bool:
        return not self._waiting and not self._in_flight

    def lost(self) -> None:
        self._producing = False
        while self._in_flight:
            self._waiting.appendleft(self._in_flight.pop())

    def go_on(self) -> None:
        if self.done:
            if self._producing and self.rng.random() < 0.3:
                self._producing = False
                self.ask("CLOSE_PRODUCER", producer_id=_PRODUCER)
            return
        if not self._producing:
            if not self.asks("PRODUCER"):
                self.ask(
                    "PRODUCER",
                    topic=self._topic,
                    producer_id=_PRODUCER,
                    producer_name=self.name,
                    user_provided_producer_name=False,
                    epoch=self._request,
                )
            return
        while self._may_send and self.rng.random() < self._pace:
            self._send(self._waiting.popleft())

    @property
    def _may_send(self) -> bool:
        left = 0 if self.quiet else self._held_back
        return len(self._waiting) > left and len(self._in_flight) < self._in_flight_most

    def _send(self, batch: Batch) -> None:
        self._in_flight.append(batch)
        now_ms = int((self.world.now + self.world.wall_offset_s) * 1000)
        fields: dict[str, Any] = {"partition_key": batch.messages[0].key, "publish_time": now_ms}
        for message in batch.messages:
            if 0 < message.deliver_at_ms < 1_000_000:
                message.deliver_at_ms += now_ms
            if message.deliver_at_ms:
                fields["deliver_at_time"] = message.deliver_at_ms
            self._log.sending(message)
        if batch.batched:
            values = [message.value for message in batch.messages]
            keys = [message.key for message in batch.messages]
            self.send(send_batch(_PRODUCER, batch.sequence, values, keys=keys, producer_name=self.name, **fields))
        else:
            value = batch.messages[0].value
            self.send(send(_PRODUCER, batch.sequence, value, producer_name=self.name, **fields))

    def answered(self, kind: str, context: Any, message: Frame) -> None:
        if kind == "PRODUCER":
            if message.kind != "PRODUCER_SUCCESS":
                raise Violation(f"{self.name}: {message.kind} answers PRODUCER")
            self._producing = True

    def refused(self, kind: str, context: Any, error: str) -> None:
        if kind == "PRODUCER" and error == "ProducerBusy" and not self.quiet:
            return  # the broker has not noticed yet that the last connection is gone
        super().refused(kind, context, error)

    def came(self, message: Frame) -> None:
        body = message.body
        if message.kind == "CLOSE_PRODUCER":
            self.lost()
        elif message.kind == "SEND_ERROR":
            error = self._error(body)
            self.excuse(f"SEND {body.sequence_id} ({body.message})", error)
            self.disconnect()  # as the real ones do
        elif message.kind == "SEND_RECEIPT":
            if not self._in_flight or body.sequence_id != self._in_flight[0].sequence:
                due = self._in_flight[0].sequence if self._in_flight else None
                raise Violation(f"{self.name}: a receipt for {body.sequence_id}, and {due} is due")
            batch = self._in_flight.popleft()
            for at, one in enumerate(batch.messages):
                self._log.promise(body.message_id.entryId + at, one.value, self.name)
            self.history.on_promise()
        else:
            super().came(message)
