"""The arithmetic of quotas: a bucket of tokens. Pure: the caller passes the time (s), which never goes back.

Tokens flow in at the rate of the quota, up to what the quota allows in ``ahead_s`` seconds, which a client may use at once. They
may be taken while there are any, and more than there are: the bucket is in debt then, and the client is throttled for as long as
it takes until the debt is paid. That is Kafka's (rate - quota) / quota * time, where the time is all the time there was: a client
that always has something to send gets its quota, whatever it does in between.

Kafka itself computes the rate of bytes and request time over 10 to 11 windows and forgets them one by one. So a client may use
the quota of 10 s at once, and again when that is forgotten: in periods of 10 s it gets between 10 % and 140 % of its quota.
Kafka's token buckets (KIP-599) and these do not.
"""

from math import inf


class TokenBucket:
    """A new one is full. ``debt_s``: a debt that takes longer to pay (s) is forgotten."""

    __slots__ = ("_ahead_s", "_debt_s", "_filled_at", "_quota", "_tokens")

    def __init__(self, ahead_s: float, debt_s: float = inf) -> None:
        self._ahead_s = ahead_s
        self._debt_s = debt_s
        self._tokens = 0.0
        self._filled_at = -inf
        self._quota = 0.0  # that of the last call

    def tokens(self, quota: float, now: float) -> float:
        """How many there are; fewer than 0 is a debt. ``quota``: tokens per second; it may change from call to call."""
        tokens = self._tokens + quota * (now - self._filled_at)
        most = quota * self._ahead_s
        self._tokens = tokens = tokens if tokens < most else most
        self._filled_at = now
        self._quota = quota
        return tokens

    def take(self, count: float, quota: float, now: float) -> float:
        """Take them, whether they are there or not. How long (s) it takes until a debt is paid."""
        self._tokens = tokens = self.tokens(quota, now) - count
        if tokens >= 0:
            return 0.0
        if tokens < -self._debt_s * quota:
            self._tokens = tokens = -self._debt_s * quota
        return -tokens / quota

    def take_unless_in_debt(self, count: float, quota: float, now: float) -> float:
        """Take them if there is no debt, even if there are fewer: 0. Otherwise how long it takes until the debt is paid."""
        tokens = self.tokens(quota, now)
        if tokens < 0:
            return -tokens / quota
        self.take(count, quota, now)
        return 0.0

    def throttle_s(self, quota: float, now: float) -> float:
        """How long it takes until the debt is paid."""
        tokens = self.tokens(quota, now)
        return 0.0 if tokens >= 0 else -tokens / quota

    def idle(self, now: float) -> bool:
        """It is full, as a new one is."""
        return not self._quota or self.tokens(self._quota, now) >= self._quota * self._ahead_s
