"""How many connections there may be: in all, per address, and new ones per second.

Acceptors ask before they accept, processors report closed connections; one lock. The limits may change at run time
(``configure``).
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
        """How many connections are above the limit (it was lowered)."""
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
        """No connection was accepted after ``delay`` allowed one."""
        with self._lock:
            self._tokens += 1.0

    def open(self, address: str) -> bool:
        """Count a new connection. False, and not counted, if its address has reached its limit."""
        with self._lock:
            limit = self.per_address_overrides.get(address, self.max_per_address)
            if self._per_address[address] >= limit:
                return False
            self._per_address[address] += 1
            self._total += 1
            return True

    def close(self, address: str) -> None:
        """Stop counting a connection."""
        with self._lock:
            self._close(address)

    def evict(self, address: str) -> bool:
        """True if there are too many connections: this one is no longer counted, and the caller closes it.

        The check and the count are one step, so that processors that call this at the same time do not close too many.
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
