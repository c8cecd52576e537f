"""A broker made of the codecs alone: a client publishes to it and gets the test's deliveries. It keeps every frame.

Blocking, a thread for each connection: enough for a real client to send what it would send to Pulsar.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from protocol.pulsar.deliveries import PONG, Deliveries, Receipts
from protocol.pulsar.frames import command_type, frame_size, read_command, write_command
from protocol.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandAckResponse,
    CommandConnected,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    CommandProducerSuccess,
    CommandSuccess,
)
from protocol.pulsar.sends import read_send
from tests.client.gate import Gate

Type = BaseCommand.Type
LEDGER = 5


class StubBroker(Gate):
    """``with StubBroker() as broker``. ``deliveries`` are (entry, stored part) pairs, all sent when the first permits arrive."""

    def __init__(self, deliveries: Sequence[tuple[int, bytes]] = (), max_message_size: int = 5 << 20) -> None:
        super().__init__()
        self.url = f"pulsar://{self.address}"
        self.max_message_size = max_message_size
        self.frames: list[bytes] = []
        self.acked = threading.Semaphore(0)
        self._deliveries = list(deliveries)
        self._entry = 0
        self.start()

    def of_type(self, number: int) -> list[bytes]:
        return [frame for frame in self.frames if command_type(frame) == number]

    def serve(self, client: socket.socket) -> None:
        buffer = b""
        try:
            while data := client.recv(1 << 16):
                buffer += data
                while (size := frame_size(buffer)) and size <= len(buffer):
                    frame, buffer = buffer[:size], buffer[size:]
                    self.frames.append(frame)
                    for answer in self._answers(frame):
                        client.sendall(answer)
        except OSError:
            pass  # closed at the end of the test

    def _answers(self, frame: bytes) -> Iterator[bytes]:
        number = command_type(frame)
        if number == Type.SEND:
            send = read_send(frame)
            yield Receipts(send.producer_id, LEDGER).receipts([(send.sequence_id, self._entry, 0)])
            self._entry += 1
            return
        number, command = read_command(frame)
        answer = _ANSWERS.get(number)
        if answer is not None:
            yield write_command(*answer(self, command))
        elif number == Type.PING:
            yield PONG
        elif number == Type.FLOW:
            heads = Deliveries(command.consumer_id, LEDGER)
            while self._deliveries:
                entry, stored = self._deliveries.pop(0)
                yield heads.head(entry, len(stored)) + stored
        elif number == Type.ACK:
            if command.HasField("request_id"):
                response = CommandAckResponse(consumer_id=command.consumer_id, request_id=command.request_id)
                yield write_command(Type.ACK_RESPONSE, response)
            for _ in command.message_id:
                self.acked.release()


def _success(broker: StubBroker, command: Any) -> tuple[int, CommandSuccess]:
    return Type.SUCCESS, CommandSuccess(request_id=command.request_id)


_ANSWERS: dict[int, Callable[[StubBroker, Any], tuple[int, Any]]] = {
    Type.CONNECT: lambda broker, command: (
        Type.CONNECTED,
        CommandConnected(
            server_version="stub",
            protocol_version=command.protocol_version,
            max_message_size=broker.max_message_size,
        ),
    ),
    Type.PARTITIONED_METADATA: lambda broker, command: (
        Type.PARTITIONED_METADATA_RESPONSE,
        CommandPartitionedTopicMetadataResponse(partitions=0, request_id=command.request_id, response=0),
    ),
    Type.LOOKUP: lambda broker, command: (
        Type.LOOKUP_RESPONSE,
        CommandLookupTopicResponse(
            brokerServiceUrl=broker.url, response=1, request_id=command.request_id, authoritative=True
        ),
    ),
    Type.PRODUCER: lambda broker, command: (
        Type.PRODUCER_SUCCESS,
        CommandProducerSuccess(
            request_id=command.request_id, producer_name=command.producer_name or "stub-1", last_sequence_id=-1
        ),
    ),
    Type.SUBSCRIBE: _success,
    Type.CLOSE_PRODUCER: _success,
    Type.CLOSE_CONSUMER: _success,
    Type.UNSUBSCRIBE: _success,
    Type.SEEK: _success,
}
