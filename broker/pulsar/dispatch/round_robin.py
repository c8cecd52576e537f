"""Shared: consumers take turns in getting entries. Pure.

``Shared`` is the dispatcher (``many_consumers.py``). A turn (``assignment.py``) ends after ``turn_messages``, or with the
consumer's permits, or when it has too many unacknowledged messages. A batch is never split, so permits may become negative.
Waiting entries are sent again in the order of their offsets.

All chunks of a message go to the same consumer, because only that consumer can put them together (``Chunks``). If it cannot take
a chunk now, the chunk is *parked*: it waits until that consumer is available again, or has left. The number of parked chunks is
bounded.

The table of chunked messages is bounded as well. A producer that begins messages and never ends them evicts the oldest, and
their later chunks go to any consumer; the client that gets them drops the incomplete message.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from broker.delivery.in_flight import InFlight, Owner, Record
from broker.delivery.sorted_offsets import OffsetQueue
from broker.pulsar.dispatch.assignment import Assignment, Sent
from broker.pulsar.dispatch.dispatcher import Consumer, Delivery, DispatchSettings
from broker.pulsar.dispatch.many_consumers import ManyConsumers
from broker.pulsar.entry import Chunk, Entry
from broker.pulsar.subscriptions.cursor import Cursor

_MOST = 10_000


class Chunks:
    __slots__ = ("_consumers", "_most")

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        # By the hash of the uuid, which may be long; Python's hash of bytes cannot be foreseen by clients.
        self._consumers: dict[int, Consumer] = {}

    def consumer(self, chunk: Chunk) -> Consumer | None:
        """The consumer that has the previous chunks of the message. None: unknown, or there is none."""
        return self._consumers.get(hash(chunk.uuid))

    def sent(self, chunk: Chunk, consumer: Consumer) -> None:
        uuid = hash(chunk.uuid)
        if chunk.number >= chunk.total - 1:
            self._consumers.pop(uuid, None)
            return
        if uuid not in self._consumers and len(self._consumers) >= self._most:
            del self._consumers[next(iter(self._consumers))]
        self._consumers[uuid] = consumer


_new = tuple.__new__
# The tag of parked records.
_PARKED = 1


class RoundRobin(Assignment):
    __slots__ = ("_chunks", "_parked", "_parked_count", "_queue")

    def __init__(self, cursor: Cursor, settings: DispatchSettings, in_flight: InFlight) -> None:
        super().__init__(cursor, settings, in_flight)
        self._queue = OffsetQueue()  # waiting entries that are not parked
        self._chunks: Chunks | None = None  # few topics have chunked messages
        self._parked: dict[Consumer, list[int]] = {}
        self._parked_count = 0

    # -- consumers ----------------------------------------------------------------------------------------------------

    def join(self, consumer: Consumer) -> None:
        pass

    def leave(self, consumer: Consumer) -> None:
        self._turns.remove(consumer)
        self._unpark(consumer)

    def offer(self, consumer: Consumer) -> None:
        self._turns.offer(consumer)
        if consumer in self._parked:
            self._unpark(consumer)

    # -- waiting entries ----------------------------------------------------------------------------------------------

    def put(self, record: Record) -> None:
        self.waiting += 1
        self._queue.put(record.first)

    def acknowledged(self, record: Record) -> None:
        self.waiting -= 1

    def freed(self, record: Record, owner: Owner) -> None:
        pass

    def ready(self) -> bool:
        return bool(self._queue)

    def take(self, most: int, messages_per_entry: float) -> list[int]:
        return self._queue.take(most, self._waits)

    def taken_back(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            record = self._in_flight.records.get(offset)
            if record is not None and record.owner is None and record.tag != _PARKED:
                self._queue.put(offset)

    @property
    def full(self) -> bool:
        return self._parked_count >= self._settings.look_ahead_max

    def _park(self, entry: Entry, record: Record | None, consumer: Consumer) -> None:
        if record is None:
            self._in_flight.add(entry.offset, entry.messages, _PARKED)
            self.waiting += 1
        else:
            record.tag = _PARKED
        self._parked.setdefault(consumer, []).append(entry.offset)
        self._parked_count += 1

    def _unpark(self, consumer: Consumer) -> None:
        offsets = self._parked.pop(consumer, [])
        self._parked_count -= len(offsets)
        for offset in offsets:
            record = self._in_flight.records.get(offset)
            if record is not None:
                record.tag = 0
                self._queue.put(offset)

    def clear(self) -> None:
        self._queue.clear()
        self._chunks = None
        self._parked.clear()
        self._parked_count = self.waiting = 0

    # -- read entries -------------------------------------------------------------------------------------------------

    def send(self, entries: Iterable[Entry], messages: int, size: int, *, new: bool) -> Sent:
        in_flight, turns, cursor = self._in_flight, self._turns, self._cursor
        parts, turn_messages = cursor.acknowledged.parts, self._settings.turn_messages
        sent = Sent()
        batches = sent.batches
        turn: Consumer | None = None
        batch: list[Delivery] = []
        room = 0  # remaining messages of the turn
        for entry in entries:
            if sent.messages >= messages or sent.size >= size or (new and in_flight.blocked):
                sent.left = entry
                break
            if room <= 0:
                if turn is not None:
                    turns.end_turn(turn)
                turn = turns.first()
                if turn is None:
                    sent.left = entry
                    break
                room = min(turn_messages, turn.permits, in_flight.room(turn))
                batch = batches.setdefault(turn, [])
            assert turn is not None
            offset, weight, ack_set = entry.offset, entry.messages, None
            if parts and offset in parts:
                weight, ack_set = cursor.remaining(offset, weight), cursor.ack_set(offset)
            consumer = turn
            if entry.chunk is not None:
                consumer = self._who_has_chunks(entry.chunk, turn)
                if not consumer.available:
                    self._park(entry, None if new else in_flight.records[offset], consumer)
                    continue
                assert self._chunks is not None
                self._chunks.sent(entry.chunk, consumer)
            record = in_flight.acquire(consumer, offset, weight)
            consumer.permits -= weight
            delivery = _new(Delivery, (entry, record.failures, ack_set))
            if consumer is turn:
                room -= weight
                batch.append(delivery)
            else:
                batches.setdefault(consumer, []).append(delivery)
            if not new:
                self.waiting -= 1
            sent.messages += weight
            sent.size += entry.size
        if turn is not None:
            turns.end_turn(turn)
        return sent

    def _who_has_chunks(self, chunk: Chunk, turn: Consumer) -> Consumer:
        if self._chunks is None:
            self._chunks = Chunks()
        consumer = self._chunks.consumer(chunk)
        return turn if consumer is None or consumer.left else consumer


# The cursor is read from ``acknowledged_before`` on.
Shared = partial(ManyConsumers, RoundRobin)
