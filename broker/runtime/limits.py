"""Limits: on an amount at a time (``Allowance``), or on a rate (``TokenBucket``). For any thread.

Tokens flow into a bucket at the rate of a quota, up to the quota of ``ahead_s`` seconds, which may be used at once. They may be
taken while there are any, and more than there are: then the bucket is in debt, and its user is throttled until the debt is paid.
That is Kafka's (rate - quota) / quota * time, where the time is the whole time: a client that always has something to send gets
its quota, whatever it does in between. The caller passes the time (s), which never goes back.

Kafka itself computes the rate of bytes and request time over 10 to 11 windows and forgets them one by one. So a client may use
the quota of 10 s at once, and again when that is forgotten: in periods of 10 s it gets between 10 % and 140 % of its quota.
Kafka's token buckets (KIP-599) and these do not.

``TokenBucket.take`` is written out for speed: it runs for every request of a client with a quota.
"""

from math import inf

from broker.runtime.threads import Lock


class Allowance:
    """An amount that all requests share. For any thread."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = Lock()
        self._taken = 0

    @property
    def taken(self) -> int:
        return self._taken

    def take(self, count: int, *, force: bool = False) -> bool:
        """False if that much is not left; then nothing was taken. ``force``: take it in any case."""
        with self._lock:
            if self._taken + count > self.capacity and not force:
                return False
            self._taken += count
            return True

    def give_back(self, count: int) -> None:
        with self._lock:
            self._taken -= count


class TokenBucket:
    """A new bucket is full. ``debt_s``: a debt that takes longer to pay (s) is forgotten."""

    __slots__ = ("_acquire", "_ahead_s", "_debt_s", "_filled_at", "_quota", "_release", "_tokens")

    def __init__(self, ahead_s: float, debt_s: float = inf) -> None:
        lock = Lock()
        self._acquire, self._release = lock.acquire, lock.release  # half as long as a with statement
        self._ahead_s = ahead_s
        self._debt_s = debt_s
        self._tokens = 0.0  # at this time:
        self._filled_at = -inf
        self._quota = 0.0  # that of the last call

    def take(self, count: float, quota: float, now: float) -> float:
        """Take them, whether they are there or not. How long (s) it takes until a debt is paid.

        ``quota``: tokens per second. It may change from call to call.
        """
        self._acquire()
        try:
            tokens = self._tokens + quota * (now - self._filled_at)
            most = quota * self._ahead_s
            if tokens > most:
                tokens = most
            tokens -= count
            self._filled_at = now
            self._quota = quota
            if tokens >= 0:
                self._tokens = tokens
                return 0.0
            debt_s = -tokens / quota
            if debt_s > self._debt_s:
                debt_s = self._debt_s
                tokens = -debt_s * quota
            self._tokens = tokens
            return debt_s
        finally:
            self._release()

    def take_unless_in_debt(self, count: float, quota: float, now: float) -> float:
        """Take ``count`` tokens if there is no debt, even if there are fewer: 0. Otherwise the time until the debt is paid."""
        throttle_s = self.take(0, quota, now)
        if not throttle_s:
            self.take(count, quota, now)
        return throttle_s

    def tokens(self, quota: float, now: float) -> float:
        """The number of tokens; below 0 it is a debt."""
        self.take(0, quota, now)
        return self._tokens

    def idle(self, now: float) -> bool:
        """Whether the bucket is full, like a new bucket."""
        return not self._quota or self.tokens(self._quota, now) >= self._quota * self._ahead_s
