"""A client that says what a test says, one frame at a time."""

from typing import Any

from protocol.pulsar.frames import command_type, read_command, write_command
from protocol.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandConnect,
    CommandProducer,
    CommandSend,
    MessageMetadata,
)
from protocol.pulsar.sends import write_send, write_stored_part
from tests.kafka_connection import KafkaConnection

Type = BaseCommand.Type
_PATIENCE_S = 30.0


class Wire(KafkaConnection):
    """``connect`` False: CONNECT is left to the test; otherwise these are its fields."""

    def __init__(self, address: str, connect: bool = True, **fields: Any) -> None:
        super().__init__(address, timeout_s=_PATIENCE_S)
        self._requests = 100
        if connect:
            self.connected = self.connect(**fields)

    def connect(self, **fields: Any) -> Any:
        self.say(Type.CONNECT, CommandConnect(client_version="test", protocol_version=20, **fields))
        kind, answer = self.hear()
        assert kind == Type.CONNECTED, (kind, answer)
        return answer

    # -- saying ---------------------------------------------------------------------------------------------------------

    raw = KafkaConnection.send

    def say(self, kind: int, command: Any) -> None:
        self.raw(write_command(kind, command))

    def next_request(self) -> int:
        self._requests += 1
        return self._requests

    def ask(self, kind: int, command: Any) -> tuple[int, Any]:
        """Say it with a request id of its own, and hear the answer."""
        command.request_id = self.next_request()
        self.say(kind, command)
        answer_kind, answer = self.hear()
        assert answer.request_id == command.request_id
        return answer_kind, answer

    def produce(self, topic: str, producer_id: int = 0, **fields: Any) -> Any:
        """Begin to produce. The answer, which is PRODUCER_SUCCESS or ERROR."""
        command = CommandProducer(topic=topic, producer_id=producer_id, request_id=0, **fields)
        return self.ask(Type.PRODUCER, command)[1]

    # -- hearing --------------------------------------------------------------------------------------------------------

    def frame(self) -> bytes | None:
        """The next frame; None: the broker has closed the connection."""
        try:
            return super().frame()
        except ConnectionError:
            return None

    def hear(self) -> tuple[int, Any]:
        """Type and command of the next frame."""
        frame = self.frame()
        assert frame is not None, "the broker has closed the connection"
        assert command_type(frame) != Type.MESSAGE
        return read_command(frame)

    def is_closed(self) -> bool:
        """Whether the broker closes the connection, after what it may still say."""
        while self.frame() is not None:
            pass
        return True


def send_frame(
    sequence_id: int = 0,
    payload: bytes = b"payload",
    *,
    producer_id: int = 0,
    batch: int | None = None,
    producer_name: str = "name",
    spoil: bool = False,
    **metadata: Any,
) -> bytes:
    """A SEND. ``batch``: the number of messages that it claims; ``spoil``: its checksum is wrong."""
    fields = MessageMetadata(producer_name=producer_name, sequence_id=sequence_id, publish_time=1, **metadata)
    if batch is not None:
        fields.num_messages_in_batch = batch
    stored = bytearray(write_stored_part(fields.SerializeToString(), payload))
    if spoil:
        stored[-1] ^= 1
    return write_send(
        CommandSend(
            producer_id=producer_id,
            sequence_id=sequence_id,
            num_messages=batch or 1,
            highest_sequence_id=metadata.get("highest_sequence_id", 0),
        ),
        bytes(stored),
    )
