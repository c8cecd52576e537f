"""How long and how often to try again: with growing pauses, until a total time is over."""

from broker.client.kafka.config import ClientConfig
from broker.client.kafka.errors import KafkaClientError
from broker.runtime.clock import Clock
from broker.runtime.dial import pause


class Retry:
    """``again`` after each failure; it pauses, or raises the failure if there is no time left."""

    def __init__(self, config: ClientConfig, clock: Clock, total_ms: float) -> None:
        self._config = config
        self._clock = clock
        self._deadline = clock.monotonic() + total_ms / 1000
        self._pause_s = config.retry_backoff_ms / 1000
        self.missing = 0  # how often the topic was not there

    def again(self, failure: KafkaClientError) -> None:
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            raise failure
        pause(min(self._pause_s, left))
        self._pause_s = min(max(self._pause_s * 2, 0.001), self._config.retry_backoff_max_ms / 1000)

    def shorten(self, total_ms: float) -> None:
        """Give up after this long from now, if that is earlier."""
        self._deadline = min(self._deadline, self._clock.monotonic() + total_ms / 1000)
