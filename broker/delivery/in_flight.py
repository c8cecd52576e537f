"""The records that have been read and are not acknowledged: who has each, how much of it is left, how often it has failed.

Pure; the caller holds whatever lock guards it. It knows no protocol: Pulsar's Shared and Key_Shared subscriptions and Kafka's
share groups keep their records here. What is acknowledged for good is kept elsewhere (``acknowledged.py``); this table
forgets it.

A *record* here is what is delivered and comes back as one: an entry of Pulsar's, with one message or a batch of them, or a
range of offsets of a share group. Its *weight* is the number of messages of it that are not acknowledged. Its states are
those of KIP-932:

| state | event | next | what the caller does |
|---|---|---|---|
| - | acquire | ACQUIRED | sends it to the owner |
| - | add | AVAILABLE | queues it; nobody has had it, or it was put off |
| AVAILABLE | acquire | ACQUIRED | sends it to the owner |
| AVAILABLE | lower | AVAILABLE | - |
| AVAILABLE | acknowledge | ACKNOWLEDGED | - |
| AVAILABLE | reject | ARCHIVED | treats it as acknowledged |
| ACQUIRED | lower | ACQUIRED | - |
| ACQUIRED | acknowledge | ACKNOWLEDGED | - |
| ACQUIRED | release | AVAILABLE | queues it |
| ACQUIRED | fail | AVAILABLE | queues it |
| ACQUIRED | fail for the last time | ARCHIVED | treats it as acknowledged |
| ACQUIRED | reject | ARCHIVED | treats it as acknowledged |

- and ACKNOWLEDGED and ARCHIVED are the same to this table: the record is not in it. An owner leaves by ``release`` of what it
  holds, which does not count as a failure. A lock on an acquired record that is not renewed in time ends by ``fail``
  (``expired``).

Limits: an owner whose weight reaches ``owner_max`` is *blocked* until it is down to half of that, or until one of its records
fails and it is below the limit again: whoever hands something back may have it again. The whole table is blocked in the same
way by ``total_max``. The limits are reached by whole records, so a record larger than the limit passes.

Every method takes a time that does not depend on the number of records or owners, unless it says otherwise.
"""

import attrs


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
        self.tag = tag  # the caller's own: the hash of the key
        self.failures = (
            0  # how often it was handed back; Kafka's delivery count is one more than this while it is acquired
        )
        self.owner: Owner | None = None  # None: AVAILABLE
        self.since = 0.0  # when it was acquired, if there are locks

    def __repr__(self) -> str:
        return f"Record({self.first}, weight {self.weight}, failures {self.failures})"


class InFlight:
    """``owner_max``, ``total_max``: limits of the weight, 0 for none. ``failures_max``: the failure with this number archives
    the record, 0 for never. ``lock_s``: how long a record may be held, or None."""

    __slots__ = (
        "_failures_max",
        "_lock_s",
        "_owner_half",
        "_owner_max",
        "_total_half",
        "_total_max",
        "blocked",
        "records",
        "unacked",
    )

    def __init__(
        self, *, owner_max: int = 0, total_max: int = 0, failures_max: int = 0, lock_s: float | None = None
    ) -> None:
        self._failures_max = failures_max
        self._lock_s = lock_s
        self.set_limits(owner_max, total_max)
        self.records: dict[int, Record] = {}  # by the first offset; to be changed here only
        self.unacked = 0  # the weight of all that is acquired
        self.blocked = False

    def set_limits(self, owner_max: int, total_max: int) -> None:
        """Owners that exceed a new limit are blocked when they next acquire something, others are unblocked by their next
        acknowledgement."""
        self._owner_max = owner_max or 1 << 62
        self._owner_half = self._owner_max // 2
        self._total_max = total_max or 1 << 62
        self._total_half = self._total_max // 2

    def room(self, owner: Owner) -> int:
        """How much more weight this owner may hold."""
        return self._owner_max - owner.unacked

    # -- events -------------------------------------------------------------------------------------------------------

    def acquire(self, owner: Owner, first: int, weight: int, tag: int = 0, now: float = 0.0) -> Record:
        """The record goes to the owner. ``weight`` is the current one."""
        record = self.records.get(first)
        if record is None:
            self.records[first] = record = Record(first, weight, tag)
        elif record.owner is not None:
            raise AssertionError(f"{record} is acquired twice")
        else:
            record.weight = weight
        record.owner = owner
        record.since = now
        owner.held[first] = record
        owner.unacked = unacked = owner.unacked + weight
        if unacked >= self._owner_max:
            owner.blocked = True
        self.unacked = unacked = self.unacked + weight
        if unacked >= self._total_max:
            self.blocked = True
        return record

    def add(self, first: int, weight: int, tag: int = 0) -> Record:
        """A record that nobody has, to be acquired later."""
        assert first not in self.records
        self.records[first] = record = Record(first, weight, tag)
        return record

    def lower(self, record: Record, weight: int) -> None:
        """A part of the record with this weight, and not all of it, is acknowledged."""
        weight = min(weight, record.weight)
        record.weight -= weight
        if record.owner is not None:
            self._relieve(record.owner, weight)

    def remove(self, record: Record) -> Owner | None:
        """Acknowledge, or reject. Returns who had it."""
        del self.records[record.first]
        owner = record.owner
        if owner is not None:
            record.owner = None
            del owner.held[record.first]
            self._relieve(owner, record.weight)
        return owner

    def release(self, record: Record) -> None:
        """The owner no longer has it, through no fault of the record's."""
        owner = record.owner
        assert owner is not None
        record.owner = None
        del owner.held[record.first]
        self._relieve(owner, record.weight)

    def fail(self, record: Record) -> bool:
        """The owner hands it back, or has held it too long. False: it is archived."""
        owner = record.owner
        self.release(record)
        assert owner is not None
        owner.blocked = owner.unacked >= self._owner_max
        record.failures += 1
        if record.failures == self._failures_max:
            del self.records[record.first]
            return False
        return True

    def clear(self) -> None:
        """Forget all records. Their owners have left and are not looked at again."""
        self.records.clear()
        self.unacked = 0
        self.blocked = False

    def _relieve(self, owner: Owner, weight: int) -> None:
        owner.unacked = unacked = owner.unacked - weight
        if unacked <= self._owner_half:
            owner.blocked = False
        self.unacked = unacked = self.unacked - weight
        if unacked <= self._total_half:
            self.blocked = False

    # -- questions ----------------------------------------------------------------------------------------------------

    def before(self, offset: int) -> list[Record]:
        """Those that begin before the offset. Takes a few nanoseconds for each record of the table."""
        return [record for first, record in self.records.items() if first < offset]
