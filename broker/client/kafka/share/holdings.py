"""All that one broker has locked for this consumer, partition by partition. Pure; the caller holds the consumer's lock."""

from collections.abc import Callable, Collection
from math import inf

import attrs

from broker.client.kafka.share.acquired import AcknowledgementBatch, AcquiredRange, TopicIdPartition

Acknowledgements = dict[TopicIdPartition, list[AcknowledgementBatch]]


@attrs.frozen
class Settled:
    """What became of the acknowledgements of one partition in one request. ``error``: Kafka's code, 0 if they count."""

    topic: str
    partition: int
    batches: tuple[AcknowledgementBatch, ...]
    error: int


class Holdings:
    """``lock_s``: how long a lock lasts, as the broker last said; 0 if it did not."""

    __slots__ = ("_ranges", "lock_s")

    def __init__(self) -> None:
        self._ranges: dict[TopicIdPartition, list[AcquiredRange]] = {}
        self.lock_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, ranges: Collection[AcquiredRange]) -> None:
        """New locks. A record that was held before has been given to us again, because its lock was over."""
        for acquired in ranges:
            known = self._ranges.setdefault(acquired.partition, [])
            for earlier in known:
                earlier.lose(acquired.first, acquired.last)
            known.append(acquired)

    def partitions_with_pending(self) -> list[TopicIdPartition]:
        """Those with decisions that have not been sent."""
        return [
            partition for partition, ranges in self._ranges.items() if any(acquired.has_pending for acquired in ranges)
        ]

    def send(self, partitions: Collection[TopicIdPartition] | None = None) -> Acknowledgements:
        """The decisions to send, of these partitions or of all. They count as sent from now on."""
        sent: Acknowledgements = {}
        for partition, ranges in self._ranges.items():
            if partitions is None or partition in partitions:
                batches = [batch for acquired in ranges for batch in acquired.send()]
                if batches:
                    sent[partition] = sorted(batches)
        return sent

    def settle(self, error_of: Callable[[TopicIdPartition], int]) -> list[Settled]:
        """The broker has answered for everything that was sent, or never will."""
        settled = []
        for partition, ranges in list(self._ranges.items()):
            batches = tuple(batch for acquired in ranges for batch in acquired.settle())
            if batches:
                settled.append(Settled(ranges[0].topic, partition[1], batches, error_of(partition)))
            self._keep(partition, [acquired for acquired in ranges if not acquired.is_settled])
        return settled

    def renewals(self, now: float, automatic: bool) -> Acknowledgements:
        """The renewals that the user has asked for, and with ``automatic`` those of locks of which half the time is over."""
        asked: Acknowledgements = {}
        for partition, ranges in self._ranges.items():
            batches = [
                batch
                for acquired in ranges
                for batch in acquired.renewals(automatic and now >= acquired.expires_at - self.lock_s / 2)
            ]
            if batches:
                asked[partition] = sorted(batches)
        return asked

    def renewed(self, renewals: Acknowledgements, until: float) -> None:
        """The broker has renewed these locks."""
        for partition, batches in renewals.items():
            for acquired in self._ranges.get(partition, ()):
                if any(first <= acquired.last and last >= acquired.first for first, last, _ in batches):
                    acquired.expires_at = until

    def next_renewal_at(self) -> float:
        """When half of a lock's time is over for the first record that is held (monotonic, s)."""
        held = [acquired.expires_at for ranges in self._ranges.values() for acquired in ranges if acquired.has_held]
        return min(held, default=inf) - self.lock_s / 2

    def expire(self, now: float) -> None:
        """Forget locks that have been over for as long as they lasted: nobody will decide about these records in time."""
        for partition, ranges in list(self._ranges.items()):
            for acquired in ranges:
                if now >= acquired.expires_at + self.lock_s:
                    acquired.lose(acquired.first, acquired.last)
            self._keep(partition, [acquired for acquired in ranges if not acquired.is_settled])

    def accept_delivered(self) -> None:
        for ranges in self._ranges.values():
            for acquired in ranges:
                acquired.accept_delivered()

    def release_held(self) -> None:
        for ranges in self._ranges.values():
            for acquired in ranges:
                acquired.release_held()

    def count(self) -> int:
        """The offsets that are not settled."""
        return sum(len(acquired.states) for ranges in self._ranges.values() for acquired in ranges)

    def _keep(self, partition: TopicIdPartition, ranges: list[AcquiredRange]) -> None:
        if ranges:
            self._ranges[partition] = ranges
        else:
            self._ranges.pop(partition, None)
