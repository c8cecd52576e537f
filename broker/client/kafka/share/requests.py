"""The requests of share groups and their answers, the share session with one broker, and the heartbeats to the
coordinator.

A ``ShareSession`` decides what may be asked of its broker next. Pure. The broker keeps the partitions that a member
reads from it, so that requests name only changes. Both sides count the requests: the epoch 0 opens a session, each
further ShareFetch or ShareAcknowledge has the next epoch, and -1 closes it. So there is one request at a time, and only
a fetch can open a session. Acknowledgements need an open session. ``TABLE`` has the states.

LOST: the connection broke, or the broker does not know the session (any more) or had no place for it. Every other pair
is a bug of the caller (AssertionError).

``Heartbeats`` keeps the consumer a member of its group, on a thread of its own, so that users may take their time with
a record. ``membership.py`` decides what to send and when; this asks the group's coordinator, over connections of its
own. The consumer learns of assignments, and of the error that ended its membership, through the condition on which both
wait.

Tests: tests/client/kafka/share/test_other_brokers.py.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import Any

import attrs

from broker.client.kafka.config import ClientConfig
from broker.client.kafka.connection import Connection
from broker.client.kafka.errors import (
    BrokerAnswerError,
    KafkaClientError,
    LinkError,
    RetriableError,
    TimedOutError,
    UnreachableError,
    code_name,
)
from broker.client.kafka.routing import GROUP, Routing
from broker.client.kafka.share.acquired import Acknowledgements, TopicIdPartition
from broker.client.kafka.share.membership import HeartbeatAnswer, Membership, MembershipState
from broker.client.kafka.share.record import switched_off, unsupported
from broker.errors import BrokerError
from broker.runtime.clock import Clock
from broker.runtime.threads import Condition, SystemThreads, ThreadHandle
from broker.transitions import Transitions
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control

_CLOSING_EPOCH = -1
_LAST_EPOCH = 2**31 - 1


class SessionState(IntEnum):
    CLOSED = 0
    OPENING = 1
    OPEN = 2
    BUSY = 3
    CLOSING = 4


class SessionEvent(IntEnum):
    OPEN_SENT = 0
    REQUEST_SENT = 1
    CLOSE_SENT = 2
    ANSWERED = 3
    LOST = 4


TABLE = Transitions(
    SessionState,
    SessionEvent,
    """
    CLOSED   OPEN_SENT     OPENING
    OPENING  ANSWERED      OPEN
    OPENING  LOST          CLOSED
    OPEN     REQUEST_SENT  BUSY
    OPEN     CLOSE_SENT    CLOSING
    OPEN     LOST          CLOSED
    BUSY     ANSWERED      OPEN
    BUSY     LOST          CLOSED
    CLOSING  ANSWERED      CLOSED
    CLOSING  LOST          CLOSED
    """,
)
next_state = TABLE.next


@attrs.frozen
class FetchPlan:
    """``added`` and ``forgotten``: the partitions that the request names beside its acknowledgements."""

    epoch: int
    added: tuple[TopicIdPartition, ...]
    forgotten: tuple[TopicIdPartition, ...]


class ShareSession:
    """``state``, ``epoch`` (of the next request) and ``partitions`` (those that the broker reads for this member, if in
    sync)."""

    __slots__ = ("_wanted", "epoch", "partitions", "state")

    def __init__(self) -> None:
        self.state = SessionState.CLOSED
        self.epoch = 0
        self.partitions: frozenset[TopicIdPartition] = frozenset()
        self._wanted: frozenset[TopicIdPartition] = frozenset()

    @property
    def is_open(self) -> bool:
        return self.state is SessionState.OPEN

    @property
    def is_waiting(self) -> bool:
        """Whether a request is in flight."""
        return self.state in (SessionState.OPENING, SessionState.BUSY, SessionState.CLOSING)

    def fetch(self, wanted: Collection[TopicIdPartition]) -> FetchPlan:
        """Record that a fetch from ``wanted`` is sent, which opens a closed session."""
        self._feed(SessionEvent.OPEN_SENT if self.state is SessionState.CLOSED else SessionEvent.REQUEST_SENT)
        self._wanted = frozenset(wanted)
        if self._wanted == self.partitions:  # the usual case
            return FetchPlan(self.epoch, (), ())
        added = tuple(sorted(self._wanted - self.partitions))
        return FetchPlan(self.epoch, added, tuple(sorted(self.partitions - self._wanted)))

    def acknowledge(self) -> int:
        """Record that acknowledgements are sent without a fetch. Returns the request's epoch."""
        self._feed(SessionEvent.REQUEST_SENT)
        self._wanted = self.partitions
        return self.epoch

    def close(self) -> int:
        """Record that the last request is sent. Returns its epoch."""
        self._feed(SessionEvent.CLOSE_SENT)
        self._wanted = frozenset()
        return _CLOSING_EPOCH

    def answered(self) -> None:
        """The broker has accepted the request."""
        closing = self.state is SessionState.CLOSING
        self._feed(SessionEvent.ANSWERED)
        self.partitions = self._wanted
        # After the last epoch comes 1: 0 would open another session.
        self.epoch = 0 if closing else 1 if self.epoch == _LAST_EPOCH else self.epoch + 1

    def lost(self) -> None:
        """The session is gone. Losing a closed session changes nothing."""
        if self.state is not SessionState.CLOSED:
            self._feed(SessionEvent.LOST)
        self.epoch, self.partitions = 0, frozenset()

    def _feed(self, event: SessionEvent) -> None:
        self.state = next_state(self.state, event)


# Lowest and highest version. Version 0 was the early access of Kafka 4.0, which brokers since then do not serve.
HEARTBEAT_VERSIONS = (1, 1)
FETCH_VERSIONS = (1, 2)
ACKNOWLEDGE_VERSIONS = (1, 2)
FIRST_WITH_RENEWAL = 2  # also the first that can count records instead of whole batches

# The broker locks at most share.partition.max.record.locks records of a partition, at most 10,000 in Kafka. An answer
# with far more, for one partition or in total, is an error. Each record costs a byte here.
_RANGE_MAX = 1 << 20
_ANSWER_MAX = 1 << 22

_RECORD_LIMIT = 1


@attrs.frozen
class FetchLimits:
    """``strict``: ``max_records`` counts records. Otherwise the broker may send the rest of a batch as well."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    strict: bool


@attrs.frozen(eq=False)
class PartitionAnswer:
    """``acquired``: first and last offset and delivery count. ``records`` is valid as long as the frame."""

    partition: TopicIdPartition
    error: int
    acknowledge_error: int
    message: str
    records: memoryview
    acquired: tuple[tuple[int, int, int], ...]


@attrs.frozen(eq=False)
class ShareAnswer:
    """``lock_s`` 0: the broker does not state the duration of locks."""

    error: int
    message: str
    throttle_s: float
    lock_s: float
    partitions: tuple[PartitionAnswer, ...]


def share_fetch(
    version: int,
    group: str,
    member_id: str,
    plan: FetchPlan,
    acknowledgements: Acknowledgements,
    limits: FetchLimits,
) -> Mapping[str, Any]:
    named = dict.fromkeys(plan.added, ()) | acknowledgements
    fields: dict[str, Any] = {
        "group_id": group,
        "member_id": member_id,
        "share_session_epoch": plan.epoch,
        "max_wait": limits.max_wait_ms,
        "min_bytes": limits.min_bytes,
        "max_bytes": limits.max_bytes,
        "max_records": limits.max_records,
        "batch_size": limits.max_records,
        "topics": _topics(named),
        "forgotten_topics_data": [
            {"topic_id": topic_id, "partitions": indexes} for topic_id, indexes in _by_topic(plan.forgotten).items()
        ],
    }
    if version >= FIRST_WITH_RENEWAL:
        fields["share_acquire_mode"] = _RECORD_LIMIT if limits.strict else 0
    return fields


def share_acknowledge(
    version: int, group: str, member_id: str, epoch: int, acknowledgements: Acknowledgements, *, renewal: bool = False
) -> Mapping[str, Any]:
    fields = {
        "group_id": group,
        "member_id": member_id,
        "share_session_epoch": epoch,
        "topics": _topics(acknowledgements),
    }
    if version >= FIRST_WITH_RENEWAL:
        fields["is_renew_ack"] = renewal
    return fields


def _by_topic(partitions: Sequence[TopicIdPartition]) -> dict[Any, list[int]]:
    topics: dict[Any, list[int]] = {}
    for topic_id, partition in partitions:
        topics.setdefault(topic_id, []).append(partition)
    return topics


def _topics(named: Mapping[TopicIdPartition, Sequence[tuple[int, int, bytes]]]) -> list[Mapping[str, Any]]:
    topics: dict[Any, list[Mapping[str, Any]]] = {}
    for (topic_id, partition), batches in named.items():
        topics.setdefault(topic_id, []).append(
            {
                "partition_index": partition,
                "acknowledgement_batches": [
                    {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
                    for first, last, types in batches
                ],
            }
        )
    return [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in topics.items()]


# -- answers ----------------------------------------------------------------------------------------------------


def read_fetched(version: int, frame: memoryview) -> tuple[int, ShareAnswer]:
    """The correlation id and the answer. Raises ProtocolError."""
    correlation_id, answer = control.parse_response(ApiKey.SHARE_FETCH, version, frame)
    partitions = []
    for topic in answer.responses:
        for data in topic.partitions:
            records = data.records
            partitions.append(
                PartitionAnswer(
                    (topic.topic_id, data.partition_index),
                    data.error_code,
                    data.acknowledge_error_code,
                    data.error_message or data.acknowledge_error_message or "",
                    memoryview(records) if records is not None else memoryview(b""),
                    _acquired(data.acquired_records),
                )
            )
    total = sum(last - first + 1 for data in partitions for first, last, _ in data.acquired)
    if total > _ANSWER_MAX:
        raise ProtocolError(f"{total} acquired records in one answer")
    return correlation_id, _answer(answer, partitions)


def read_acknowledged(version: int, frame: memoryview) -> tuple[int, ShareAnswer]:
    """The correlation id and the answer. Raises ProtocolError."""
    correlation_id, answer = control.parse_response(ApiKey.SHARE_ACKNOWLEDGE, version, frame)
    partitions = [
        PartitionAnswer(
            (topic.topic_id, data.partition_index),
            0,
            data.error_code,
            data.error_message or "",
            memoryview(b""),
            (),
        )
        for topic in answer.responses
        for data in topic.partitions
    ]
    return correlation_id, _answer(answer, partitions)


def _answer(answer: Any, partitions: list[PartitionAnswer]) -> ShareAnswer:
    lock = getattr(answer, "acquisition_lock_timeout", None)
    return ShareAnswer(
        answer.error_code,
        answer.error_message or "",
        answer.throttle_time.total_seconds(),
        0.0 if lock is None else lock.total_seconds(),
        tuple(partitions),
    )


def _acquired(ranges: Sequence[Any]) -> tuple[tuple[int, int, int], ...]:
    total, before = 0, -1
    for acquired in ranges:
        if not before < acquired.first_offset <= acquired.last_offset:
            raise ProtocolError(f"acquired records {acquired.first_offset} to {acquired.last_offset} after {before}")
        before = acquired.last_offset
        total += acquired.last_offset - acquired.first_offset + 1
    if total > _RANGE_MAX:
        raise ProtocolError(f"{total} acquired records of one partition")
    return tuple((acquired.first_offset, acquired.last_offset, acquired.delivery_count) for acquired in ranges)


def heartbeat_answer(answer: Any) -> HeartbeatAnswer:
    assigned = None
    if answer.assignment is not None:
        assigned = frozenset(
            (topic.topic_id, partition)
            for topic in answer.assignment.topic_partitions
            for partition in topic.partitions
        )
    return HeartbeatAnswer(
        answer.error_code, answer.member_epoch, max(0.05, answer.heartbeat_interval.total_seconds()), assigned
    )


# For a heartbeat, including finding the coordinator and connecting to it. Several fit into a session's timeout (45 s by
# default).
_ATTEMPT_MS = 10_000

_NO_MORE = (MembershipState.FAILED, MembershipState.LEFT)


class Heartbeats:
    """The body of the thread. ``condition`` guards ``membership`` and ``failure``."""

    def __init__(self, config: ClientConfig, membership: Membership, condition: Condition, clock: Clock) -> None:
        self.failure: BrokerError | None = None
        self._membership = membership
        self._condition = condition
        self._clock = clock
        self._config = config
        self._routing = Routing(config, clock)
        self._started_at = clock.monotonic()
        self._has_joined = False
        self._is_stopped = False
        self._thread: ThreadHandle | None = None

    def start(self) -> None:
        self._thread = SystemThreads().spawn("share-heartbeats", self, self._crashed)

    def stop(self, timeout_s: float) -> bool:
        """Leave the group and end the thread. False if that took too long; the thread then ends by itself."""
        with self._condition:
            if self._membership.state is not MembershipState.LEFT:
                self._membership.leave()
            self._membership.due_at = 0.0
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._membership.state in _NO_MORE, timeout_s)
        self._is_stopped = True
        return self._thread is None or self._thread.stop(timeout_s)

    def wakeup(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def step(self, timeout: float | None) -> bool:
        """Wait until the next heartbeat is due, and send it."""
        membership = self._membership
        with self._condition:
            if membership.state in _NO_MORE:
                self._routing.close()
                if not self._is_stopped:
                    self._condition.wait(1.0)
                return False
            wait_s = membership.due_at - self._clock.monotonic()
            if wait_s > 0:
                self._condition.wait(wait_s)
                return False
            if not membership.topics and membership.state is MembershipState.JOINING:  # nothing to join for yet
                self._condition.wait()
                return False
            fields = membership.heartbeat()
        try:
            with self._routing.limit.within(_ATTEMPT_MS):
                answer = self._ask(fields)
        except (LinkError, TimedOutError, RetriableError) as error:
            self._unanswered(error)
        except BrokerError as error:
            self._fail(error)
        else:
            with self._condition:
                membership.answered(answer, self._clock.monotonic())
                self._has_joined = True
                self._condition.notify_all()
        return True

    def _ask(self, fields: Any) -> HeartbeatAnswer:
        routing = self._routing
        lowest, highest = HEARTBEAT_VERSIONS
        if not self._has_joined:
            anyone = routing.any_connection()
            if anyone.ranges.get(ApiKey.SHARE_GROUP_HEARTBEAT, (0, -1))[1] < lowest:
                raise unsupported(anyone.where)
        connection = routing.coordinator(GROUP, self._membership.group)
        version = connection.version(ApiKey.SHARE_GROUP_HEARTBEAT, lowest, highest)
        answer = connection.ask(ApiKey.SHARE_GROUP_HEARTBEAT, version, fields)
        heard = heartbeat_answer(answer)
        self._check(heard.error, answer.error_message, connection)
        return heard

    def _check(self, code: int, message: str | None, connection: Connection) -> None:
        """Raises for errors that the membership does not handle."""
        group = self._membership.group
        if code in (0, ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
            return
        if code == ErrorCode.unsupported_version:
            raise switched_off(connection.where)
        if code in (ErrorCode.group_id_not_found, ErrorCode.inconsistent_group_protocol):
            raise BrokerAnswerError(
                f"The group {group!r} is not a share group: use another name, or delete that group first.", code
            )
        reason = (message or "").strip().rstrip(".") or code_name(code)
        self._routing.check_coordinator_answer(code, f"a member of the share group {group!r} ({reason})", GROUP, group)

    def _unanswered(self, error: KafkaClientError) -> None:
        now = self._clock.monotonic()
        self._routing.forget_coordinator(GROUP, self._membership.group)
        with self._condition:
            if not self._has_joined and now - self._started_at >= self._patience_s(error):
                self._give_up(error)
            elif self._membership.state is MembershipState.LEAVING:  # the session's timeout does the rest
                self._give_up(None)
            else:
                self._membership.unanswered(now)

    def _patience_s(self, error: KafkaClientError) -> float:
        """How long (s) to wait for a group that has never answered. An unreachable broker most likely has another
        address."""
        if isinstance(error, UnreachableError):
            return self._config.connect_timeout_ms / 2000
        return self._config.api_timeout_ms / 1000

    def _fail(self, error: BrokerError) -> None:
        with self._condition:
            self._give_up(error)

    def _give_up(self, error: BrokerError | None) -> None:
        self._membership.give_up()
        self.failure = error
        self._condition.notify_all()

    def _crashed(self, error: BaseException) -> None:
        """Report a bug of the client: users get it from their next call."""
        failure = BrokerError(f"The share consumer's heartbeats have ended: {error!r}.")
        failure.__cause__ = error
        self._fail(failure)
