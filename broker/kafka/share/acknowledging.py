"""The acknowledgements of one request: to each share partition, and then a wait until all of them are durable.

``run`` is called on the thread that handles the request; ``then`` is called on that thread if there is nothing to wait for, and
else on the catalogue writer's.

Tests: tests/kafka/handlers/test_share_acknowledge.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from broker.errors import RequestError, StorageError
from broker.kafka.authorization import may
from broker.kafka.context import KafkaContext
from broker.kafka.share.share_sessions import ShareSession
from broker.network.service import Connection
from broker.network.work import Work
from broker.runtime.threads import Lock
from broker.security.acl import Operation, ResourceType
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.share_fetch import SharePartitionRequest, TopicPartition

Result = tuple[int, str | None]  # error code and message
_DONE: Result = (0, None)


class Acknowledging:
    """``results`` are complete when ``then`` is called."""

    __slots__ = ("_context", "_lock", "_pending", "_session", "_then", "results")

    def __init__(self, context: KafkaContext, session: ShareSession, then: Callable[[], None]) -> None:
        self._context = context
        self._session = session
        self._then = then
        self._lock = Lock()
        self._pending = 1  # ``run`` itself
        self.results: dict[TopicPartition, Result] = {}

    def run(
        self, connection: Connection, partitions: Sequence[SharePartitionRequest], work: Work, *, may_renew: bool
    ) -> None:
        """Raises Abandoned."""
        share = self._context.share
        allowed: dict[bytes, bool] = {}
        share.acknowledge_requests += 1
        for partition, batches in work.each(partitions):
            if not batches or partition in self.results:
                continue
            name = share.topic_name(partition[0])
            if name is None:
                self.results[partition] = ErrorCode.unknown_topic_id, None
                continue
            if self._context.authorizer is not None:
                if partition[0] not in allowed:
                    allowed[partition[0]] = may(self._context, connection, Operation.READ, ResourceType.TOPIC, name)
                if not allowed[partition[0]]:
                    self.results[partition] = ErrorCode.topic_authorization_failed, "Not authorized."
                    continue
            entry = share.entry(self._session.group_id, partition)
            if entry is None:
                self.results[partition] = ErrorCode.unknown_topic_or_partition, None
                continue
            self.results[partition] = _DONE
            with self._lock:
                self._pending += 1
            try:
                waits = entry.acknowledge(
                    self._session.member_id, batches, partial(self._saved, partition), may_renew=may_renew
                )
            except RequestError as error:
                self.results[partition] = error.code, error.message
                waits = False
            if not waits:
                self._one_done()
        self._one_done()

    @property
    def errors(self) -> Mapping[TopicPartition, Result]:
        return {partition: result for partition, result in self.results.items() if result[0]}

    def _saved(self, partition: TopicPartition, error: StorageError | None) -> None:
        if error is not None:
            self.results[partition] = ErrorCode.kafka_storage_error, "The acknowledgements could not be stored."
        self._one_done()

    def _one_done(self) -> None:
        with self._lock:
            self._pending -= 1
            last = not self._pending
        if last:
            self._then()
