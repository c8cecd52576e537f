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
from collections import OrderedDict
from collections.abc import Iterable

import attrs

_NO_LIMIT = 1 << 62


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
    __slots__ = ("failures", "first", "owner", "since", "tag", "weight")

    def __init__(self, first: int, weight: int, tag: int) -> None:
        self.first = first  # offset
        self.weight = weight
        self.tag = tag  # the caller's own
        self.failures = 0  # how often it failed; while it is acquired, Kafka's delivery count is one more
        self.owner: Owner | None = None  # None: AVAILABLE
        self.since = 0.0  # when it was acquired or renewed

    def __repr__(self) -> str:
        return f"Record({self.first}, weight {self.weight}, failures {self.failures})"


class InFlight:
    """``owner_max``, ``total_max``: limits of the weight, 0 for none. ``failures_max``: the failure with this number archives the
    record, 0 for never. ``lock_s``: how long a record may be held, 0 for as long as its owner likes."""

    __slots__ = (
        "_failures_max",
        "_lock_s",
        "_locks",
        "_owner_max",
        "_total_max",
        "blocked",
        "records",
        "unacked",
    )

    def __init__(self, *, owner_max: int = 0, total_max: int = 0, failures_max: int = 0, lock_s: float = 0.0) -> None:
        self._failures_max = failures_max
        self._lock_s = lock_s
        # What is acquired, the oldest lock first. All locks last equally long, so no heap is needed.
        self._locks: OrderedDict[int, Record] | None = OrderedDict() if lock_s else None
        self._owner_max = owner_max or _NO_LIMIT
        self._total_max = total_max or _NO_LIMIT
        self.records: dict[int, Record] = {}  # by the first offset; changed in here only
        self.unacked = 0  # the weight of all that is acquired
        self.blocked = False

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
            record.since = now
            self._locks[first] = record
        return record

    def renew(self, record: Record, now: float) -> None:
        """The lock begins anew."""
        assert record.owner is not None
        if self._locks is not None:
            record.since = now
            self._locks.move_to_end(record.first)

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
            del self._locks[record.first]
        self._relieve(owner, record.weight)

    def fail(self, record: Record) -> bool:
        """The owner hands it back, or has held it too long. False: it is archived."""
        owner = record.owner
        assert owner is not None
        self.release(record)
        owner.blocked = owner.blocked and owner.unacked >= self._owner_max
        record.failures += 1
        if record.failures == self._failures_max:
            del self.records[record.first]
            return False
        return True

    def clear(self) -> None:
        """Forget all records. Their owners have left and are not looked at again."""
        self.records.clear()
        if self._locks is not None:
            self._locks.clear()
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
        return next(iter(self._locks.values())).since + self._lock_s if self._locks else None

    def expired(self, now: float, most: int) -> list[Record]:
        """At most so many records whose locks have ended, the oldest first. The caller has them fail."""
        records: list[Record] = []
        for record in self._locks.values() if self._locks else ():
            if record.since + self._lock_s > now or len(records) == most:
                break
            records.append(record)
        return records

    # -- several records ----------------------------------------------------------------------------------------------

    def before(self, offset: int) -> list[Record]:
        """Those that begin before the offset. Takes some 20 ns for each record of the table."""
        return [record for first, record in self.records.items() if first < offset]

    def cut(self, ranges: Iterable[tuple[int, int]]) -> list[Record]:
        """The records that have the offsets in these ranges, first and last of each, ascending and apart. A record that lies
        only in part in a range is split there. For tables in which the weight of a record is the number of its offsets.

        Takes a sort of the table, whose records are nearly in order, and a step for each record that is returned."""
        starts = sorted(self.records)
        count = len(starts)
        found: list[Record] = []
        for first, last in ranges:
            at = bisect_left(starts, first)
            if at:
                record = self.records[starts[at - 1]]
                if record.first + record.weight > first:
                    self._split(record, first)
                    starts.insert(at, first)
            while at < len(starts) and starts[at] <= last:
                record = self.records[starts[at]]
                at += 1
                if record.first + record.weight > last + 1:
                    self._split(record, last + 1)
                    starts.insert(at, last + 1)
                found.append(record)
        if self._locks and len(starts) > count:
            # The parts stand at the end, though their locks are as old as those of what they were cut from.
            self._locks = OrderedDict(sorted(self._locks.items(), key=_since))
        return found

    def _split(self, record: Record, at: int) -> None:
        """The offsets from ``at`` on become a record of their own, in the same state."""
        part = Record(at, record.first + record.weight - at, record.tag)
        record.weight -= part.weight
        part.failures, part.owner, part.since = record.failures, record.owner, record.since
        self.records[at] = part
        if part.owner is not None:
            part.owner.held[at] = part
            if self._locks is not None:
                self._locks[at] = part


def _since(item: tuple[int, Record]) -> float:
    return item[1].since
