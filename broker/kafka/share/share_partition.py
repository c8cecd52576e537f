"""KIP-932's share partition: the states of a partition's records in a share group. Pure.

The caller holds the lock that guards it, reads the log, and stores the state (``share_store.py``). The offsets form three rows:

- before ``start``, the *share-partition start offset*: finished;
- from ``start`` to ``end``: either finished out of order (``broker/delivery/acknowledged.py``), or *in flight*
  (``broker/delivery/in_flight.py``), where ranges of offsets share a state, a holder and a delivery count. Each of these offsets
  is in exactly one of the two tables;
- from ``end`` on: never delivered.

The states of a record are Kafka's. ACKNOWLEDGED and ARCHIVED are indistinguishable later: both are finished.

| state | event | next | durable |
|---|---|---|---|
| NEW | acquire | ACQUIRED | no |
| NEW | absent | ARCHIVED | no |
| AVAILABLE | acquire | ACQUIRED | no |
| AVAILABLE | absent | ARCHIVED | no |
| AVAILABLE | start moves | ARCHIVED | no |
| ACQUIRED | accept | ACKNOWLEDGED | before the answer |
| ACQUIRED | reject | ARCHIVED | before the answer |
| ACQUIRED | gap | ARCHIVED | before the answer |
| ACQUIRED | release | AVAILABLE | before the answer |
| ACQUIRED | release at the limit | ARCHIVED | before the answer |
| ACQUIRED | renew | ACQUIRED | no |
| ACQUIRED | lock ends | AVAILABLE | soon |
| ACQUIRED | lock ends at the limit | ARCHIVED | soon |
| ACQUIRED | member leaves | AVAILABLE | no |
| ACQUIRED | start moves | ARCHIVED | no |
| ACKNOWLEDGED | not stored | ACQUIRED | soon |

*absent*: no consumer may see it, because compaction has removed it, or it is the marker or a record of an aborted transaction.
*At the limit*: it was delivered as often as ``delivery_count_limit`` allows. If a member leaves, the delivery of its records does
not count. Changes that are durable *soon* or not at all happen again after a restart; at worst a record is delivered once more
than its count says. *Not stored*: the catalogue has failed, and the member was told so. It holds the record as before, with a
new lock, and may acknowledge it again; the same holds for rejected records. Every event in another state is refused, or leaves
the record alone.

Bounds: nobody acquires an offset that is ``max_record_locks`` or more beyond ``start``, so no more ranges than that are in
flight or finished out of order, except ranges that were not stored. A member that holds the oldest record for ever stops the
others there and not sooner.

``ShareSettings`` are the settings of a share group.

Tests: tests/kafka/handlers/test_share_fetch.py.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import attrs

from broker.delivery.acknowledged import Acknowledged
from broker.delivery.in_flight import InFlight, Owner, Record
from broker.delivery.sorted_offsets import SortedOffsets
from broker.errors import RequestError
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.share_fetch import AcknowledgementBatch, AcquiredRecords

READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"


@attrs.frozen
class ShareSettings:
    """The defaults are Kafka's. ``auto_offset_reset``: ``latest``, ``earliest``, or ``by_duration:`` and an ISO-8601 duration,
    whose length in ms is then ``reset_duration_ms``."""

    record_lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    max_record_locks: int = 2_000
    auto_offset_reset: str = "latest"
    reset_duration_ms: int = 0
    isolation_level: str = READ_UNCOMMITTED
    renew_acknowledge_enable: bool = True
    # Settings of the members.
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000

    @property
    def reads_committed(self) -> bool:
        return self.isolation_level == READ_COMMITTED


DEFAULTS = ShareSettings()


GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)

_RUNS = re.compile(rb"(.)\1*", re.DOTALL)  # runs of equal acknowledge types
_NO_BOUND = 1 << 62
_USUAL_TYPES, _KNOWN_TYPES = bytes(range(REJECT + 1)), bytes(range(RENEW + 1))


class Finished(NamedTuple):
    """Formerly ACQUIRED offsets that an acknowledgement has made ACKNOWLEDGED or ARCHIVED."""

    first: int
    end: int  # the offset after the last
    type: int
    failures: int  # failed deliveries before


class Outcome(NamedTuple):
    """The changes of an event."""

    durable: bool  # there is something to store
    available: bool  # there may be more to acquire
    finished: Sequence[Finished] = ()  # by an acknowledgement, for ``not_stored``


class _Piece(NamedTuple):
    """Offsets of one in-flight range with the same acknowledge type."""

    first: int
    last: int
    type: int


class SharePartition:
    """``counts``: the number of acknowledged records by acknowledge type."""

    __slots__ = (
        "_available",
        "_done",
        "_in_flight",
        "_max_record_locks",
        "_order",
        "_owners",
        "counts",
        "end",
        "settings",
        "state_epoch",
        "version",
    )

    def __init__(self, start: int, settings: ShareSettings, state_epoch: int = 0) -> None:
        self._done = Acknowledged(start, ranges_max=_NO_BOUND)
        self._in_flight = InFlight(lock_s=1.0)
        self._order = SortedOffsets()  # the first offsets of the ranges in flight
        self._available = SortedOffsets()  # of the ranges without a holder
        self._owners: dict[str, Owner] = {}  # holders of records by member id
        self.end = start
        self.state_epoch = state_epoch  # rises when an administrator sets the start offset
        self.version = 0  # counts the changes of the durable state
        self.counts = [0] * 5
        self.configure(settings)

    def configure(self, settings: ShareSettings) -> None:
        """Apply the group's settings. Locks that have begun keep their ends."""
        self.settings = settings
        self._max_record_locks = settings.max_record_locks
        self._in_flight.lock_s = settings.record_lock_duration_ms / 1000
        self._in_flight.failures_max = settings.delivery_count_limit

    # -- questions ------------------------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        return self._done.before

    @property
    def room(self) -> int:
        """How many offsets from ``end`` on may be acquired now."""
        return self._max_record_locks - (self.end - self._done.before)

    @property
    def in_flight_count(self) -> int:
        """The number of records that members hold."""
        return self._in_flight.unacked

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight."""
        return not self._in_flight.records

    def next_offset(self) -> int | None:
        """The offset to read from for the next acquisition: the oldest that nobody holds. None if there is no room."""
        first = self._available.first
        return first if first is not None else self.end if self.room > 0 else None

    def can_acquire(self, log_end: int) -> bool:
        """``log_end``: the end of the readable offsets."""
        first = self._available.first
        if first is not None:
            return first < log_end
        return self.end < log_end and self.room > 0

    def holds(self, member_id: str) -> int:
        """How many records the member holds."""
        owner = self._owners.get(member_id)
        return 0 if owner is None else owner.unacked

    def next_expiry(self) -> float | None:
        return self._in_flight.next_expiry()

    def in_flight(self) -> Iterator[tuple[int, int, str | None, int]]:
        """First offset, last, holder (None: AVAILABLE) and the count of failed deliveries of each range, ascending."""
        names = {id(owner): member_id for member_id, owner in self._owners.items()}
        for first in self._order:
            record = self._in_flight.records[first]
            holder = None if record.owner is None else names[id(record.owner)]
            yield first, first + record.weight - 1, holder, record.failures

    def done(self) -> Iterator[tuple[int, int]]:
        """The finished ranges from ``start`` on: first offset, and the offset after the last."""
        return self._done.ranges

    def check(self) -> None:
        """AssertionError unless each offset from ``start`` to ``end`` is either finished or in flight. For tests and simulations:
        it checks everything."""
        at = self.start
        rows = [(first, end, True) for first, end in self._done.ranges]
        rows += [(first, first + record.weight, False) for first, record in self._in_flight.records.items()]
        for first, end, is_done in sorted(rows):
            assert first == at, f"offset {at} is lost, or {first} is there twice"
            assert not (is_done and first == self.start), "the start stands before what is done with"
            at = end
        assert at == self.end, f"offset {at} is lost before the end, which is {self.end}"
        available = {first for first, record in self._in_flight.records.items() if record.owner is None}
        assert available == set(self._available)
        assert set(self._order) == set(self._in_flight.records)
        held = {first for owner in self._owners.values() for first in owner.held}
        assert held == set(self._in_flight.records) - available

    # -- acquiring, for ``reading.py`` --------------------------------------------------------------------------------

    def owner(self, member_id: str) -> Owner:
        """The member as an owner, which is about to acquire records."""
        return self._owners.setdefault(member_id, Owner())

    def available_from(self, offset: int, last: int) -> Record | None:
        """The first range without a holder that has an offset from ``offset`` to ``last``, cut so that it begins there."""
        self._cut_available(offset)
        first = self._available.at_or_after(offset)
        return None if first is None or first > last else self._in_flight.records[first]

    def acquire_again(self, owner: Owner, record: Record, last: int, now: float) -> None:
        """Acquire the offsets of an AVAILABLE range up to ``last``, or all if it ends before; the rest becomes another range."""
        self._cut_available(last + 1)
        self._available.remove(record.first)
        self._in_flight.acquire(owner, record.first, record.weight, now=now)

    def acquire_new(self, owner: Owner, first: int, end: int, now: float) -> None:
        """Acquire offsets that were passed to ``pass_to`` before."""
        self._order.add(first)
        self._in_flight.acquire(owner, first, end - first, now=now)

    def pass_to(self, end: int) -> None:
        """The offsets before ``end`` are no longer new: the caller acquires them, or reports them absent."""
        self.end = end

    def absent(self, first: int, end: int) -> None:
        """No consumer may see these offsets. Offsets that a member holds stay until it acknowledges or releases them."""
        new = max(first, self.end)
        if new < end:
            self.end = end
            self._done.add_absent(new, end)
        if len(self._available):
            self._cut_available(first)
            self._cut_available(end)
            while (at := self._available.at_or_after(first)) is not None and at < end:
                self._available.remove(at)
                self._finish(self._in_flight.records[at])

    def _cut_available(self, at: int) -> None:
        """Split an AVAILABLE range that contains this offset and begins before it."""
        first = self._available.at_or_before(at)
        if first is not None and first < at < first + self._in_flight.records[first].weight:
            self._in_flight.split(self._in_flight.records[first], at)
            self._order.add(at)
            self._available.add(at)

    def forget_owner(self, member_id: str) -> None:
        """Forget the owner if it holds nothing."""
        owner = self._owners.get(member_id)
        if owner is not None and not owner.held:
            del self._owners[member_id]

    # -- acknowledging ----------------------------------------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, batches: Iterable[AcknowledgementBatch], now: float, *, may_renew: bool = False
    ) -> Outcome:
        """Acknowledge all of these, or none: raises RequestError with the code of the answer."""
        owner = self._owners.get(member_id)
        pieces: list[_Piece] = []
        before = -1
        for first, last, types in batches:
            _check(first, last, types, before, may_renew)
            before = last
            start = self._done.before
            if last < start:
                continue  # retention or an administrator has removed it meanwhile
            if first < start:
                types = types if len(types) == 1 else types[start - first :]
                first = start
            self._collect(owner, first, last, types, pieces)
        available = durable = False
        finished: list[Finished] = []
        for piece in pieces:
            durable = durable or piece.type != RENEW
            available = self._apply(piece, now, finished) or available
        if durable:
            self.version += 1
            self.forget_owner(member_id)
        return Outcome(durable, durable and (available or self.room > 0), finished)

    def not_stored(self, member_id: str, state_epoch: int, finished: Iterable[Finished], now: float) -> None:
        """The records that an acknowledgement has finished in this state epoch could not be stored: undo that."""
        finished = sorted(finished)
        if not finished or state_epoch != self.state_epoch:  # an administrator has set the start offset meanwhile
            return
        start = min(self.start, finished[0].first)
        done = list(_without([(start, self.start), *self._done.ranges], finished))
        if done and done[0][0] == start:
            start = done.pop(0)[1]
        self._done.reset(start)
        self._done.restore(done, ())
        owner = self.owner(member_id)
        for piece in finished:
            self._order.add(piece.first)
            self._in_flight.acquire(owner, piece.first, piece.end - piece.first, now=now).failures = piece.failures
            self.counts[piece.type] -= piece.end - piece.first
        self.version += 1

    def _collect(self, owner: Owner | None, first: int, last: int, types: bytes, pieces: list[_Piece]) -> None:
        """Raises RequestError unless the owner holds all of these offsets."""
        if last >= self.end > first:
            raise RequestError(ErrorCode.invalid_request, "The batch ends after the last record that was acquired.")
        at = first
        while at <= last:
            start = self._order.at_or_before(at)
            record = None if start is None else self._in_flight.records[start]
            if owner is None or record is None or at >= record.first + record.weight or record.owner is not owner:
                raise RequestError(ErrorCode.invalid_record_state, "The member does not hold all of these records.")
            stop = min(last, record.first + record.weight - 1)
            if len(types) == 1:
                pieces.append(_Piece(at, stop, types[0]))
            else:
                for run in _RUNS.finditer(types, at - first, stop - first + 1):
                    pieces.append(_Piece(first + run.start(), first + run.end() - 1, types[run.start()]))
            at = stop + 1

    def _apply(self, piece: _Piece, now: float, finished: list[Finished]) -> bool:
        """Returns whether a range has become AVAILABLE."""
        first, last, kind = piece
        self.counts[kind] += last - first + 1
        record = self._cut(first, last)
        if kind == RENEW:
            self._in_flight.renew(record, now)
            return False
        if kind == RELEASE:
            return self._fail(record)
        finished.append(Finished(first, last + 1, kind, record.failures))
        self._finish(record)
        return False

    def _cut(self, first: int, last: int) -> Record:
        """The record of exactly these offsets, which are part of one range."""
        records = self._in_flight.records
        record = records.get(first)
        if record is None:
            start = self._order.at_or_before(first)
            assert start is not None
            record = self._in_flight.split(records[start], first)
            self._order.add(first)
        if first + record.weight > last + 1:
            self._in_flight.split(record, last + 1)
            self._order.add(last + 1)
        return record

    def _finish(self, record: Record) -> None:
        """The record becomes ACKNOWLEDGED or ARCHIVED."""
        first = record.first
        self._in_flight.remove(record)
        self._order.remove(first)
        self._done.add_absent(first, first + record.weight)

    def _fail(self, record: Record) -> bool:
        """Count a failed delivery of the record. Returns whether it is AVAILABLE; otherwise it is ARCHIVED."""
        first = record.first
        if self._in_flight.fail(record):
            self._available.add(first)
            return True
        self._order.remove(first)
        self._done.add_absent(first, first + record.weight)
        return False

    # -- time, members, the log, administrators -----------------------------------------------------------------------------

    def expire(self, now: float, most: int) -> Outcome:
        """End the locks of at most ``most`` ranges whose time is over."""
        records = self._in_flight.expired(now, most)
        for record in records:
            self._fail(record)
        if records:
            self._owners = {member_id: owner for member_id, owner in self._owners.items() if owner.held}
            self.version += 1
        return Outcome(bool(records), bool(records))

    def member_left(self, member_id: str) -> Outcome:
        """The member's records become AVAILABLE, as if they had not been delivered."""
        owner = self._owners.pop(member_id, None)
        held = [] if owner is None else list(owner.held.values())
        for record in held:
            self._in_flight.release(record)
            self._available.add(record.first)
        return Outcome(False, bool(held))

    def undo(self, member_id: str, acquired: Iterable[AcquiredRecords]) -> None:
        """Release records that were acquired but are not sent."""
        owner = self._owners.get(member_id)
        for first, last, _ in acquired:
            held = [] if owner is None else [at for at in owner.held if first <= at <= last]
            for at in held:
                self._in_flight.release(self._in_flight.records[at])
                self._available.add(at)
        self.forget_owner(member_id)

    def move_start(self, log_start: int) -> Outcome:
        """The log no longer has records before this offset."""
        if log_start <= self._done.before:
            return Outcome(False, False)
        records = self._in_flight.records
        first = self._order.at_or_before(log_start)
        if first is not None and first < log_start < first + records[first].weight:
            is_available = records[first].owner is None
            self._in_flight.split(records[first], log_start)
            self._order.add(log_start)
            if is_available:
                self._available.add(log_start)
        self._available.take_until(log_start - 1)
        for first in self._order.take_until(log_start - 1):
            self._in_flight.remove(records[first])
        self._owners = {member_id: owner for member_id, owner in self._owners.items() if owner.held}
        self._done.until(log_start)
        self.end = max(self.end, log_start)
        self.version += 1
        return Outcome(True, True)

    def reset(self, offset: int) -> None:
        """An administrator has set the start offset: nothing before it is delivered, and everything from it on is new."""
        self._forget(offset)
        self.state_epoch += 1
        self.version += 1

    def _forget(self, start: int) -> None:
        self._done.reset(start)
        self._in_flight.clear()
        self._order.clear()
        self._available.clear()
        self._owners.clear()
        self.end = start

    def restore(self, ranges: Iterable[tuple[int, int]], failed: Iterable[tuple[int, int, int]], log_end: int) -> None:
        """Fill a new share partition: the finished ranges above the start, as from ``done``, and failed deliveries (first offset,
        the offset after the last, their number). Offsets in between are AVAILABLE. Offsets from ``log_end`` on are forgotten: the
        log lost them when the machine failed, and other records will have them. Raises ValueError for an invalid state."""
        if self.start > log_end:
            self._forget(log_end)
            return
        done = [(first, min(end, log_end)) for first, end in ranges if first < log_end]
        self._done.restore(done, ())
        counted = [(first, min(end, log_end), count) for first, end, count in failed if first < log_end]
        self.end = max([self.start, *(end for _, end in done), *(end for _, end, _ in counted)])
        at = self.start
        for first, end, count in sorted([*((first, end, -1) for first, end in done), *counted]):
            if not at <= first < end or count == 0:
                raise ValueError("offsets that overlap, or a count of 0")
            if at < first:
                self._restore(at, first, 0)
            if count > 0:
                self._restore(first, end, count)
            at = end

    def _restore(self, first: int, end: int, failures: int) -> None:
        self._in_flight.add(first, end - first).failures = failures
        self._order.add(first)
        self._available.add(first)


def _without(ranges: Iterable[tuple[int, int]], finished: Sequence[Finished]) -> Iterator[tuple[int, int]]:
    """The rest of ascending ranges without the finished offsets, also ascending. A finished piece lies within one range."""
    number = 0
    for first, end in ranges:
        at = first
        while number < len(finished) and finished[number].first < end:
            if at < finished[number].first:
                yield at, finished[number].first
            at = finished[number].end
            number += 1
        if at < end:
            yield at, end


def _check(first: int, last: int, types: bytes, before: int, may_renew: bool) -> None:
    """Kafka's checks before it looks at a record. ``before``: the last offset of the preceding batch."""
    if first < 0 or first > last:
        raise RequestError(ErrorCode.invalid_request, "A batch begins before offset 0, or after its end.")
    if first <= before:
        raise RequestError(ErrorCode.invalid_request, "The batches overlap, or are not ascending.")
    if not types:
        raise RequestError(ErrorCode.invalid_request, "A batch has no acknowledge types.")
    if len(types) > 1 and len(types) != last - first + 1:
        raise RequestError(
            ErrorCode.invalid_request, "A batch has neither one acknowledge type nor one for each offset."
        )
    # `max` would hold the interpreter's lock for 2 s if a request of 100 MB has one batch.
    if types.translate(None, _KNOWN_TYPES if may_renew else _USUAL_TYPES):
        raise RequestError(
            ErrorCode.invalid_request, "A batch has an acknowledge type that is not known or not allowed."
        )
