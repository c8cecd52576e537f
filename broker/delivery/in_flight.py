"""The records that have been read and are not acknowledged: who has each, how much of it is left, how often it has failed.

Pure; the caller holds whatever lock guards it. It knows no protocol: Pulsar's Shared and Key_Shared subscriptions and Kafka's
share groups keep their records here. What is acknowledged for good is kept elsewhere (``acknowledged.py``); this table
forgets it.

A *record* here is what is delivered and comes back as one: an entry of Pulsar's, with one message or a batch of them, or a
range of offsets of a share group. Its *weight* is the number of messages of it that are not acknowledged. Its states are
those of KIP-932:

| state | event | next | what the caller does |
|---|---|---|---|
| - | add | AVAILABLE | queues it: nobody has had it |
| - | acquire | ACQUIRED | sends it to the owner |
| AVAILABLE | acquire | ACQUIRED | sends it to the owner |
| AVAILABLE | lower | AVAILABLE | - |
| AVAILABLE | remove | - | has acknowledged it, or archives it |
| ACQUIRED | lower | ACQUIRED | - |
| ACQUIRED | renew | ACQUIRED | - |
| ACQUIRED | release | AVAILABLE | queues it |
| ACQUIRED | fail | AVAILABLE | queues it |
| ACQUIRED | the last fail | - | archives it |
| ACQUIRED | remove | - | has acknowledged it, or archives it (reject) |

ACKNOWLEDGED and ARCHIVED are the same to this table: the record is not in it (-). An owner that leaves releases what it holds,
which does not count as a failure. A record whose lock has ended (``expired``) fails.

Limits: an owner whose weight reaches ``owner_max`` is *blocked* until it is down to half of that, or until one of its records
fails and it is below the limit again: whoever hands something back may have it again. The whole table is blocked in the same
way by ``total_max``. The limits are reached by whole records, so a record larger than a limit passes. Whoever acquires looks
at ``blocked`` before; the table refuses nothing.

Every method takes a time that does not depend on the number of records or owners, but for ``before`` and ``cut``.
"""

from bisect import bisect_left
from collections.abc import Iterable
from heapq import heappop, heappush

import attrs

_NO_LIMIT = 1 << 62
_ENDS_LEFT_MAX = 64  # ends of locks that no record has any more
_NO_ENDS: list[float] = []  # of all tables without locks; nothing is put into it


@attrs.define(eq=False)
class Owner:
    """A consumer, or the member of a group. ``InFlight`` alone changes these fields."""

    # The weight of the records that it holds.
    unacked: int = attrs.field(default=0, init=False)
    # It has reached its limit.
    blocked: bool = attrs.field(default=False, init=False)
    # By the first offset; in the order in which they were acquired.
    held: "dict[int, Record]" = attrs.field(factory=dict, init=False, repr=False)


class Record:
    __slots__ = ("failures", "first", "owner", "tag", "until", "weight")

    def __init__(self, first: int, weight: int, tag: int) -> None:
        self.first = first  # offset
        self.weight = weight
        self.tag = tag  # the caller's own
        self.failures = 0  # how often it failed; while it is acquired, Kafka's delivery count is one more
        self.owner: Owner | None = None  # None: AVAILABLE
        self.until = 0.0  # when the lock ends, if locks do

    def __repr__(self) -> str:
        return f"Record({self.first}, weight {self.weight}, failures {self.failures})"


class InFlight:
    """``owner_max``, ``total_max``: limits of the weight, 0 for none. ``failures_max``: the failure with this number archives the
    record, and so does a later one if the limit was higher before; 0 for never. ``lock_s``: how long a record may be held, 0 for
    as long as its owner likes. The last two may be changed; locks that have begun end when they would have."""

    __slots__ = (
        "_ends",
        "_failures_max",
        "_locks",
        "_owner_max",
        "_total_max",
        "blocked",
        "lock_s",
        "records",
        "unacked",
    )

    def __init__(self, *, owner_max: int = 0, total_max: int = 0, failures_max: int = 0, lock_s: float = 0.0) -> None:
        self.failures_max = failures_max
        self.lock_s = lock_s
        # What is acquired, by the end of the lock: records that are acquired together have one end.
        self._locks: dict[float, dict[int, Record]] | None = {} if lock_s else None
        self._ends: list[float] = _NO_ENDS  # a heap of the keys of _locks, and of some that it had
        self._owner_max = owner_max or _NO_LIMIT
        self._total_max = total_max or _NO_LIMIT
        self.records: dict[int, Record] = {}  # by the first offset; changed in here only
        self.unacked = 0  # the weight of all that is acquired
        self.blocked = False

    @property
    def failures_max(self) -> int:
        return self._failures_max

    @failures_max.setter
    def failures_max(self, failures: int) -> None:
        self._failures_max = failures or _NO_LIMIT

    def limit(self, owners: Iterable[Owner], owner_max: int, total_max: int) -> bool:
        """Other limits hold from now on, also for what is acquired already. ``owners``: all that have records. False if they are
        those that hold."""
        limits = owner_max or _NO_LIMIT, total_max or _NO_LIMIT
        if limits == (self._owner_max, self._total_max):
            return False
        self._owner_max, self._total_max = limits
        for owner in owners:
            owner.blocked = owner.unacked >= self._owner_max
        self.blocked = self.unacked >= self._total_max
        return True

    def room(self, owner: Owner) -> int:
        """How much more weight this owner may hold."""
        return self._owner_max - owner.unacked

    # -- events -------------------------------------------------------------------------------------------------------

    def add(self, first: int, weight: int, tag: int = 0) -> Record:
        """A record that nobody has, to be acquired later."""
        assert first not in self.records
        self.records[first] = record = Record(first, weight, tag)
        return record

    def acquire(self, owner: Owner, first: int, weight: int, tag: int = 0, now: float = 0.0) -> Record:
        """The record goes to the owner. ``weight`` is the current one; ``tag`` is for a record that is not in the table."""
        record = self.records.get(first)
        if record is None:
            self.records[first] = record = Record(first, weight, tag)
        elif record.owner is not None:
            raise AssertionError(f"{record} is acquired twice")
        else:
            record.weight = weight
        record.owner = owner
        owner.held[first] = record
        owner.unacked = unacked = owner.unacked + weight
        if unacked >= self._owner_max:
            owner.blocked = True
        self.unacked = unacked = self.unacked + weight
        if unacked >= self._total_max:
            self.blocked = True
        if self._locks is not None:
            self._lock(record, now + self.lock_s)
        return record

    def renew(self, record: Record, now: float) -> None:
        """The lock begins anew."""
        assert record.owner is not None
        if self._locks is not None:
            self._unlock(record)
            self._lock(record, now + self.lock_s)

    def lower(self, record: Record, weight: int) -> None:
        """A part of the record with this weight, and not all of it, is acknowledged."""
        weight = min(weight, record.weight)
        record.weight -= weight
        if record.owner is not None:
            self._relieve(record.owner, weight)

    def remove(self, record: Record) -> Owner | None:
        """It is acknowledged, or archived. Returns who had it."""
        del self.records[record.first]
        owner = record.owner
        if owner is not None:
            self.release(record)
        return owner

    def release(self, record: Record) -> None:
        """The owner no longer has it, through no fault of the record's."""
        owner = record.owner
        assert owner is not None
        record.owner = None
        del owner.held[record.first]
        if self._locks is not None:
            self._unlock(record)
        self._relieve(owner, record.weight)

    def fail(self, record: Record) -> bool:
        """The owner hands it back, or has held it too long. False: it is archived."""
        owner = record.owner
        assert owner is not None
        self.release(record)
        owner.blocked = owner.blocked and owner.unacked >= self._owner_max
        record.failures += 1
        if record.failures >= self._failures_max:
            del self.records[record.first]
            return False
        return True

    def clear(self) -> None:
        """Forget all records. Their owners have left and are not looked at again."""
        self.records.clear()
        if self._locks is not None:
            self._locks.clear()
            self._ends = _NO_ENDS
        self.unacked = 0
        self.blocked = False

    def _relieve(self, owner: Owner, weight: int) -> None:
        owner.unacked = unacked = owner.unacked - weight
        if 2 * unacked <= self._owner_max:
            owner.blocked = False
        self.unacked = unacked = self.unacked - weight
        if 2 * unacked <= self._total_max:
            self.blocked = False

    # -- locks --------------------------------------------------------------------------------------------------------

    def next_expiry(self) -> float | None:
        """When the next lock ends, if it is not renewed."""
        ends = self._ends
        while ends and ends[0] not in (self._locks or ()):
            heappop(ends)
        return ends[0] if ends else None

    def expired(self, now: float, most: int) -> list[Record]:
        """At most so many records whose locks have ended, the oldest first. The caller has them fail."""
        records: list[Record] = []
        passed = []
        while len(records) < most and (end := self.next_expiry()) is not None and end <= now:
            assert self._locks is not None
            records += self._locks[end].values()
            passed.append(heappop(self._ends))
            while self._ends and self._ends[0] == end:
                heappop(self._ends)
        for end in passed:
            heappush(self._ends, end)
        return records[:most]

    def _lock(self, record: Record, until: float) -> None:
        assert self._locks is not None
        record.until = until
        together = self._locks.get(until)
        if together is not None:
            together[record.first] = record
            return
        self._locks[until] = {record.first: record}
        if not self._ends:
            self._ends = [until]
        elif len(self._ends) > 2 * len(self._locks) + _ENDS_LEFT_MAX:
            self._ends = sorted(self._locks)
        else:
            heappush(self._ends, until)

    def _unlock(self, record: Record) -> None:
        assert self._locks is not None
        together = self._locks[record.until]
        del together[record.first]
        if not together:
            del self._locks[record.until]

    # -- several records ----------------------------------------------------------------------------------------------

    def before(self, offset: int) -> list[Record]:
        """Those that begin before the offset. Takes some 20 ns for each record of the table."""
        return [record for first, record in self.records.items() if first < offset]

    def cut(self, ranges: Iterable[tuple[int, int]]) -> list[Record]:
        """The records that have the offsets in these ranges, first and last of each, ascending and apart. A record that lies
        only in part in a range is split there. For tables in which the weight of a record is the number of its offsets.

        Takes a sort of the table, whose records are nearly in order, and a step for each record that is returned."""
        starts = sorted(self.records)
        found: list[Record] = []
        for first, last in ranges:
            at = bisect_left(starts, first)
            if at:
                record = self.records[starts[at - 1]]
                if record.first + record.weight > first:
                    self.split(record, first)
                    starts.insert(at, first)
            while at < len(starts) and starts[at] <= last:
                record = self.records[starts[at]]
                at += 1
                if record.first + record.weight > last + 1:
                    self.split(record, last + 1)
                    starts.insert(at, last + 1)
                found.append(record)
        return found

    def split(self, record: Record, at: int) -> Record:
        """The offsets from ``at`` on become a record of their own, which is returned, in the same state and with the same lock.
        For tables in which the weight of a record is the number of its offsets."""
        assert record.first < at < record.first + record.weight
        part = Record(at, record.first + record.weight - at, record.tag)
        record.weight -= part.weight
        part.failures, part.owner, part.until = record.failures, record.owner, record.until
        self.records[at] = part
        if part.owner is not None:
            part.owner.held[at] = part
            if self._locks is not None:
                self._locks[part.until][at] = part
        return part
