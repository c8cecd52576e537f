"""How long a call may take, and how often it tries again: with growing pauses, until a total time is over.

A broker that is stopped, or has lost its power, answers nothing and closes nothing. So a call's time bounds each wait in it,
however deep: for a connection, for an answer, for a pause. The ``Limit`` of a cluster holds it, and all its connections obey.
"""

from math import inf
from types import TracebackType

from broker.client.kafka.config import ClientConfig
from broker.client.kafka.errors import KafkaClientError
from broker.runtime.clock import Clock
from broker.runtime.dial import pause

# An attempt with less time than this could only fail, and its failure would hide the one before.
_ATTEMPT_S = 0.01


class Limit:
    """By when (monotonic, s) the call that is running now has to end. For one thread, like all of a cluster."""

    __slots__ = ("_clock", "deadline")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.deadline = inf

    def within(self, total_ms: float) -> "_Until":
        """``with``: what is in the block ends within this time. A call inside of another one has no more time than that."""
        return self.until(self._clock.monotonic() + total_ms / 1000)

    def until(self, deadline: float) -> "_Until":
        return _Until(self, deadline)


class _Until:
    __slots__ = ("_before", "_deadline", "_limit")

    def __init__(self, limit: Limit, deadline: float) -> None:
        self._limit, self._deadline = limit, deadline

    def __enter__(self) -> None:
        limit = self._limit
        self._before = limit.deadline
        limit.deadline = min(self._before, self._deadline)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limit.deadline = self._before


class Retry:
    """``again`` after each failure; it pauses, or raises the failure if there is no time left."""

    def __init__(self, config: ClientConfig, clock: Clock, total_ms: float, limit: Limit) -> None:
        self._config = config
        self._clock = clock
        self.deadline = min(clock.monotonic() + total_ms / 1000, limit.deadline)
        self._pause_s = config.retry_backoff_ms / 1000
        self.unknown_topic_answers = 0

    def again(self, failure: KafkaClientError) -> None:
        left = self.deadline - self._clock.monotonic()
        if left <= _ATTEMPT_S:
            raise failure
        pause(min(self._pause_s, left / 2))  # the other half is for the attempt
        self._pause_s = min(max(self._pause_s * 2, 0.001), self._config.retry_backoff_max_ms / 1000)

    def shorten(self, total_ms: float) -> None:
        """Give up after this long from now, if that is earlier."""
        self.deadline = min(self.deadline, self._clock.monotonic() + total_ms / 1000)
