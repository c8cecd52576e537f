"""The dispatcher of subscriptions whose consumers share the entries: Shared and Key_Shared. Pure.

Every entry goes to one consumer, which an ``Assignment`` chooses, and is acknowledged individually.

    read ------------> send -----------> in flight ------> acknowledged
       |                ^  |                  |
       |                |  | (put off)        | redeliver, consumer left
       +--> delayed --> replay <--- waits <---+

After each event, ``_more`` asks for the next entries to send:

1. The next slice of an event's remaining work (``_chores``) is done. Until all of it is done, the other steps wait, so that later
   entries do not overtake redelivered entries.
2. If no consumer is available, a replay is outstanding, a read failed a short time ago, or a rate limit is reached, it stops.
3. Due delayed entries begin to wait, and some of the waiting entries that can be sent are requested with ``Replay``.
4. If no waiting entry can be sent, new entries are requested with ``Read``, unless a read is outstanding, too many messages are
   unacknowledged, too many entries are in flight, wait or are delayed, or the cursor is crowded.

So entries are sent again even while a ``Read`` waits at the end of the log, and even if the subscription has too many
unacknowledged messages. Every reason for which ``_more`` stops ends with an event, or with the alarm that is set for it: no
deliverable entry waits for an event that does not come.

If the entries of a read cannot be sent and need not wait for a certain consumer, the cursor goes back to the first of them
and they are read again, so they take no memory.

When the last consumer leaves, all state is dropped, and the next consumer begins with the unacknowledged entries.

``Alarm`` combines several deadlines into the single ``WakeAt`` of a dispatcher. After each event ``ring_at`` is called for each
deadline; when the alarm rings, the dispatcher checks all of them.

``Chores`` are work with one step per record, done a slice at a time, so that no event takes longer than a slice. Each is a
generator that does one step before each ``yield``. They are done one after another, in order of arrival.

``Reading`` tracks the outstanding reads: at most one ``Read`` and one ``Replay``. A completion counts only if its epoch is that
of the outstanding read: each read has its own epoch, and ``forget`` makes outstanding reads stale. So a read that completes after
all consumers have left, or after the subscription was rewound, can neither deliver anything nor clear a later request.

After a failed read, nothing is read for a time that doubles with each failure; then one entry is requested, and after each
success twice as many as before. A read that should have waited for an entry but returned none is repeated a little later.

Tests: tests/pulsar/dispatch/test_round_robin_shared.py,
tests/pulsar/dispatch/test_by_key.py,
tests/pulsar/dispatch/test_known_bugs.py,
tests/faults/test_pulsar_dispatch.py,
tests/delivery/test_chores.py.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from math import inf

from broker.delivery.in_flight import InFlight, Record
from broker.pulsar.dispatch.assignment import UNKNOWN, Assignment
from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import (
    CancelRead,
    Consumer,
    Deliver,
    Discard,
    DispatchSettings,
    Effect,
    Now,
    Read,
    Replay,
    WakeAt,
)
from broker.pulsar.dispatch.rate_limit import UNLIMITED, RateLimit
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.cursor import Cursor

# After a read that returned nothing.
_EMPTY_RETRY_S = 0.01


class Reading:
    __slots__ = ("_delay_s", "_epoch", "_settings", "entries_max", "messages_per_entry", "read", "replay", "retry_at")

    def __init__(self, settings: DispatchSettings) -> None:
        self._settings = settings
        self._epoch = 0
        self._delay_s = 0.0  # after the last failure; 0 after a success
        self.read: Read | None = None
        self.replay: Replay | None = None
        self.entries_max = settings.read_entries_max
        self.messages_per_entry = 1.0  # a moving average
        self.retry_at = 0.0  # nothing is read before this time

    def begin_read(self, offset: int, entries: int, size: int) -> Read:
        self._epoch += 1
        self.read = Read(offset, entries, size, self._epoch)
        return self.read

    def begin_replay(self, offsets: Sequence[int]) -> Replay:
        self._epoch += 1
        self.replay = Replay(offsets, self._epoch)
        return self.replay

    def end_read(self, read: Read) -> bool:
        """False: the read is stale and must be ignored."""
        if self.read is None or read.epoch != self.read.epoch:
            return False
        self.read = None
        return True

    def end_replay(self, replay: Replay) -> bool:
        """False: the replay is stale and must be ignored."""
        if self.replay is None or replay.epoch != self.replay.epoch:
            return False
        self.replay = None
        return True

    def failed(self, now: Now) -> None:
        settings = self._settings
        self._delay_s = min(self._delay_s * 2 or settings.read_retry_s, settings.read_retry_max_s)
        self.retry_at = now.monotonic + self._delay_s
        self.entries_max = 1

    def succeeded(self) -> None:
        if self.entries_max < self._settings.read_entries_max:
            self.entries_max = min(self.entries_max * 2, self._settings.read_entries_max)
        self._delay_s = 0.0

    def empty(self, now: Now) -> None:
        self.retry_at = now.monotonic + _EMPTY_RETRY_S

    def measure(self, entries: int, messages: int) -> None:
        """Add ``messages`` messages in ``entries`` entries to the average."""
        self.messages_per_entry = 0.9 * self.messages_per_entry + 0.1 * messages / entries

    def forget(self) -> bool:
        """Make outstanding reads stale. Returns whether a ``Read`` was outstanding."""
        outstanding = self.read is not None
        self.read = self.replay = None
        return outstanding


class Alarm:
    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at = inf  # the time for which the subscription's timer is set

    def ring_at(self, at: float, now: Now, effects: list[Effect]) -> None:
        """Ring at this time or before."""
        if at < self._at or self._at <= now.monotonic:
            self._at = max(at, now.monotonic)
            effects.append(WakeAt(self._at))

    def rings(self) -> None:
        """``tick`` has been called; the timer is no longer set."""
        self._at = inf


# A step takes one or two microseconds.
SLICE = 5_000


class Chores:
    __slots__ = ("_chores", "slice")

    def __init__(self, slice: int = SLICE) -> None:
        self.slice = slice  # the number of steps that ``work`` does
        self._chores: list[Generator[None]] = []  # few; an empty deque takes ten times the memory

    def __bool__(self) -> bool:
        return bool(self._chores)

    def add(self, chore: Generator[None]) -> None:
        self._chores.append(chore)

    def work(self) -> None:
        """Do a slice. Must not be called by a chore."""
        steps = self.slice
        while self._chores:
            chore = self._chores[0]
            for _ in chore:
                steps -= 1
                if steps <= 0:
                    return
            del self._chores[0]

    def clear(self) -> None:
        self._chores.clear()


class ManyConsumers:
    """``delayed``, ``limit``: None without delayed delivery or rate limits."""

    __slots__ = (
        "_alarm",
        "_assignment",
        "_chores",
        "_cursor",
        "_delayed",
        "_held_back",
        "_limit",
        "_reading",
        "_settings",
        "consumers",
        "in_flight",
    )

    def __init__(
        self,
        assign: Callable[[Cursor, DispatchSettings, InFlight], Assignment],
        cursor: Cursor,
        settings: DispatchSettings,
        delayed: DelayedTracker | None = None,
        limit: RateLimit | None = None,
    ) -> None:
        self._cursor = cursor
        self._settings = settings
        self.in_flight = InFlight(  # read for statistics, too
            owner_max=settings.unacked_max_per_consumer, total_max=settings.unacked_max_per_subscription
        )
        self._assignment = assign(cursor, settings, self.in_flight)
        self._delayed = delayed
        self._limit = limit
        self.consumers: list[Consumer] = []
        self._reading = Reading(settings)
        self._chores = Chores()
        self._alarm = Alarm()
        self._held_back = False  # a consumer is available, but no new entries are read until some are acknowledged

    @property
    def waiting(self) -> int:
        """The number of entries to be replayed."""
        return self._assignment.waiting

    @property
    def delayed(self) -> int:
        """The number of entries that are not due yet."""
        return len(self._delayed) if self._delayed is not None else 0

    # -- consumers ----------------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer, now: Now) -> list[Effect]:
        self._assignment.join(consumer)
        self.consumers.append(consumer)
        return self._more(now, [])

    def remove(self, consumer: Consumer, now: Now) -> list[Effect]:
        if consumer not in self.consumers:
            return []
        self.consumers.remove(consumer)
        consumer.left = True
        if not self.consumers:
            return self._abandon(consumer)
        self._assignment.leave(consumer)
        self._chores.add(self._release(consumer, list(consumer.held.values())))
        return self._more(now, [])

    def flow(self, consumer: Consumer, permits: int, now: Now) -> list[Effect]:
        consumer.permits += permits
        return self._offer(consumer, now)

    def writable(self, consumer: Consumer, now: Now) -> list[Effect]:
        return self._offer(consumer, now)

    def limit(self, settings: DispatchSettings, now: Now) -> list[Effect]:
        """Change the limits of unacknowledged messages."""
        if not self.in_flight.limit(
            self.consumers, settings.unacked_max_per_consumer, settings.unacked_max_per_subscription
        ):
            return []
        for consumer in self.consumers:
            if consumer.available and not consumer.left:
                self._assignment.offer(consumer)
        return self._more(now, [])

    def _offer(self, consumer: Consumer, now: Now) -> list[Effect]:
        if not consumer.available or consumer.left:
            return []
        self._assignment.offer(consumer)
        return self._more(now, [])

    def _abandon(self, last: Consumer) -> list[Effect]:
        self._assignment.leave(last)
        self._assignment.clear()
        self.in_flight.clear()
        self._chores.clear()
        self._alarm.rings()  # the subscription forgets its timer
        if self._delayed is not None:
            self._delayed.clear()
        self._cursor.rewind()
        return [CancelRead()] if self._reading.forget() else []

    # -- acknowledgements and redelivery ------------------------------------------------------------------------------

    def acknowledged(self, consumer: Consumer | None, entry: int, messages: int, whole: bool, now: Now) -> list[Effect]:
        record = self.in_flight.records.get(entry)
        if record is not None:
            owner = record.owner
            was_blocked = owner is not None and owner.blocked
            if not whole:
                self.in_flight.lower(record, messages)
            else:
                self._forget(record)
            if was_blocked and isinstance(owner, Consumer) and owner.available and not owner.left:
                return self._offer(owner, now)
        if (self._held_back and self._may_read_new()) or self._assignment.ready():
            return self._more(now, [])
        return []

    def acknowledged_whole(self, entries: Sequence[int], now: Now) -> list[Effect]:
        records, assignment = self.in_flight.records, self._assignment
        offered = False
        for entry in entries:
            record = records.get(entry)
            if record is None:
                continue
            owner = record.owner
            was_blocked = owner is not None and owner.blocked
            self._forget(record)
            if was_blocked and isinstance(owner, Consumer) and owner.available and not owner.left:
                assignment.offer(owner)
                offered = True
        if offered or (self._held_back and self._may_read_new()) or assignment.ready():
            return self._more(now, [])
        return []

    def marked_deleted(self, offset: int, now: Now) -> list[Effect]:
        self._cursor.read_offset = max(self._cursor.read_offset, offset)
        if self._delayed is not None:
            self._delayed.marked_deleted(offset)
        self._chores.add(self._forget_all(self.in_flight.before(offset)))
        return self._more(now, [])

    def redeliver(self, consumer: Consumer, entries: Sequence[int] | None, now: Now) -> list[Effect]:
        held = consumer.held
        if entries is None:
            records = list(held.values())
        else:  # without duplicates, or a client could cause more work than it holds entries
            records = list(dict.fromkeys([held[entry] for entry in entries if entry in held]))
        if not records or consumer.left:
            return []
        self._chores.add(self._fail(consumer, records))
        return self._more(now, [])

    def _forget(self, record: Record) -> None:
        """The record is acknowledged, or its entry is no longer in the log."""
        owner = self.in_flight.remove(record)
        if owner is None:
            self._assignment.acknowledged(record)
        else:
            self._assignment.freed(record, owner)

    def _release(self, consumer: Consumer, records: Iterable[Record]) -> Generator[None]:
        for record in records:
            if record.owner is consumer:
                self.in_flight.release(record)
                self._assignment.freed(record, consumer)
                self._assignment.put(record)
            yield

    def _fail(self, consumer: Consumer, records: Iterable[Record]) -> Generator[None]:
        for record in records:
            if record.owner is consumer:
                self.in_flight.fail(record)
                self._assignment.freed(record, consumer)
                self._assignment.put(record)
                if not consumer.left and consumer.available:
                    self._assignment.offer(consumer)
            yield

    def _forget_all(self, records: Iterable[Record]) -> Generator[None]:
        for record in records:
            # The log may have been cut inside of an entry, the rest of which is not acknowledged yet.
            last = record.first + record.weight - 1
            if self.in_flight.records.get(record.first) is record and self._cursor.is_acknowledged(last):
                owner = record.owner
                self._forget(record)
                if isinstance(owner, Consumer) and not owner.left and owner.available:
                    self._assignment.offer(owner)
            yield

    # -- reads --------------------------------------------------------------------------------------------------------

    def read_done(self, read: Read, entries: Sequence[Entry], now: Now, *, failed: bool = False) -> list[Effect]:
        effects: list[Effect] = []
        if not self._reading.end_read(read):
            return effects
        if failed:
            self._reading.failed(now)
        elif not entries:
            self._reading.empty(now)
        else:
            self._reading.succeeded()
            # While entries are being handed back, newer entries must not overtake them.
            left = entries[0] if self._chores else self._send(entries, now, effects, new=True)
            self._cursor.read_offset = entries[-1].last + 1 if left is None else left.offset
        return self._more(now, effects)

    def replay_done(self, replay: Replay, entries: Sequence[Entry], now: Now, *, failed: bool = False) -> list[Effect]:
        effects: list[Effect] = []
        if not self._reading.end_replay(replay):
            return effects
        if failed:
            self._reading.failed(now)
        else:
            self._reading.succeeded()
            self._read_anew(replay.offsets, entries, effects)
            if not self._chores:
                self._send(entries, now, effects, new=False)
        self._assignment.taken_back(replay.offsets)
        return self._more(now, effects)

    def _read_anew(self, offsets: Sequence[int], entries: Sequence[Entry], effects: list[Effect]) -> None:
        """Compaction may have removed an entry, or have cut a batch of Kafka's into other entries since it was first read: the
        entries in its place are read as new entries."""
        by_offset = {entry.offset: entry for entry in entries}
        cursor = self._cursor
        begin = cursor.read_offset
        for offset in offsets:
            record = self.in_flight.records.get(offset)
            if record is None or record.owner is not None:
                continue
            entry = by_offset.get(offset)
            if entry is None:
                self._forget(record)
                begin = min(begin, offset)
            elif entry.messages < cursor.messages(offset, record.weight):
                begin = min(begin, entry.last + 1)
        if begin < cursor.read_offset:
            cursor.read_offset = begin
            if self._reading.forget():  # it would move ``read_offset``
                effects.append(CancelRead())

    def tick(self, now: Now) -> list[Effect]:
        self._alarm.rings()
        return self._more(now, [])

    # -- the decisions ------------------------------------------------------------------------------------------------

    def _more(self, now: Now, effects: list[Effect]) -> list[Effect]:
        """Ask for the next entries to send."""
        self._held_back = False
        if self._chores:
            self._chores.work()
            if self._chores:
                self._alarm.ring_at(now.monotonic, now, effects)
                return effects
        reading, assignment = self._reading, self._assignment
        if reading.replay is not None or not assignment.anyone():
            return effects
        delayed = self._delayed
        if reading.read is not None and not assignment.ready() and not (delayed is not None and len(delayed)):
            return effects
        if reading.retry_at > now.monotonic:
            self._alarm.ring_at(reading.retry_at, now, effects)
            return effects
        entries, size = assignment.room(reading.entries_max, reading.messages_per_entry), self._settings.read_bytes_max
        limit = self._limit
        if limit is not None and limit.limited:
            messages, allowed = limit.available(now.monotonic)
            if messages <= 0 or allowed <= 0:
                self._alarm.ring_at(limit.next_at(now.monotonic), now, effects)
                return effects
            entries = max(1, min(entries, int(messages / reading.messages_per_entry)))
            size = min(size, allowed)
        if delayed is not None and len(delayed):
            self._take_due(delayed, entries, now)
        if assignment.ready():
            offsets = assignment.take(entries, reading.messages_per_entry)
            if offsets:
                effects.append(reading.begin_replay(offsets))
                return effects
        if delayed is not None and (next_at := delayed.next_at()) is not None:
            self._alarm.ring_at(now.monotonic + max(0, next_at - now.wall_ms) / 1000, now, effects)
        if reading.read is None and not (delayed is not None and delayed.paused):
            self._held_back = not self._may_read_new()
            if not self._held_back:
                offset = self._cursor.next_unacknowledged(self._cursor.read_offset)
                effects.append(reading.begin_read(offset, entries, size))
        return effects

    def _may_read_new(self) -> bool:
        in_flight = self.in_flight
        return not (
            in_flight.blocked
            or len(in_flight.records) >= self._settings.in_flight_max
            or self._assignment.full
            or self._cursor.crowded
        )

    def _take_due(self, delayed: DelayedTracker, most: int, now: Now) -> None:
        for offset in delayed.due(now.wall_ms, most):
            if offset not in self.in_flight.records and not self._cursor.is_acknowledged(offset):
                self._assignment.put(self.in_flight.add(offset, 1, UNKNOWN))

    def _send(self, entries: Sequence[Entry], now: Now, effects: list[Effect], *, new: bool) -> Entry | None:
        """Send entries as far as possible. Returns the first entry that was neither sent nor begins to wait."""
        discarded: list[Entry] = []
        wanted = self._new(entries, now, discarded) if new else self._again(entries)
        limit, messages, size = self._limit, UNLIMITED, UNLIMITED
        if limit is not None and limit.limited:
            # The read was limited by entries, and was perhaps requested a while ago.
            messages, size = limit.available(now.monotonic)
        sent = self._assignment.send(wanted, messages, size, new=new)
        count = 0
        for consumer, deliveries in sent.batches.items():
            if deliveries:
                count += len(deliveries)
                effects.append(Deliver(consumer, deliveries))
        if count:
            self._reading.measure(count, sent.messages)
            if limit is not None:
                limit.consumed(sent.messages, sent.size, now.monotonic)
        if discarded:
            effects.append(Discard(discarded))
        return sent.left

    def _new(self, entries: Sequence[Entry], now: Now, discarded: list[Entry]) -> Iterator[Entry]:
        """The entries that are for consumers and due now. Each is checked when the iterator reaches it."""
        cursor, records, delayed = self._cursor, self.in_flight.records, self._delayed
        acknowledged_end = cursor.acknowledged.end
        for entry in entries:
            offset = entry.offset
            if offset in records or (offset < acknowledged_end and cursor.is_acknowledged(entry.last)):
                continue
            if entry.marker:
                discarded.append(entry)
                continue
            if delayed is not None:
                if entry.deliver_at_ms and not delayed.is_due(entry.deliver_at_ms, now.wall_ms):
                    delayed.add(entry.deliver_at_ms, offset)
                    continue
                delayed.passed()
            yield entry

    def _again(self, entries: Sequence[Entry]) -> Iterator[Entry]:
        """The entries that still wait. Others were acknowledged while they were read."""
        records = self.in_flight.records
        for entry in entries:
            record = records.get(entry.offset)
            if record is not None and record.owner is None:
                yield entry
