"""Key_Shared: entries with the same key go to the same consumer, in order. Pure.

``KeyShared`` is the dispatcher (``many_consumers.py``). Its assignment distinguishes keys by a hash of 16 bits, which a single
consumer owns at a time (``key_ranges.py``). In order means: while a consumer has an entry of a hash, no other consumer is sent
an entry of that hash; and while an entry of a hash waits, no later entry of the hash is sent. So the order holds when consumers
join, leave or crash, and entries that are handed back are sent again before later entries.

Waiting entries are kept in *lanes*, one per hash:

| state of a lane | ends when |
|---|---|
| QUEUED at the owner of the hash | The owner is available: some of its entries are taken. |
| TAKEN: some of its entries are being read | They have been read: the rest is placed anew. |
| STANDING: the hash is draining, or has no owner | It is drained, or has another owner: the lane is placed anew. |

A hash is *draining* while a consumer other than its owner still has entries of it. It is drained when the last of these entries
is acknowledged or handed back.

Every lane is in exactly one of these states, so a blocked hash costs the others nothing but the bound of ``full``: if too many
entries wait, no new entries are read. (Pulsar reads all waiting entries again and again to see which can be sent.)

A join does nothing for draining hashes: draining is noticed when an entry of the hash is about to be sent. Joining and leaving
take a step for each lane of a hash that changes its owner.

With ``out_of_order``, entries are spread by key, and none waits for another.

The key of a delayed entry is unknown until the entry is read; until then it waits in ``_unknown``.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush

from broker.delivery.in_flight import InFlight, Owner, Record
from broker.delivery.sorted_offsets import OffsetQueue
from broker.pulsar.dispatch.assignment import UNKNOWN, Assignment, Sent
from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import Consumer, Delivery, DispatchSettings
from broker.pulsar.dispatch.key_ranges import KeyRanges, Ranges, key_ranges
from broker.pulsar.dispatch.many_consumers import ManyConsumers
from broker.pulsar.dispatch.rate_limit import RateLimit
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.cursor import Cursor

_new = tuple.__new__


class _Lane:
    __slots__ = ("count", "hash", "home", "offsets", "taken")

    def __init__(self, hash: int) -> None:
        self.hash = hash
        self.count = 0  # waiting entries, including those being read
        self.offsets: list[int] = []  # a heap of the offsets that are not being read; some may have been acknowledged
        self.taken = 0  # offsets that are being read
        self.home: Consumer | None = None  # the consumer at which the lane is queued


class ByKey(Assignment):
    """The turns only serve to find an available consumer."""

    __slots__ = ("_busy", "_homes", "_lanes", "_members", "_out_of_order", "_ranges", "_runnable", "_taken", "_unknown")

    def __init__(
        self, cursor: Cursor, settings: DispatchSettings, in_flight: InFlight, ranges: KeyRanges, *, out_of_order: bool
    ) -> None:
        super().__init__(cursor, settings, in_flight)
        self._ranges = ranges
        self._out_of_order = out_of_order
        self._members = 0
        self._busy: dict[
            int, tuple[Consumer, int]
        ] = {}  # hash -> the consumer that has entries of it, and their number
        self._lanes: dict[int, _Lane] = {}  # by hash; none is empty
        self._homes: dict[Consumer, OrderedDict[_Lane, None]] = {}  # queued lanes by consumer; none is empty
        # Consumers with queued lanes, in the order of their turns; includes all that are available.
        self._runnable: OrderedDict[Consumer, None] = OrderedDict()
        self._unknown = OffsetQueue()
        self._taken: dict[int, _Lane | None] = {}  # offsets being read, with their lanes; None: out of ``_unknown``

    # -- consumers ----------------------------------------------------------------------------------------------------

    def join(self, consumer: Consumer) -> None:
        moved = self._ranges.join(consumer)
        self._members += 1
        self._place_anew(moved)

    def leave(self, consumer: Consumer) -> None:
        self._members -= 1
        self._turns.remove(consumer)
        self._place_anew(self._ranges.leave(consumer))
        self._runnable.pop(consumer, None)

    def offer(self, consumer: Consumer) -> None:
        self._turns.offer(consumer)
        if consumer in self._homes:
            self._runnable[consumer] = None

    def _place_anew(self, moved: Ranges) -> None:
        """The hashes in these ranges have another owner."""
        lanes = self._lanes
        if not lanes:
            return
        if sum(last - first + 1 for first, last in moved) <= len(lanes):
            affected = [lanes[hash] for first, last in moved for hash in range(first, last + 1) if hash in lanes]
        else:
            owner = self._ranges.owner
            affected = [lane for hash, lane in lanes.items() if lane.home is not owner(hash)]
        for lane in affected:
            self._unqueue(lane)
            self._place(lane)

    # -- waiting entries ----------------------------------------------------------------------------------------------

    def put(self, record: Record) -> None:
        self.waiting += 1
        if record.tag == UNKNOWN:
            self._unknown.put(record.first)
            return
        lane = self._lanes.get(record.tag)
        if lane is None:
            self._lanes[record.tag] = lane = _Lane(record.tag)
        lane.count += 1
        heappush(lane.offsets, record.first)
        self._place(lane)

    def acknowledged(self, record: Record) -> None:
        self.waiting -= 1
        lane = self._lanes.get(record.tag)
        if lane is not None:
            self._lower(lane)

    def freed(self, record: Record, owner: Owner) -> None:
        if self._out_of_order:
            return
        hash = record.tag
        consumer, count = self._busy[hash]
        if count > 1:
            self._busy[hash] = consumer, count - 1
            return
        del self._busy[hash]
        lane = self._lanes.get(hash)
        if lane is not None:
            self._place(lane)

    def ready(self) -> bool:
        return self._next_runnable() is not None or bool(self._unknown)

    def take(self, most: int, messages_per_entry: float) -> list[int]:
        taken = self._taken
        assert not taken
        for offset in self._unknown.take(most, self._waits):
            taken[offset] = None
        for _ in range(len(self._runnable)):
            if len(taken) >= most or not self._next_runnable():
                break
            consumer, _ = self._runnable.popitem(last=False)
            self._take_from(consumer, min(most - len(taken), max(1, int(consumer.permits / messages_per_entry))))
            if consumer in self._homes:
                self._runnable[consumer] = None
        return sorted(taken)

    def _take_from(self, consumer: Consumer, room: int) -> None:
        lanes, taken = self._homes[consumer], self._taken
        while lanes and room > 0:
            lane, _ = lanes.popitem(last=False)
            lane.home = None
            while lane.offsets and room > 0:
                offset = heappop(lane.offsets)
                if self._waits(offset):
                    taken[offset] = lane
                    lane.taken += 1
                    room -= 1
        if not lanes:
            del self._homes[consumer]

    def taken_back(self, offsets: Sequence[int]) -> None:
        taken, self._taken = self._taken, {}
        for offset, lane in taken.items():
            waits = self._waits(offset)
            if lane is None:
                if waits and self._in_flight.records[offset].tag == UNKNOWN:
                    self._unknown.put(offset)
                continue
            lane.taken -= 1
            if waits:
                heappush(lane.offsets, offset)
            if not lane.taken and self._lanes.get(lane.hash) is lane:
                self._place(lane)

    @property
    def full(self) -> bool:
        settings = self._settings
        return self.waiting >= min(settings.look_ahead_per_consumer * self._members, settings.look_ahead_max)

    # -- lanes --------------------------------------------------------------------------------------------------------

    def _place(self, lane: _Lane) -> None:
        """Queue the lane at the owner of its hash, unless the lane must stand."""
        if lane.home is not None or lane.taken:
            return
        owner = self._ranges.owner(lane.hash)
        if owner is None:
            return
        busy = self._busy.get(lane.hash)
        if busy is not None and busy[0] is not owner:
            return
        lanes = self._homes.get(owner)
        if lanes is None:
            self._homes[owner] = lanes = OrderedDict()
        lanes[lane] = None
        lane.home = owner
        if owner.available:
            self._runnable[owner] = None

    def _unqueue(self, lane: _Lane) -> None:
        home = lane.home
        if home is not None:
            lane.home = None
            lanes = self._homes[home]
            del lanes[lane]
            if not lanes:
                del self._homes[home]

    def _lower(self, lane: _Lane) -> None:
        """One of the lane's entries waits no longer."""
        lane.count -= 1
        if not lane.count:
            self._unqueue(lane)
            del self._lanes[lane.hash]
        elif len(lane.offsets) > 2 * lane.count + 16:
            lane.offsets = [offset for offset in lane.offsets if self._waits(offset)]
            heapify(lane.offsets)

    def _next_runnable(self) -> Consumer | None:
        runnable = self._runnable
        while runnable:
            consumer = next(iter(runnable))
            if consumer.available and consumer in self._homes:
                return consumer
            del runnable[consumer]
        return None

    def _lane_of(self, record: Record, hash: int) -> _Lane:
        """The lane of an entry that is being read."""
        if record.tag != UNKNOWN:
            return self._lanes[record.tag]
        record.tag = hash
        lane = self._lanes.get(hash)
        if lane is None:
            self._lanes[hash] = lane = _Lane(hash)
        lane.count += 1
        return lane

    def _keep(self, lane: _Lane, offset: int) -> None:
        """The entry has been read, but cannot be sent."""
        if self._taken.pop(offset) is not None:
            lane.taken -= 1
        heappush(lane.offsets, offset)
        self._place(lane)

    # -- read entries -------------------------------------------------------------------------------------------------

    def send(self, entries: Iterable[Entry], messages: int, size: int, *, new: bool) -> Sent:
        in_flight, busy, lanes, cursor = self._in_flight, self._busy, self._lanes, self._cursor
        reduce, owner, in_order = self._ranges.reduce, self._ranges.owner, not self._out_of_order
        parts = cursor.acknowledged.parts
        sent = Sent()
        batches = sent.batches
        for entry in entries:
            if sent.messages >= messages or sent.size >= size or (new and in_flight.blocked):
                sent.left = entry
                break
            offset = entry.offset
            hash = reduce(entry.sticky_hash)
            consumer = owner(hash)
            held = busy.get(hash)
            lane = lanes.get(hash) if new else self._lane_of(in_flight.records[offset], hash)
            if (
                consumer is None
                or consumer.permits <= 0
                or consumer.blocked
                or not consumer.writable
                or (
                    in_order
                    and (
                        (held is not None and held[0] is not consumer)
                        # An earlier entry of this hash waits.
                        or (lane is not None and (new or (lane.offsets and lane.offsets[0] < offset)))
                    )
                )
            ):
                if not new:
                    assert lane is not None
                    self._keep(lane, offset)
                elif self.full or not self.anyone():
                    sent.left = entry
                    break
                else:
                    self.put(in_flight.add(offset, entry.messages, hash))
                continue
            weight, ack_set = entry.messages, None
            if parts and offset in parts:
                weight, ack_set = cursor.remaining(offset, weight), cursor.ack_set(offset)
            record = in_flight.acquire(consumer, offset, weight, hash)
            consumer.permits -= weight
            if in_order:
                busy[hash] = (consumer, 1) if held is None else (consumer, held[1] + 1)
            if not new:
                assert lane is not None
                self.waiting -= 1
                self._lower(lane)
            batch = batches.get(consumer)
            if batch is None:
                batches[consumer] = batch = []
            batch.append(_new(Delivery, (entry, record.failures, ack_set)))
            sent.messages += weight
            sent.size += entry.size
        return sent

    def clear(self) -> None:
        self._busy.clear()
        self._lanes.clear()
        self._homes.clear()
        self._runnable.clear()
        self._unknown.clear()
        self._taken.clear()
        self.waiting = 0


class KeyShared(ManyConsumers):
    """``sticky``: consumers name the ranges of their hashes. ``out_of_order``: entries do not wait for others of their key."""

    __slots__ = ()

    def __init__(
        self,
        cursor: Cursor,
        settings: DispatchSettings,
        delayed: DelayedTracker | None = None,
        limit: RateLimit | None = None,
        *,
        sticky: bool = False,
        out_of_order: bool = False,
    ) -> None:
        assign = partial(ByKey, ranges=key_ranges(settings, sticky=sticky), out_of_order=out_of_order)
        super().__init__(assign, cursor, settings, delayed, limit)
