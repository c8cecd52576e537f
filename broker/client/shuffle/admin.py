"""Lists and releases the result partitions of a broker.

Tests: tests/client/shuffle/test_silent_broker.py, tests/client/shuffle/test_blocks.py.
"""

from functools import partial
from typing import TypeVar

from broker.client.shuffle import io_loop
from broker.client.shuffle.connection import CONNECT_TIMEOUT_S, Connection
from broker.client.shuffle.errors import (
    RemoteTransportError,
    ShuffleClosedError,
    ShuffleTimeoutError,
    of_another_process,
    writer_refused,
)
from broker.client.shuffle.names import Address, PartitionLike, parse_address, partition_id
from broker.client.shuffle.security import SecurityLike, open_tls
from broker.runtime import forks
from broker.runtime.threads import Condition, Event
from protocol.shuffle.buffer_response import DEFAULT_BUFFER_SIZE, ServerMessage
from protocol.shuffle.ids import DATA_SET_BYTES, Generation, ResultPartitionID
from protocol.shuffle.messages import ErrorResponse
from protocol.shuffle.writer_frames import (
    DataSetReleased,
    PartitionInfo,
    PartitionList,
    PartitionReleased,
    PartitionState,
    WriterError,
    encode_list_partitions,
    encode_release_data_set,
    encode_release_partition,
)

Answer = PartitionList | PartitionReleased | DataSetReleased
A = TypeVar("A", bound=Answer)


class ShuffleAdmin:
    """A connection for requests. Every method waits for its answer for at most ``timeout`` s. Any thread may use it.

    ``security``: settings by Kafka's names, for TLS."""

    def __init__(
        self,
        address: str | Address,
        *,
        timeout: float = 30.0,
        connect_timeout: float = CONNECT_TIMEOUT_S,
        generation: Generation | str = Generation.V2_0,
        security: SecurityLike = None,
    ) -> None:
        tls = open_tls(security, [address])
        parsed = parse_address(address)
        self._timeout = timeout
        self._changed = Condition()
        self._answers: dict[int, Answer] = {}
        self._error: Exception | None = None
        self._correlation = 0
        self._closed = False
        self._loop = io_loop.acquire()
        self._connection = Connection(
            self._loop, parsed, Generation(generation), DEFAULT_BUFFER_SIZE, self, connect_timeout, tls
        )
        self._loop.call(self._connection.open)
        forks.tell(self)

    def partitions(self, prefix: str = "") -> tuple[PartitionInfo, ...]:
        """Return all partitions whose 120 hex digits begin with ``prefix``."""
        number = self._number()
        return self._ask(number, encode_list_partitions(number, prefix), PartitionList).partitions

    def release(self, partition: PartitionLike) -> bool:
        """Delete a partition and free its space. False if it did not exist."""
        number = self._number()
        frame = encode_release_partition(number, partition_id(partition))
        return self._ask(number, frame, PartitionReleased).existed

    def release_data_set(self, data_set: bytes) -> int:
        """Delete all partitions of a data set (the first 16 bytes of their ids), and have the broker refuse new ones: a
        writer that opens one later gets PartitionReleasedError. Returns the number of deleted partitions. Raises
        ValueError for other ids.
        """
        if len(data_set) != DATA_SET_BYTES:
            raise ValueError(f"a data set's id is {DATA_SET_BYTES} bytes, not {len(data_set)}")
        number = self._number()
        return self._ask(number, encode_release_data_set(number, data_set), DataSetReleased).partitions

    def finished_attempt(self, partition: PartitionLike, patience: float = 10.0) -> ResultPartitionID | None:
        """The finished attempt at this partition. Waits ``patience`` s for it, because an attempt is refused as soon as
        another attempt begins to finish, which may still be being written to disk.
        """
        prefix = partition_id(partition).producer_key.hex()
        deadline = self._loop.now() + patience
        while True:
            for attempt in self.partitions(prefix):
                if attempt.state is PartitionState.FINISHED:
                    return attempt.partition
            if self._loop.now() >= deadline:
                return None
            Event().wait(0.1)

    def _number(self) -> int:
        with self._changed:
            self._correlation += 1
            return self._correlation

    def _ask(self, number: int, frame: bytes, kind: type[A]) -> A:
        loop = self._loop
        loop.call(partial(self._connection.send, [frame]))
        deadline = loop.now() + self._timeout
        with self._changed:
            while number not in self._answers:
                if self._error is not None:
                    raise self._error
                if self._closed:
                    raise ShuffleClosedError("the connection is closed")
                patience = min(1.0, deadline - loop.now())
                if patience <= 0 or loop.crashed is not None:
                    raise ShuffleTimeoutError(f"{self._connection.name} did not answer within {self._timeout:g} s")
                self._changed.wait(patience)
            answer = self._answers.pop(number)
            assert isinstance(answer, kind)
            return answer

    def connected(self) -> None:
        pass

    def drained(self) -> None:
        pass

    def received(self, messages: list[ServerMessage]) -> None:
        with self._changed:
            for message in messages:
                if isinstance(message, Answer):
                    self._answers[message.correlation] = message
                elif isinstance(message, WriterError):
                    self._error = writer_refused(message.code, message.message)
                elif isinstance(message, ErrorResponse):
                    self._error = RemoteTransportError(
                        f"{self._connection.name} answered {message.class_name}: {message.message}",
                        self._connection.name,
                        message.class_name,
                    )
            self._changed.notify_all()

    def closed(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Calling it twice is no error."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        io_loop.run(self._loop, self._connection.close)
        io_loop.release(self._loop)

    def abandon(self, error: Exception) -> None:
        """The I/O loop calls this when a method has raised ``error``."""
        self.closed(error)

    def forked(self) -> None:
        """Close this copy in a forked child. The parent keeps using the connection."""
        self._changed = Condition()
        self._closed = True
        self._error = of_another_process()

    def __enter__(self) -> "ShuffleAdmin":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
