"""How many connections there may be: in all, per address, and new ones per second.

Asked by the acceptors, told by the processors; one lock. Settings may change while running (``configure``).
"""

from collections import Counter

from broker.runtime.threads import Lock


class ConnectionQuotas:
    def __init__(
        self,
        max_connections: int,
        max_per_address: int,
        per_address_overrides: dict[str, int],
        max_per_second: float,
    ) -> None:
        """Counts are inclusive bounds; ``max_per_second`` 0 = no limit."""
        self._lock = Lock()
        self._per_address: Counter[str] = Counter()
        self._total = 0
        self._tokens = max(1.0, max_per_second)
        self._refilled_at = 0.0
        self.configure(max_connections, max_per_address, per_address_overrides, max_per_second)

    def configure(
        self, max_connections: int, max_per_address: int, per_address_overrides: dict[str, int], max_per_second: float
    ) -> None:
        self.max_connections = max_connections
        self.max_per_address = max_per_address
        self.per_address_overrides = per_address_overrides
        self.max_per_second = max_per_second

    @property
    def total(self) -> int:
        return self._total

    @property
    def full(self) -> bool:
        """No further connection may be accepted until one closes."""
        return self._total >= self.max_connections

    @property
    def excess(self) -> int:
        """Connections too many (the limit was lowered)."""
        return max(0, self._total - self.max_connections)

    def delay(self, now: float) -> float:
        """Seconds to wait before the next connection may be accepted; 0 takes one from this second's allowance."""
        rate = self.max_per_second
        if rate <= 0:
            return 0.0
        with self._lock:
            self._tokens = min(max(1.0, rate), self._tokens + (now - self._refilled_at) * rate)
            self._refilled_at = now
            if self._tokens >= 1.0:
                self._tokens -= 1.0
                return 0.0
            return (1.0 - self._tokens) / rate

    def refund(self) -> None:
        """The connection that ``delay`` allowed did not come."""
        with self._lock:
            self._tokens += 1.0

    def open(self, address: str) -> bool:
        """Count a connection in; False (and not counted) if its address has as many as it may."""
        with self._lock:
            limit = self.per_address_overrides.get(address, self.max_per_address)
            if self._per_address[address] >= limit:
                return False
            self._per_address[address] += 1
            self._total += 1
            return True

    def close(self, address: str) -> None:
        """Count a connection out."""
        with self._lock:
            self._close(address)

    def evict(self, address: str) -> bool:
        """If there are too many connections, count this one out and have the caller close it.

        Looking and counting are one: several processors that look at once do not close more than are too many.
        """
        with self._lock:
            if self._total <= self.max_connections:
                return False
            self._close(address)
            return True

    def _close(self, address: str) -> None:
        self._total -= 1
        self._per_address[address] -= 1
        assert self._per_address[address] >= 0
        if not self._per_address[address]:
            del self._per_address[address]
