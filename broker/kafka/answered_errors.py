"""Which errors Kafka's answers have had, by API: for the metrics. Kafka counts the errors of all partitions of an answer, too.

Any thread may count. An error is rare enough for a lock, and a client that asks for errors all day waits for its answers.

Tests: tests/kafka/test_metrics.py.
"""

from collections.abc import Mapping

from broker.metrics import Labels
from broker.runtime.threads import Lock
from protocol.kafka.errors import ErrorCode


class AnsweredErrors:
    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[tuple[str, int], int] = {}

    def add(self, api: str, code: int, count: int = 1) -> None:
        """``api``: Kafka's name of it."""
        with self._lock:
            self._counts[api, code] = self._counts.get((api, code), 0) + count

    def add_all(self, api: str, counts: Mapping[int, int]) -> None:
        for code, count in counts.items():
            self.add(api, code, count)

    def read(self) -> dict[Labels, float]:
        with self._lock:
            counts = self._counts.copy()
        return {(api, _name(code)): float(count) for (api, code), count in counts.items()}


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)
