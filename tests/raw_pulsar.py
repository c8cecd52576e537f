"""A raw Pulsar connection, for misbehaving clients and for benchmarks."""

import itertools
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Self

from protocol.pulsar.pulsar_pb2 import ServerError
from tests.kafka_connection import KafkaConnection
from tests.pulsar_frames import Frame, Incoming, command, connect, send

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
EARLIEST = 1


def topic(name: str | None = None) -> str:
    return f"persistent://public/default/{name or uuid.uuid4().hex[:12]}"


class RawPulsar(KafkaConnection):
    """A connection after CONNECT, unless it is to send CONNECT itself."""

    def __init__(self, address: str, *, greets: bool = True, receive_buffer: int = 0) -> None:
        super().__init__(address, receive_buffer=receive_buffer)
        self._incoming = Incoming()
        self._frames: deque[Frame] = deque()
        self._requests = itertools.count(1)
        if greets:
            self.send(connect())
            self.expect("CONNECTED")

    # -- frames -------------------------------------------------------------------------------------------------------------

    def next_frame(self) -> Frame:
        while not self._frames:
            data = self.socket.recv(1 << 16)
            assert data, "the broker closed the connection"
            self._frames.extend(self._incoming.feed(data))
        return self._frames.popleft()

    def expect(self, kind: str) -> Any:
        """The next frame, which must be of this type; pings are skipped."""
        frame = self.next_frame()
        while frame.kind == "PING" and kind != "PING":
            self.send(command("PONG"))
            frame = self.next_frame()
        assert frame.kind == kind, frame
        return frame.body

    def tell(self, kind: str, **fields: Any) -> None:
        self.send(command(kind, **fields))

    def request(self, kind: str, **fields: Any) -> Frame:
        """Ask, and wait for the answer; other frames are kept for ``next_frame``."""
        number = next(self._requests)
        self.send(command(kind, request_id=number, **fields))
        kept: list[Frame] = []
        while True:
            frame = self.next_frame()
            if frame.kind == "PING":
                self.send(command("PONG"))
            elif getattr(frame.body, "request_id", None) == number and not frame.kind.startswith("CLOSE_"):
                self._frames.extendleft(reversed(kept))
                return frame
            else:
                kept.append(frame)

    def error_of(self, kind: str, **fields: Any) -> str:
        """The error of a refusal, wherever the answer has it; empty if there is none."""
        body = self.request(kind, **fields).body
        for field in ("error", "error_code"):
            if field in body.DESCRIPTOR.fields_by_name and body.HasField(field):
                return str(ServerError.Name(getattr(body, field)))
        return ""

    def is_closed(self) -> bool:
        """Whether the broker closes the connection now, after whatever frames."""
        self.rest()
        return True

    # -- what well-behaved clients do ---------------------------------------------------------------------------------------

    def produce_to(self, topic: str, producer_id: int = 0, **fields: Any) -> Self:
        frame = self.request("PRODUCER", topic=topic, producer_id=producer_id, **fields)
        assert frame.kind == "PRODUCER_SUCCESS", frame
        return self

    def subscribe_to(
        self, topic: str, subscription: str = "sub", kind: int = EXCLUSIVE, consumer_id: int = 0, **fields: Any
    ) -> Self:
        fields.setdefault("initialPosition", EARLIEST)
        frame = self.request(
            "SUBSCRIBE", topic=topic, subscription=subscription, subType=kind, consumer_id=consumer_id, **fields
        )
        assert frame.kind == "SUCCESS", frame
        return self

    def publish(self, *values: bytes, producer_id: int = 0, first: int = 0, **fields: Any) -> list[Any]:
        """Publishes each in its own entry; returns the message ids of the receipts."""
        self.send(b"".join(send(producer_id, first + at, value, **fields) for at, value in enumerate(values)))
        receipts: list[Any] = []
        kept: list[Frame] = []
        while len(receipts) < len(values):
            frame = self.next_frame()
            if frame.kind == "SEND_RECEIPT":
                receipts.append(frame.body.message_id)
            else:
                assert frame.kind in ("MESSAGE", "PING"), frame
                kept.append(frame)
        self._frames.extendleft(reversed(kept))
        return receipts

    def flow(self, permits: int, consumer_id: int = 0) -> None:
        self.tell("FLOW", consumer_id=consumer_id, messagePermits=permits)

    def messages(self, count: int) -> list[Frame]:
        frames: list[Frame] = []
        while len(frames) < count:
            frame = self.next_frame()
            if frame.kind == "PING":
                self.send(command("PONG"))
            elif frame.kind != "ACTIVE_CONSUMER_CHANGE":
                assert frame.kind == "MESSAGE", frame
                frames.append(frame)
        return frames

    def acknowledge(self, ids: Iterable[Any], consumer_id: int = 0, **fields: Any) -> str:
        """The error of the answer, if there is one."""
        return self.error_of(
            "ACK", consumer_id=consumer_id, ack_type=0, message_id=[plain(message_id) for message_id in ids], **fields
        )

    def is_silent(self) -> bool:
        """Whether no frame has come: before it answers a PING, the broker answers everything sent earlier."""
        self.tell("PING")
        return self.next_frame().kind == "PONG"


def plain(message_id: Any) -> Any:
    """A message id as ``command`` takes it."""
    if isinstance(message_id, dict):
        return message_id
    return {"ledgerId": message_id.ledgerId, "entryId": message_id.entryId}


def ids_of(frames: Sequence[Frame]) -> list[Any]:
    return [frame.body.message_id for frame in frames]
