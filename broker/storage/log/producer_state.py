"""What a log knows of its producers: their epochs, the last five batches of each, and the open transactions.

The rules are Kafka's (ProducerAppendInfo, ProducerStateEntry): a batch must continue its producer's sequence; one of the last
five may be sent again and is a duplicate then; an old epoch is fenced; and an unknown producer may begin with any number.

A transaction is open from its first batch to its marker. No record from the first offset of the oldest open transaction on is
stable: readers of committed records stop there.

The state is guarded by the lock of its log. To write it down, ``freeze`` copies two dicts under the lock, and the copy is turned
into bytes without it. A frozen producer is replaced at its next change.

Snapshots are Kafka's ``<offset>.snapshot`` files: the state before that offset. That format has one batch of each producer, so a
Kafka broker that restarts refuses the retry of any batch but the last. Here the other four follow the part that Kafka reads (it
verifies a checksum over the whole file and ignores unknown bytes), so the window is complete after a restart.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from broker.storage.refusals import OldProducerEpoch, OutOfOrderSequence
from protocol.frames import crc32c
from protocol.kafka.records.batch import SEQUENCES

WINDOW = 5  # Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN: max.in.flight.requests.per.connection of an idempotent producer

# Producers of one partition that are remembered; about 30 MB. Kafka's only bound is producer.id.expiration.ms (a day), in which a
# client may ask for any number of ids. Beyond this number, those that have been silent the longest are forgotten first; a batch
# that such a producer sends again is not recognised as a duplicate.
MOST_PRODUCERS = 50_000
# At most this many producers are examined to find a silent one.
_LOOKS = 8


_FILE = Struct(">hIi")  # version, checksum of the rest, number of producers
_PRODUCER = Struct(
    ">qhiqiqiq"
)  # id, epoch, last sequence, last offset, offset delta, time, coordinator epoch, first txn offset
_WINDOW_MARK = b"5wi2"  # of each producer: number of older batches, largest timestamp of the last one, older batches
_OLDER_MARK = b"5win"  # without that timestamp
_BATCH = Struct(">iqiq")  # last sequence, last offset, offset delta, largest timestamp
_WINDOW = Struct(">Bq")
_VERSION = 1
_CRC_END = 6  # the checksum ends and the bytes that it covers begin


class CorruptSnapshot(Exception):
    """A snapshot file that cannot be read. Never fatal: the state can be made from an older snapshot, or from the log."""


class SeenBatch(NamedTuple):
    """``timestamp`` is the largest of the batch, or the time of the append with LogAppendTime."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Producer:
    """``next_sequence`` continues the last batch, 0 if there is none. ``age`` is the state's when the producer was made; a
    producer of an older age is frozen."""

    __slots__ = ("age", "batches", "coordinator_epoch", "epoch", "known_ms", "next_sequence", "seen_ms")

    def __init__(
        self, epoch: int, batches: list[SeenBatch], seen_ms: int, coordinator_epoch: int = -1, age: int = 0
    ) -> None:
        self.age = age
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch  # of the last marker
        self.batches = batches
        self.seen_ms = seen_ms
        self.known_ms = seen_ms  # `seen_ms` when it was last considered for being forgotten
        self.next_sequence = (batches[-1].last_sequence + 1) % SEQUENCES if batches else 0


class Frozen(NamedTuple):
    """The state at one moment, immutable."""

    producers: Mapping[int, Producer]
    open: Mapping[int, int]

    def last_offsets(self) -> dict[int, int]:
        """Producer id -> last offset. Compaction keeps the header of that batch, because of the sequence number."""
        return {key: producer.batches[-1].last_offset for key, producer in self.producers.items() if producer.batches}

    def epochs_of_markers(self) -> dict[int, int]:
        """Producer id -> epoch, for producers known only by a marker. Compaction keeps that marker."""
        return {key: producer.epoch for key, producer in self.producers.items() if not producer.batches}

    def to_snapshot(self) -> bytes:
        """The bytes of a snapshot file. Takes about 2 us for each producer, and no lock."""
        entries = bytearray()
        windows = bytearray(_WINDOW_MARK)
        for key, producer in self.producers.items():
            last = producer.batches[-1] if producer.batches else SeenBatch(-1, -1, 0, -1)
            entries += _PRODUCER.pack(
                key,
                producer.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                producer.seen_ms,
                producer.coordinator_epoch,
                self.open.get(key, -1),
            )
            windows += _WINDOW.pack(max(0, len(producer.batches) - 1), last.timestamp)
            for batch in producer.batches[:-1]:
                windows += _BATCH.pack(*batch)
        body = len(self.producers).to_bytes(4, "big") + entries + windows
        return _VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body


class ProducerState:
    """At most ``most`` producers are remembered. Those with an open transaction are never forgotten."""

    __slots__ = ("_age", "_most", "_order", "_producers", "open")

    def __init__(self, most: int = MOST_PRODUCERS) -> None:
        self._producers: dict[int, Producer] = {}
        self._order: deque[int] = deque()  # ids in the order in which they are considered for being forgotten
        self._most = most
        self._age = 0
        # Producer id -> first offset of its open transaction; ordered by offset.
        self.open: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def items(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._producers.items())

    def check(self, producer_id: int, epoch: int, sequence: int, offset_delta: int) -> SeenBatch | None:
        """None if the batch may be appended; the SeenBatch if it has been appended before.

        Raises OldProducerEpoch, OutOfOrderSequence.
        """
        producer = self._producers.get(producer_id)
        if producer is None or (producer.next_sequence == sequence and producer.epoch == epoch):
            return None
        if epoch < producer.epoch:
            raise OldProducerEpoch(
                f"Epoch {epoch} of producer {producer_id} is over; the last one seen is {producer.epoch}.",
            )
        if epoch > producer.epoch:
            if sequence == 0:
                return None
            raise OutOfOrderSequence(
                f"Producer {producer_id} begins epoch {epoch} with sequence number {sequence}.",
            )
        last_sequence = (sequence + offset_delta) % SEQUENCES
        for batch in producer.batches:
            if batch.last_sequence == last_sequence and batch.offset_delta == offset_delta:
                return batch
        raise OutOfOrderSequence(
            f"Producer {producer_id} sent sequence number {sequence} where {producer.next_sequence} was next.",
        )

    def appended(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        offset_delta: int,
        last_offset: int,
        timestamp: int,
        seen_ms: int,
    ) -> None:
        """Note a batch that is in the log."""
        last_sequence = (sequence + offset_delta) % SEQUENCES
        batch = SeenBatch(last_sequence, last_offset, offset_delta, timestamp)
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            coordinator_epoch = -1 if producer is None else producer.coordinator_epoch
            self._put(producer_id, Producer(epoch, [batch], seen_ms, coordinator_epoch, self._age))
            return
        if producer.age != self._age:
            producer = self._thawed(producer_id, producer)
        batches = producer.batches
        batches.append(batch)
        if len(batches) > WINDOW:
            del batches[0]
        producer.next_sequence = (last_sequence + 1) % SEQUENCES
        producer.seen_ms = seen_ms

    def _put(self, producer_id: int, producer: Producer) -> None:
        """Add a producer that is new or has a new epoch."""
        if producer_id not in self._producers:
            if len(self._producers) >= self._most:
                self._forget_one()
            self._order.append(producer_id)
        self._producers[producer_id] = producer

    def _forget_one(self) -> None:
        """Forget the first producer that was silent since it was last considered; if none of the first few was, the last of these
        without an open transaction."""
        producers, order = self._producers, self._order
        victim: int | None = None
        passed = []
        for _ in range(min(_LOOKS, len(order))):
            key = order.popleft()
            if key in self.open:
                passed.append(key)
                continue
            if victim is not None:
                passed.append(victim)
            victim = key
            producer = producers[key]
            if producer.seen_ms <= producer.known_ms:
                break
            producer.known_ms = producer.seen_ms  # also of a frozen producer: snapshots do not have it
        order.extend(passed)
        if victim is not None:
            del producers[victim]

    def _thawed(self, producer_id: int, producer: Producer) -> Producer:
        """Replace a frozen producer by a copy that may be changed."""
        batches = list(producer.batches)
        thawed = Producer(producer.epoch, batches, producer.seen_ms, producer.coordinator_epoch, self._age)
        thawed.known_ms = producer.known_ms
        self._producers[producer_id] = thawed
        return thawed

    def freeze(self) -> Frozen:
        """A copy of the state, to be written down without the lock."""
        self._age += 1
        return Frozen(self._producers.copy(), self.open.copy())

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def began(self, producer_id: int, offset: int) -> None:
        """Note a batch of a transaction that is in the log; the first batch opens it."""
        self.open.setdefault(producer_id, offset)

    def ended(self, producer_id: int, epoch: int, coordinator_epoch: int, seen_ms: int) -> int | None:
        """Note a marker that is in the log. Returns the transaction's first offset, or None if none was open.

        A marker may have a higher epoch than the batches of the transaction: from then on the old epoch is fenced here.
        """
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch < epoch:
            self._put(producer_id, Producer(epoch, [], seen_ms, coordinator_epoch, self._age))
        else:
            if producer.age != self._age:
                producer = self._thawed(producer_id, producer)
            producer.seen_ms = seen_ms
            producer.coordinator_epoch = coordinator_epoch
        return self.open.pop(producer_id, None)

    def first_unstable(self) -> int | None:
        """The first offset of the oldest open transaction; None if none is open."""
        return next(iter(self.open.values()), None)

    def expire(self, now_ms: int, max_age_ms: int) -> int:
        """Forget the producers that were silent for ``max_age_ms`` and have no open transaction. Returns their number."""
        old = [
            key
            for key, producer in self._producers.items()
            if now_ms - producer.seen_ms >= max_age_ms and key not in self.open
        ]
        for key in old:
            del self._producers[key]
        if old:
            self._order = deque(key for key in self._order if key in self._producers)
        return len(old)

    @classmethod
    def from_snapshot(cls, data: bytes) -> "ProducerState":
        """Raises CorruptSnapshot."""
        try:
            return cls._parse(data)
        except (StructError, IndexError) as error:
            raise CorruptSnapshot(f"a snapshot that is cut short: {error}") from error

    @classmethod
    def _parse(cls, data: bytes) -> "ProducerState":
        version, crc, count = _FILE.unpack_from(data)
        if version != _VERSION:
            raise CorruptSnapshot(f"a snapshot of version {version}")
        if crc32c(data[_CRC_END:]) != crc:
            raise CorruptSnapshot("a snapshot that does not match its checksum")
        state = cls()
        at = _FILE.size
        rows = []
        for _ in range(count):
            rows.append(_PRODUCER.unpack_from(data, at))
            at += _PRODUCER.size
        mark = data[at : at + len(_WINDOW_MARK)]  # a snapshot that Kafka wrote has none
        at += len(_WINDOW_MARK)
        opened: list[tuple[int, int]] = []
        for key, epoch, sequence, offset, delta, seen_ms, coordinator_epoch, first_offset in rows:
            batches = []
            timestamp = seen_ms  # as Kafka's snapshots have it
            if mark in (_WINDOW_MARK, _OLDER_MARK):
                older = data[at]
                if mark == _WINDOW_MARK:
                    _, timestamp = _WINDOW.unpack_from(data, at)
                at += _WINDOW.size if mark == _WINDOW_MARK else 1
                for _ in range(older):
                    batches.append(SeenBatch._make(_BATCH.unpack_from(data, at)))
                    at += _BATCH.size
            if offset >= 0:
                batches.append(SeenBatch(sequence, offset, delta, timestamp))
            state._producers[key] = Producer(epoch, batches, seen_ms, coordinator_epoch)
            state._order.append(key)
            if first_offset >= 0:
                opened.append((first_offset, key))
        state.open = {key: first_offset for first_offset, key in sorted(opened)}
        return state
