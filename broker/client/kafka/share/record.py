"""A record as its consumer sees it, and the errors that only share consumers raise.

Tests: tests/client/kafka/share/test_broker_link.py,
tests/client/kafka/share/test_other_brokers.py.
"""

from typing import Any, Protocol

from broker.client.kafka.errors import KafkaClientError, UnsupportedVersionError
from broker.client.kafka.share.acquired import ACCEPT, REJECT, RELEASE, AcquiredRange


class ShareGroupsUnsupportedError(UnsupportedVersionError):
    """The broker has no share groups, or they are switched off."""


class AcknowledgementError(KafkaClientError):
    """Acknowledgements did not count, so the records may be delivered again. ``offsets``: which, by (topic, partition)."""

    offsets: dict[tuple[str, int], list[int]]


def unsupported(where: str) -> ShareGroupsUnsupportedError:
    return ShareGroupsUnsupportedError(
        f"The broker at {where} serves no share groups: that needs Apache Kafka 4.2, or this project's broker."
    )


def switched_off(where: str) -> ShareGroupsUnsupportedError:
    return ShareGroupsUnsupportedError(
        f"The broker at {where} has share groups switched off: an administrator has to set the cluster's feature"
        f" share.version to 1."
    )


class RecordOwner(Protocol):
    """The consumer, as its records see it."""

    def decide(self, record: "ShareRecord", decision: int) -> None: ...

    def ask_renewal(self, record: "ShareRecord") -> None: ...


class ShareRecord:
    """One record, locked for this consumer until it is accepted, released or rejected, or until the lock's time is over.

    ``timestamp`` is in ms, ``headers`` is a list of (name, value). ``delivery_count`` counts all deliveries of the
    record, to any consumer, including this one; the broker gives up the record after some of them (5 by default).
    """

    __slots__ = (
        "_acquired", "_owner", "delivery_count", "headers", "key", "offset", "partition", "timestamp", "topic", "value",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        delivery_count: int,
        acquired: AcquiredRange,
        owner: RecordOwner,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers
        self.delivery_count = delivery_count
        self._acquired = acquired
        self._owner = owner

    # These only note the decision, without waiting: it is sent with the next poll or ``commit``, and may be changed
    # until then.

    def accept(self) -> None:
        """Accept: the record is processed. Raises AcknowledgementError if it is too late."""
        self._owner.decide(self, ACCEPT)

    def release(self) -> None:
        """Have the record delivered again, to any consumer of the group."""
        self._owner.decide(self, RELEASE)

    def reject(self) -> None:
        """Reject the record: it is not delivered again."""
        self._owner.decide(self, REJECT)

    def renew(self) -> None:
        """Restart the lock's time, soon and on another thread. Needs a broker of Kafka 4.2 or later."""
        self._owner.ask_renewal(self)

    @property
    def acquired(self) -> AcquiredRange:
        """The range to which the record belongs; for the consumer."""
        return self._acquired

    def __repr__(self) -> str:
        def short(data: bytes | None) -> Any:
            return data if data is None or len(data) <= 40 else data[:40] + b"..."

        return (
            f"ShareRecord({self.topic}-{self.partition}@{self.offset}, key={short(self.key)!r},"
            f" value={short(self.value)!r}, delivery_count={self.delivery_count})"
        )
