"""What is delivered unasked counts for its client's ``consumer_byte_rate``, which is the quota of Kafka's Fetch, too: messages of
Pulsar's consumers, and buffers of the shuffle service's readers.

What is delivered counts when it is sent. A receiver whose client is in debt then gets nothing more until the debt is paid; it
looks again each second, because the quota may have been changed. Other receivers of the same client learn of the debt with their
next delivery.

Any thread; nothing here waits.

Tests: tests/pulsar/subscriptions/test_consumer.py, tests/shuffle/test_quotas.py.
"""

from collections.abc import Callable

from broker.runtime.clock import Clock
from broker.runtime.timers import Timer
from broker.security.quotas.client_quotas import ClientQuotas
from broker.security.quotas.entities import Kind

_LOOK_AGAIN_S = 1.0


class DeliveryQuota:
    def __init__(self, quotas: ClientQuotas, clock: Clock, timer: Timer) -> None:
        self._quotas = quotas
        self._clock = clock
        self._timer = timer

    def delivered(self, user: str, size: int) -> bool:
        """Count it. Whether the client is in debt now."""
        quotas = self._quotas
        return quotas.limits(Kind.FETCH) and quotas.take(Kind.FETCH, user, size, self._clock.monotonic()) > 0

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
