"""What consumers use of their clients' ``consumer_byte_rate``, which is the quota of Kafka's Fetch, too.

What is delivered counts when it is sent. A consumer whose client is in debt then gets nothing more until the debt is paid; it
looks again each second, because the quota may have been changed. Other consumers of the same client learn of the debt with their
next delivery.

Any thread; called under a subscription's lock.

Tests: tests/pulsar/subscriptions/test_consumer.py.
"""

from collections.abc import Callable

from broker.runtime.clock import Clock
from broker.runtime.timers import Timer
from broker.security.quotas.client_quotas import ClientQuotas
from broker.security.quotas.entities import Kind

_LOOK_AGAIN_S = 1.0


class ConsumerQuota:
    def __init__(self, quotas: ClientQuotas, clock: Clock, timer: Timer) -> None:
        self._quotas = quotas
        self._clock = clock
        self._timer = timer

    def delivered(self, user: str, size: int) -> bool:
        """Count it. Whether the client is in debt now."""
        quotas = self._quotas
        if not quotas.limits(Kind.FETCH):
            return False
        meter = quotas.meters(user, "").fetch
        if meter is None:
            return False
        throttle_s = meter.take(size, self._clock.monotonic())
        if throttle_s:
            quotas.count_throttle(Kind.FETCH, throttle_s)
        return throttle_s > 0

    def when_to_look(self, user: str, look: Callable[[], None]) -> bool:
        """Have ``look`` called, on the timer's thread, when the debt of the client may be paid. False: there is none."""
        meter = self._quotas.meters(user, "").fetch
        if meter is None:
            return False
        now = self._clock.monotonic()
        throttle_s = meter.throttle_s(now)
        if throttle_s:
            self._timer.at(now + min(throttle_s, _LOOK_AGAIN_S), look)
        return throttle_s > 0
