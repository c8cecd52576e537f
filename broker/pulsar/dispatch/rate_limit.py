"""Limits of the messages and bytes that a dispatcher may send now: of the broker, the topic and the subscription.

Each limit is a token bucket that fills at its rate, up to the amount of one period (``broker/runtime/limits.py``). Messages and
bytes are taken out after sending, even if the bucket has fewer, because the size of a read is not known before. The debt is
carried, so in the long run the rate is kept, however large a batch is.

Limits of the broker and of a topic are shared by many subscriptions and may be used and changed from any thread. Two
subscriptions that ask at the same time may both use the same tokens; the second's debt is carried as well.

Without a limit, a dispatcher asks ``limited`` and nothing else.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from broker.runtime.limits import TokenBucket

# The available messages or bytes without a limit: more than any read returns.
UNLIMITED: Final = 1 << 31
# After this long (s) a dispatcher looks again, even if the debt lasts longer: the limit may have been changed meanwhile.
# Pulsar's dispatchers wait that long each time.
LOOK_AGAIN_S: Final = 1.0


# For threads that still use a rate whose limit was just removed. Has no effect.
_NO_BUCKET: Final = TokenBucket(1.0)


class DispatchRate:
    """A limit of ``messages`` messages and ``size`` bytes in ``period_s`` seconds. 0 or less: no limit."""

    __slots__ = ("__weakref__", "_bytes", "_messages", "_set_to", "bytes_per_s", "limited", "messages_per_s")

    def __init__(self, messages: float = 0, size: float = 0, period_s: float = 1.0) -> None:
        self.set(messages, size, period_s)

    def set(self, messages: float, size: float = 0, period_s: float = 1.0) -> None:
        """Change the rate. Debts are forgotten."""
        self._set_to = (messages, size, period_s)
        messages_per_s = messages / period_s if messages > 0 else 0.0
        bytes_per_s = size / period_s if size > 0 else 0.0
        # A bucket holds at least one message, however low the rate is. Without a limit no buckets are made: every subscription
        # has two rates, whose buckets take 600 bytes.
        self._messages = self._bytes = _NO_BUCKET
        if messages_per_s or bytes_per_s:
            self._messages = TokenBucket(max(period_s, 1.001 / (messages_per_s or 1)))
            self._bytes = TokenBucket(max(period_s, 1.001 / (bytes_per_s or 1)))
        self.messages_per_s, self.bytes_per_s = messages_per_s, bytes_per_s
        self.limited = messages > 0 or size > 0

    def is_set_to(self, messages: float, size: float, period_s: float) -> bool:
        return self._set_to == (messages, size, period_s)

    def available(self, now: float) -> tuple[float, float]:
        """Messages and bytes; fewer than 1 while there is a debt."""
        # Both rates may become 0 at any time.
        of_messages, of_bytes = self.messages_per_s, self.bytes_per_s
        messages = self._messages.tokens(of_messages, now) if of_messages else inf
        return messages, self._bytes.tokens(of_bytes, now) if of_bytes else inf

    def consumed(self, messages: int, size: int, now: float) -> None:
        of_messages, of_bytes = self.messages_per_s, self.bytes_per_s
        if of_messages:
            self._messages.take(messages, of_messages, now)
        if of_bytes:
            self._bytes.take(size, of_bytes, now)

    def wait_s(self, now: float) -> float:
        """The time until a message and a byte are available again."""
        messages, size = self.available(now)
        of_messages = (1 - messages) / (self.messages_per_s or inf)
        return max(0.0, of_messages, (1 - size) / (self.bytes_per_s or inf))


class RateLimit:
    """All limits of a subscription, the broker's first."""

    __slots__ = ("_rates",)

    def __init__(self, rates: Sequence[DispatchRate] = ()) -> None:
        self._rates = tuple(rates)

    @property
    def limited(self) -> bool:
        # A loop takes a third of the time of any(), and this is called for each read and each delivery.
        for rate in self._rates:  # noqa: SIM110
            if rate.limited:
                return True
        return False

    def available(self, now: float) -> tuple[int, int]:
        """The messages and bytes that may be sent at this time (monotonic, s). Read nothing if either is 0."""
        messages = size = float(UNLIMITED)
        for rate in self._rates:
            if rate.limited:
                of_messages, of_bytes = rate.available(now)
                messages, size = min(messages, of_messages), min(size, of_bytes)
        return max(0, int(messages)), max(0, int(size))

    def consumed(self, messages: int, size: int, now: float) -> None:
        """Record that these were sent."""
        for rate in self._rates:
            if rate.limited:
                rate.consumed(messages, size, now)

    def next_at(self, now: float) -> float:
        """The time to look again if nothing is available: after ``now``, by at most LOOK_AGAIN_S."""
        wait_s = max((rate.wait_s(now) for rate in self._rates if rate.limited), default=0.0)
        # A millisecond more: imprecision must not leave less than a whole message.
        return now + min(wait_s + 0.001, LOOK_AGAIN_S)
