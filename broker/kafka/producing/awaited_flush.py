"""How Produce requests with ``acks=all`` wait for an fsync, without a thread.

Begun on the thread that has appended; the answer comes on the one that has synced the log, or on the timer's if the request times
out.

Tests: tests/kafka/handlers/test_produce.py, tests/kafka/test_ack_deadlines.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from broker.errors import StorageError
from broker.kafka.ack_deadlines import AckDeadlines
from broker.kafka.api import KafkaRequest
from broker.kafka.context import KafkaContext
from broker.runtime.threads import Lock
from broker.storage.log.log import Log
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.produce import PartitionResult

# Results that take the place of those that were due if the records had become durable in time, by their index.
Failed = Mapping[int, PartitionResult]

# Called with an error and a message for the client, which are None if the records are durable.
Answer = Callable[[ErrorCode | None, str | None], None]


class Written(NamedTuple):
    """What was appended to one log: the indexes of the results, and the topic as the request calls it."""

    indexes: Sequence[int]
    topic: str | bytes
    log: Log


class AwaitedAppend:
    """A request that has appended to one log, as nearly all do. ``answer`` is called once: by whoever has removed this from the
    deadlines."""

    __slots__ = ("_answer", "_deadlines", "deadline")

    def __init__(self, deadlines: AckDeadlines, answer: Answer) -> None:
        self._deadlines = deadlines
        self._answer = answer
        self.deadline = 0.0

    def begin(self, context: KafkaContext, request: KafkaRequest, log: Log, timeout_ms: int) -> None:
        """The log is to become durable as far as it goes now."""
        self.deadline = request.received_at + timeout_ms / 1000
        self._deadlines.add(self)
        context.flusher.wait_durable(log, log.log_end_offset, self._flushed)

    def _flushed(self, error: StorageError | None) -> None:
        if self._deadlines.remove(self):
            if error is None:
                self._answer(None, None)
            else:
                self._answer(ErrorCode.kafka_storage_error, str(error))

    def expire(self) -> None:
        """The request has timed out. As in Kafka, the records may become durable all the same."""
        self._answer(ErrorCode.request_timed_out, None)


class AwaitedFlush:
    """A request of several partitions, or several requests that are answered together: ``send`` is called once."""

    def __init__(self, context: KafkaContext, request: KafkaRequest, send: Callable[[Failed], None]) -> None:
        self._context = context
        self._received_at = request.received_at
        self._send = send
        self._lock = Lock()
        self._failed: dict[int, PartitionResult] = {}
        self._unflushed: list[Written] = []
        self._answered = False
        self.deadline = 0.0

    def begin(self, written: Sequence[Written], timeout_ms: int) -> None:
        self._unflushed = list(written)
        self.deadline = self._received_at + timeout_ms / 1000
        self._context.ack_deadlines.add(self)
        for one in written:
            self._context.flusher.wait_durable(one.log, one.log.log_end_offset, partial(self._flushed, one))

    def _flushed(self, one: Written, error: StorageError | None) -> None:
        with self._lock:
            if self._answered:
                return
            if error is not None:
                self._fail(one, ErrorCode.kafka_storage_error, str(error))
            self._unflushed = [other for other in self._unflushed if other is not one]
            if self._unflushed:
                return
            self._answered = True
        self._context.ack_deadlines.remove(self)
        self._send(self._failed)

    def expire(self) -> None:
        """The request has timed out. As in Kafka, the records may become durable all the same."""
        with self._lock:
            if self._answered:
                return
            self._answered = True
            for one in self._unflushed:
                self._fail(one, ErrorCode.request_timed_out, None)
        self._send(self._failed)

    def _fail(self, one: Written, error: ErrorCode, message: str | None) -> None:
        self._failed.update(dict.fromkeys(one.indexes, failure(one.log, one.topic, error, message)))


def failure(log: Log, topic: str | bytes, error: ErrorCode, message: str | None) -> PartitionResult:
    """``topic``: as the request calls it."""
    return PartitionResult(topic, log.partition, error, -1, -1, log.log_start_offset, message)
