"""Records in flight, read and not yet acknowledged: the owner, weight and failures of each.

Pure; the caller holds the lock that guards it. It knows no protocol: Pulsar's Shared and Key_Shared subscriptions and Kafka's
share groups keep their records here. Acknowledged records leave this table; ``acknowledged.py`` keeps them.

A *record* here is the unit of delivery: a Pulsar entry, with one message or a batch of them, or a range of offsets of a share
group. Its *weight* is the number of its messages that are not acknowledged. Its states are those of KIP-932:

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

ACKNOWLEDGED and ARCHIVED are the same to this table: the record is not in it (-). An owner that leaves releases its records,
which does not count as a failure. A record whose lock has ended (``expired``) fails.

Limits: an owner whose weight reaches ``owner_max`` is *blocked* until its weight is down to half of that, or until one of its
records fails and the weight is below the limit again: an owner that hands a record back may have it again. ``total_max`` blocks
the whole table in the same way. The limits are reached by whole records, so a record larger than a limit passes. The caller
looks at ``blocked`` before it acquires; the table refuses nothing.

Every method takes constant time, however many records or owners there are, except ``before`` and ``cut``.
"""

from bisect import bisect_left
from collections.abc import Iterable
from heapq import heappop, heappush

import attrs

_NO_LIMIT = 1 << 62
_ENDS_LEFT_MAX = 64  # ends of locks that no record has any longer
_NO_ENDS: list[float] = []  # shared by all tables without locks; never changed


@attrs.define(eq=False)
class Owner:
    """A consumer, or a member of a group. Only ``InFlight`` changes these fields."""

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
        self.failures = 0  # Kafka's delivery count is one more while the record is acquired
        self.owner: Owner | None = None  # None: AVAILABLE
        self.until = 0.0  # when the lock ends, if locks do

    def __repr__(self) -> str:
        return f"Record({self.first}, weight {self.weight}, failures {self.failures})"


class InFlight:
    """``owner_max``, ``total_max``: limits of the weight, 0 for none. ``failures_max``: the failure with this number, or a later
    failure if the limit was higher before, archives the record; 0 for never. ``lock_s``: how long a record may be held, 0 for no
    limit. The last two may be changed; locks that have begun keep their ends."""

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
        # Acquired records by the end of their lock: records that are acquired together share an end.
        self._locks: dict[float, dict[int, Record]] | None = {} if lock_s else None
        self._ends: list[float] = _NO_ENDS  # a heap of the keys of _locks, and of some former keys
        self._owner_max = owner_max or _NO_LIMIT
        self._total_max = total_max or _NO_LIMIT
        self.records: dict[int, Record] = {}  # by the first offset; only this class changes it
        self.unacked = 0  # the weight of all acquired records
        self.blocked = False

    @property
    def failures_max(self) -> int:
        return self._failures_max

    @failures_max.setter
    def failures_max(self, failures: int) -> None:
        self._failures_max = failures or _NO_LIMIT

    def limit(self, owners: Iterable[Owner], owner_max: int, total_max: int) -> bool:
        """Change the limits, also for acquired records. ``owners``: all that have records. Returns False if nothing changes."""
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
        """Add a record without an owner, to be acquired later."""
        assert first not in self.records
        self.records[first] = record = Record(first, weight, tag)
        return record

    def acquire(self, owner: Owner, first: int, weight: int, tag: int = 0, now: float = 0.0) -> Record:
        """Give the record to the owner. ``weight`` is the current weight; ``tag`` is for a record that is not in the table."""
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
        """A part of the record with this weight, but not all of it, is acknowledged."""
        weight = min(weight, record.weight)
        record.weight -= weight
        if record.owner is not None:
            self._relieve(record.owner, weight)

    def remove(self, record: Record) -> Owner | None:
        """The record is acknowledged, or archived. Returns its owner."""
        del self.records[record.first]
        owner = record.owner
        if owner is not None:
            self.release(record)
        return owner

    def release(self, record: Record) -> None:
        """The owner no longer has the record, for a reason that does not count as its failure."""
        owner = record.owner
        assert owner is not None
        record.owner = None
        del owner.held[record.first]
        if self._locks is not None:
            self._unlock(record)
        self._relieve(owner, record.weight)

    def fail(self, record: Record) -> bool:
        """The owner hands the record back, or has held it too long. Returns False if that archives it."""
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
        """Forget all records. Their owners have left and are not used again."""
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
        """At most ``most`` records whose locks have ended, the oldest first. The caller has them fail."""
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
        """Records that begin before the offset. Takes some 20 ns for each record of the table."""
        return [record for first, record in self.records.items() if first < offset]

    def cut(self, ranges: Iterable[tuple[int, int]]) -> list[Record]:
        """The records that have the offsets in these ranges (first and last, ascending, disjoint). A record that lies only
        partly in a range is split there. For tables in which the weight of a record is the number of its offsets.

        Costs a sort of the table, whose records are nearly in order, and a step for each record returned."""
        starts = sorted(self.records)
        records: list[Record] = []
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
                records.append(record)
        return records

    def split(self, record: Record, at: int) -> Record:
        """Split off the offsets from ``at`` on as a record of their own, in the same state and with the same lock, and return it.
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
