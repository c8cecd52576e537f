"""Keeps the consumer a member of its group, on a thread of its own, so that users may take their time with a record.

``membership.py`` decides what to send and when; this asks the group's coordinator, over connections of its own. The consumer
learns of assignments, and of the error that ended its membership, through the condition that both wait on.

Tests: tests/client/kafka/share/test_other_brokers.py.
"""

from typing import Any

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
from broker.client.kafka.share import requests
from broker.client.kafka.share.membership import HeartbeatAnswer, Membership, MembershipState
from broker.client.kafka.share.record import switched_off, unsupported
from broker.errors import BrokerError
from broker.runtime.clock import Clock
from broker.runtime.threads import Condition, SystemThreads, ThreadHandle
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

# One heartbeat, with finding the coordinator and connecting to it. Several fit into a session's time-out (45 s by default).
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
        """Leave the group, and end the thread. False if that took too long; the thread then ends by itself."""
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
        lowest, highest = requests.HEARTBEAT_VERSIONS
        if not self._has_joined:
            anyone = routing.any_connection()
            if anyone.ranges.get(ApiKey.SHARE_GROUP_HEARTBEAT, (0, -1))[1] < lowest:
                raise unsupported(anyone.where)
        connection = routing.coordinator(GROUP, self._membership.group)
        version = connection.version(ApiKey.SHARE_GROUP_HEARTBEAT, lowest, highest)
        answer = connection.ask(ApiKey.SHARE_GROUP_HEARTBEAT, version, fields)
        heard = requests.heartbeat_answer(answer)
        self._check(heard.error, answer.error_message, connection)
        return heard

    def _check(self, code: int, message: str | None, connection: Connection) -> None:
        """Raises for errors that the membership knows no cure for."""
        group = self._membership.group
        if code in (0, ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
            return
        if code == ErrorCode.unsupported_version:
            raise switched_off(connection.where)
        if code in (ErrorCode.group_id_not_found, ErrorCode.inconsistent_group_protocol):
            raise BrokerAnswerError(
                f"The group {group!r} is not a share group: use another name, or delete that group first.", code
            )
        said = (message or "").strip().rstrip(".") or code_name(code)
        self._routing.check_coordinator_answer(code, f"a member of the share group {group!r} ({said})", GROUP, group)

    def _unanswered(self, error: KafkaClientError) -> None:
        now = self._clock.monotonic()
        self._routing.forget_coordinator(GROUP, self._membership.group)
        with self._condition:
            if not self._has_joined and now - self._started_at >= self._patience_s(error):
                self._give_up(error)
            elif self._membership.state is MembershipState.LEAVING:  # the session's time-out does the rest
                self._give_up(None)
            else:
                self._membership.unanswered(now)

    def _patience_s(self, error: KafkaClientError) -> float:
        """How long to wait for a group that never answered. A broker that is not there has most likely another address."""
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
        """A bug of ours: users hear of it with their next call."""
        failure = BrokerError(f"The share consumer's heartbeats have ended: {error!r}.")
        failure.__cause__ = error
        self._fail(failure)
