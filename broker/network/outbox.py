"""How services answer: any thread submits the answer to the processor that owns the connection."""

from collections.abc import Callable, Sequence

from broker.network.mute import MuteEvent
from broker.network.service import Connection, Handover, Part, Request


class ProcessorOutbox:
    """The ``Outbox`` of every service. On the connection's own processor the answer takes effect at once."""

    def send(self, request: Request, parts: Sequence[Part]) -> None:
        processor = request.connection.processor
        processor.submit(processor.send, request, parts)

    def no_op(self, request: Request) -> None:
        processor = request.connection.processor
        processor.submit(processor.no_op, request, None)

    def close(self, request: Request) -> None:
        processor = request.connection.processor
        processor.submit(processor.close_connection, request, None)

    def hand_over(self, request: Request, handover: Handover) -> None:
        processor = request.connection.processor
        processor.submit(processor.hand_over, request, handover)

    def push(self, connection: Connection, parts: Sequence[Part]) -> None:
        processor = connection.processor
        processor.submit(processor.push, connection, parts)

    def call(self, connection: Connection, work: Callable[[], None]) -> None:
        processor = connection.processor
        processor.submit(processor.call, connection, work)

    def start_throttling(self, connection: Connection) -> None:
        processor = connection.processor
        processor.submit(processor.throttle, connection, MuteEvent.THROTTLE_STARTED)

    def end_throttling(self, connection: Connection) -> None:
        processor = connection.processor
        processor.submit(processor.throttle, connection, MuteEvent.THROTTLE_ENDED)
