"""What the dispatchers of several consumers ask of the delayed tracker and of the rate limiter: both pure, and made
elsewhere.

Tests: tests/pulsar/dispatch/test_shared.py.
"""

from collections.abc import Sequence
from typing import Protocol

from broker.pulsar.dispatch.dispatcher import Now


class Delayed(Protocol):
    """The entries that are to be delivered later (``delayed.py``)."""

    def __len__(self) -> int: ...

    def add(self, deliver_at_ms: int, offset: int, now: Now) -> bool:
        """Keep the offset until then. False: it is due, and is not kept."""

    def due(self, now: Now, most: int) -> Sequence[int]:
        """At most so many offsets that are due, which are kept no longer."""

    def next_at(self) -> float | None:
        """When the next will be due, in ms of the wall clock. None: there is none."""

    def clear(self) -> None: ...


class Limiter(Protocol):
    """The dispatch rates of the subscription, the topic and the broker together (``rate_limit.py``)."""

    def available(self, now: Now) -> tuple[int, int]:
        """How many messages and bytes may be read now; nothing, or less, if the limit is reached."""

    def consumed(self, messages: int, size: int) -> None:
        """So much was sent. It may be more than was available; that is made up for later."""
