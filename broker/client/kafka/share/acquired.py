"""The states of all records that brokers have locked for this consumer. Pure; the caller holds the consumer's lock.

An answer to ShareFetch names ranges of offsets that were acquired together. An ``AcquiredRange`` has a byte for the
state of each offset of a range, so that a batch of records is accepted, sent and settled by a few operations on bytes.
``Holdings`` has all ranges that one broker has locked, by partition. ``TABLE`` has the states.

LOSE makes every state except the SENT states SETTLED: the lock is over, or the broker has delivered the record to this
consumer again.

An offset without a record (a control record, or a record that compaction has removed) begins as PENDING_GAP, any other
as BUFFERED. An event that changes nothing or is not in the table has no effect, except that the user is told of a late
ACCEPT, RELEASE or REJECT (``decide`` returns False). An acknowledgement is settled by any answer, because the broker
would refuse it again if it refused it once; the answer says whether it counted. A renewal changes no state: the record
stays with the consumer.
"""

import re
from collections.abc import Callable, Collection, Iterator
from enum import IntEnum
from math import inf
from uuid import UUID

import attrs

from broker.transitions import Transitions

TopicIdPartition = tuple[UUID, int]
# First and last offset (inclusive) and their types: a single type for all, or a type for each.
AcknowledgementBatch = tuple[int, int, bytes]

GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4


class RecordState(IntEnum):
    """The states as bytes. The low bits of a decided record's state are the protocol's number for the decision."""

    PENDING_GAP = GAP
    PENDING_ACCEPT = ACCEPT
    PENDING_RELEASE = RELEASE
    PENDING_REJECT = REJECT
    SENT_GAP = 0x10 | GAP
    SENT_ACCEPT = 0x10 | ACCEPT
    SENT_RELEASE = 0x10 | RELEASE
    SENT_REJECT = 0x10 | REJECT
    BUFFERED = 0x20
    DELIVERED = 0x21
    SETTLED = 0x30


class RecordEvent(IntEnum):
    DELIVER = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    SEND = 4
    SETTLE = 5
    LOSE = 6


_S, _E = RecordState, RecordEvent

TABLE = Transitions(
    RecordState,
    RecordEvent,
    """
    BUFFERED         DELIVER  DELIVERED
    BUFFERED         RELEASE  PENDING_RELEASE
    DELIVERED        ACCEPT   PENDING_ACCEPT
    DELIVERED        RELEASE  PENDING_RELEASE
    DELIVERED        REJECT   PENDING_REJECT
    PENDING_ACCEPT   ACCEPT   PENDING_ACCEPT
    PENDING_ACCEPT   RELEASE  PENDING_RELEASE
    PENDING_ACCEPT   REJECT   PENDING_REJECT
    PENDING_RELEASE  ACCEPT   PENDING_ACCEPT
    PENDING_RELEASE  RELEASE  PENDING_RELEASE
    PENDING_RELEASE  REJECT   PENDING_REJECT
    PENDING_REJECT   ACCEPT   PENDING_ACCEPT
    PENDING_REJECT   RELEASE  PENDING_RELEASE
    PENDING_REJECT   REJECT   PENDING_REJECT
    PENDING_GAP      SEND     SENT_GAP
    PENDING_ACCEPT   SEND     SENT_ACCEPT
    PENDING_RELEASE  SEND     SENT_RELEASE
    PENDING_REJECT   SEND     SENT_REJECT
    SENT_GAP         SETTLE   SETTLED
    SENT_ACCEPT      SETTLE   SETTLED
    SENT_RELEASE     SETTLE   SETTLED
    SENT_REJECT      SETTLE   SETTLED
    BUFFERED         LOSE     SETTLED
    DELIVERED        LOSE     SETTLED
    PENDING_GAP      LOSE     SETTLED
    PENDING_ACCEPT   LOSE     SETTLED
    PENDING_RELEASE  LOSE     SETTLED
    PENDING_REJECT   LOSE     SETTLED
    """,
)

BUFFERED, _DELIVERED, _SETTLED = int(_S.BUFFERED), int(_S.DELIVERED), int(_S.SETTLED)
_MAY_DECIDE = frozenset(int(state) for state, event in TABLE if event is _E.ACCEPT)
_PENDING = re.compile(b"[%c-%c]+" % (GAP, REJECT))
_SENT = re.compile(b"[%c-%c]+" % (_S.SENT_GAP, _S.SENT_REJECT))
_HELD = re.compile(b"[%c%c]+" % (BUFFERED, _DELIVERED))


def _translation(event: RecordEvent) -> bytes:
    table = bytearray(range(256))
    for (state, on), after in TABLE.items():
        if on is event:
            table[state] = after
    return bytes(table)


def _only(*states: RecordState) -> bytes:
    """The translation for an event of these states only."""
    table = bytearray(range(256))
    for state in states:
        table[state] = _S.PENDING_ACCEPT
    return bytes(table)


_DELIVERED_TO_ACCEPT = _only(_S.DELIVERED)
_SEND, _SETTLE, _LOSE = _translation(_E.SEND), _translation(_E.SETTLE), _translation(_E.LOSE)
_RELEASE_HELD = bytes.maketrans(bytes([BUFFERED, _DELIVERED]), bytes([RELEASE, RELEASE]))


class AcquiredRange:
    """``first`` to ``last`` (inclusive) of one partition. ``expires_at`` (monotonic, s): the end of the lock."""

    __slots__ = ("delivery_count", "expires_at", "first", "last", "partition", "renew_asked", "states", "topic")

    def __init__(
        self, topic: str, partition: TopicIdPartition, first: int, last: int, delivery_count: int, expires_at: float
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.first = first
        self.last = last
        self.delivery_count = delivery_count
        self.expires_at = expires_at
        self.states = bytearray(last - first + 1)  # gaps until `received` marks a record
        self.renew_asked: set[int] = set()

    def received(self, offset: int) -> None:
        """The record at ``offset`` exists."""
        self.states[offset - self.first] = BUFFERED

    def deliver(self, offset: int) -> bool:
        """Hand the record to the user. False if it was released meanwhile."""
        index = offset - self.first
        if self.states[index] != BUFFERED:
            return False
        self.states[index] = _DELIVERED
        return True

    def decide(self, offset: int, decision: int) -> bool:
        """ACCEPT, RELEASE or REJECT. False if it is too late: the decision has been sent already, or the lock is
        lost."""
        index = offset - self.first
        if self.states[index] not in _MAY_DECIDE:
            return False
        self.states[index] = decision
        return True

    def accept_if_delivered(self, offset: int) -> None:
        """Accept the record unless the user has decided about it."""
        if self.states[offset - self.first] == _DELIVERED:
            self.states[offset - self.first] = ACCEPT

    def accept_delivered(self) -> None:
        """Accept all delivered records without a decision."""
        self.states = self.states.translate(_DELIVERED_TO_ACCEPT)

    def release_held(self) -> None:
        """Release all records that are buffered, or delivered and undecided."""
        self.states = self.states.translate(_RELEASE_HELD)

    def release_all(self) -> None:
        """Release all records, because they cannot be read; another try may succeed."""
        self.states = bytearray([RELEASE]) * len(self.states)

    def ask_renewal(self, offset: int) -> bool:
        """False if the user no longer has the record."""
        if self.states[offset - self.first] != _DELIVERED:
            return False
        self.renew_asked.add(offset)
        return True

    # To the broker and back -----------------------------------------------------------------------------------------

    def send(self) -> list[AcknowledgementBatch]:
        """The decisions that have not been sent. They count as sent from now on."""
        batches = [
            (self.first + run.start(), self.first + run.end() - 1, _packed(run.group()))
            for run in _PENDING.finditer(self.states)
        ]
        if batches:
            self.states = self.states.translate(_SEND)
        return batches

    def settle(self) -> list[AcknowledgementBatch]:
        """The broker has answered the sent decisions, or never will. Returns them."""
        batches = [
            (self.first + run.start(), self.first + run.end() - 1, _packed(bytes(byte & 0x0F for byte in run.group())))
            for run in _SENT.finditer(self.states)
        ]
        if batches:
            self.states = self.states.translate(_SETTLE)
        return batches

    def renewals(self, everything: bool) -> list[AcknowledgementBatch]:
        """The renewals that the user has requested, or those of all held records."""
        asked, self.renew_asked = self.renew_asked, set()
        if everything:
            return [
                (self.first + run.start(), self.first + run.end() - 1, bytes([RENEW]))
                for run in _HELD.finditer(self.states)
            ]
        return [(offset, offset, bytes([RENEW])) for offset in sorted(asked) if self.holds(offset)]

    def lose(self, first: int, last: int) -> None:
        """The locks of these offsets are over: forget decisions that have not been sent."""
        start, stop = max(0, first - self.first), min(len(self.states), last + 1 - self.first)
        if start < stop:
            self.states[start:stop] = self.states[start:stop].translate(_LOSE)

    # Questions ------------------------------------------------------------------------------------------------------

    def holds(self, offset: int) -> bool:
        return self.states[offset - self.first] in (BUFFERED, _DELIVERED)

    @property
    def has_pending(self) -> bool:
        return _PENDING.search(self.states) is not None

    @property
    def has_held(self) -> bool:
        """Whether any record is buffered, or delivered and undecided."""
        return BUFFERED in self.states or _DELIVERED in self.states

    @property
    def is_settled(self) -> bool:
        return self.states.count(_SETTLED) == len(self.states)

    def state(self, offset: int) -> RecordState:
        return RecordState(self.states[offset - self.first])

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))


def _packed(types: bytes) -> bytes:
    """A single type if all are the same, as the protocol allows: most batches then need one byte."""
    return types[:1] if types.count(types[0]) == len(types) else bytes(types)


Acknowledgements = dict[TopicIdPartition, list[AcknowledgementBatch]]


@attrs.frozen
class Settled:
    """The outcome of the acknowledgements of one partition in one request. ``error``: Kafka's code, 0 if they count."""

    topic: str
    partition: int
    batches: tuple[AcknowledgementBatch, ...]
    error: int


class Holdings:
    """``lock_s``: the duration of a lock as the broker last stated it, 0 if it did not."""

    __slots__ = ("_ranges", "lock_s")

    def __init__(self) -> None:
        self._ranges: dict[TopicIdPartition, list[AcquiredRange]] = {}
        self.lock_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, ranges: Collection[AcquiredRange]) -> None:
        """Add new locks. A record that was held before has been delivered again, because its lock was over."""
        for acquired in ranges:
            known = self._ranges.setdefault(acquired.partition, [])
            for earlier in known:
                earlier.lose(acquired.first, acquired.last)
            known.append(acquired)

    def partitions_with_pending(self) -> list[TopicIdPartition]:
        """The partitions with decisions that have not been sent."""
        return [
            partition for partition, ranges in self._ranges.items() if any(acquired.has_pending for acquired in ranges)
        ]

    def send(self, partitions: Collection[TopicIdPartition] | None = None) -> Acknowledgements:
        """The unsent decisions of these partitions, or of all. They count as sent from now on."""
        sent: Acknowledgements = {}
        for partition, ranges in self._ranges.items():
            if partitions is None or partition in partitions:
                batches = [batch for acquired in ranges for batch in acquired.send()]
                if batches:
                    sent[partition] = sorted(batches)
        return sent

    def settle(self, error_of: Callable[[TopicIdPartition], int]) -> list[Settled]:
        """The broker has answered for all sent decisions, or never will."""
        settled = []
        for partition, ranges in list(self._ranges.items()):
            batches = tuple(batch for acquired in ranges for batch in acquired.settle())
            if batches:
                settled.append(Settled(ranges[0].topic, partition[1], batches, error_of(partition)))
            self._keep(partition, [acquired for acquired in ranges if not acquired.is_settled])
        return settled

    def renewals(self, now: float, automatic: bool) -> Acknowledgements:
        """The renewals that the user has requested, and with ``automatic`` those of locks after half of their time."""
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
        """Record that the broker has renewed these locks."""
        for partition, batches in renewals.items():
            for acquired in self._ranges.get(partition, ()):
                if any(first <= acquired.last and last >= acquired.first for first, last, _ in batches):
                    acquired.expires_at = until

    def next_renewal_at(self) -> float:
        """The time (monotonic, s) at which half of the first held record's lock is over."""
        held = [acquired.expires_at for ranges in self._ranges.values() for acquired in ranges if acquired.has_held]
        return min(held, default=inf) - self.lock_s / 2

    def expire(self, now: float) -> None:
        """Forget locks that have been over for as long as they lasted: a decision about these records would come too
        late."""
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
        """The number of offsets that are not settled."""
        return sum(len(acquired.states) for ranges in self._ranges.values() for acquired in ranges)

    def _keep(self, partition: TopicIdPartition, ranges: list[AcquiredRange]) -> None:
        if ranges:
            self._ranges[partition] = ranges
        else:
            self._ranges.pop(partition, None)
