"""How long a call may take, and how it tries again: with growing pauses, until a total time is over.

A broker that is stopped, or whose machine has lost power, sends no answer and closes no connection. So the time of a call bounds
each wait inside it: for a connection, for an answer, for a pause. The ``Limit`` of a ``Routing`` holds that time, and all its
connections obey it.

Tests: tests/client/kafka/test_retry.py, tests/client/kafka/test_silent_broker.py.
"""

from math import inf
from types import TracebackType

from broker.client.kafka.config import ClientConfig
from broker.client.kafka.errors import KafkaClientError
from broker.runtime.clock import Clock
from broker.runtime.dial import pause

# An attempt with less time than this could only time out, and its error would hide the previous one.
_ATTEMPT_S = 0.01


class Limit:
    """``deadline``: the time (monotonic, s) at which the running call must end. Used by one thread, like its ``Routing``."""

    __slots__ = ("_clock", "deadline")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.deadline = inf

    def within(self, total_ms: float) -> "_Until":
        """A context manager that bounds the calls in its block to this time. A nested block cannot extend the outer one."""
        return self.until(self._clock.monotonic() + total_ms / 1000)

    def until(self, deadline: float) -> "_Until":
        return _Until(self, deadline)


class _Until:
    __slots__ = ("_deadline", "_limit", "_outer_deadline")

    def __init__(self, limit: Limit, deadline: float) -> None:
        self._limit, self._deadline = limit, deadline

    def __enter__(self) -> None:
        limit = self._limit
        self._outer_deadline = limit.deadline
        limit.deadline = min(self._outer_deadline, self._deadline)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limit.deadline = self._outer_deadline


class Retry:
    """Call ``again`` after each failure: it pauses, or raises the failure if no time is left.

    The end of the time may also cut an attempt off, whose failure then only says so. If that attempt had less time than all
    before it, the failure before it is raised instead, because it says more.
    """

    def __init__(self, config: ClientConfig, clock: Clock, total_ms: float, limit: Limit) -> None:
        self._config = config
        self._clock = clock
        self._began = self._attempt_began = clock.monotonic()
        self.deadline = min(self._began + total_ms / 1000, limit.deadline)
        self._previous: KafkaClientError | None = None
        self._pause_s = config.retry_backoff_ms / 1000
        self.unknown_topic_answers = 0

    def begin_another(self) -> None:
        """The call has succeeded, and the time that is left is for another one."""
        self._previous = None
        self.unknown_topic_answers = 0

    def again(self, failure: KafkaClientError) -> None:
        left_s = self._left_s(failure)
        pause(min(self._pause_s, left_s / 2))  # the other half is for the attempt
        self._previous = failure
        self._left_s(failure)  # the pause may have taken longer, on a busy machine
        self._attempt_began = self._clock.monotonic()
        self._pause_s = min(max(self._pause_s * 2, 0.001), self._config.retry_backoff_max_ms / 1000)

    def _left_s(self, failure: KafkaClientError) -> float:
        """The time left (s). Raises the failure if it is too short for another attempt."""
        now = self._clock.monotonic()
        left_s = self.deadline - now
        if left_s > _ATTEMPT_S:
            return left_s
        had_less_time = now - self._attempt_began < self._attempt_began - self._began
        if left_s <= 0 and had_less_time and self._previous is not None:
            raise self._previous
        raise failure

    def shorten(self, total_ms: float) -> None:
        """Give up ``total_ms`` from now, if that is earlier than before."""
        self.deadline = min(self.deadline, self._clock.monotonic() + total_ms / 1000)
