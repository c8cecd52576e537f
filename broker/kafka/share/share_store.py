"""Keeps the state of share partitions in the catalogue, as documents of the kind ``share-partition``.

Whoever has changed a share partition calls ``save`` and is told when that is durable, or ``changed``, and it is written within a
second. The thread ``catalogue-writer`` asks for the state when it writes, so all acknowledgements of a share partition that
arrive during one fsync become one row, and those of many share partitions one transaction, together with committed offsets and
groups. A state that could not be written stays changed: it is tried again every second, and with the next ``save``.

Any thread. The lock guards the tables; nothing is called under it.

What is stored of a share partition, as bytes: its start offset, what is done with above it, and failed deliveries. Pure.

The head is fixed; then come two lists of numbers, each relative to the one before: the ranges that are done with (hole, length),
and the ranges in flight with failed deliveries (hole, length, count). Each number takes as many bytes as the largest needs. A
share partition with the usual bound of 2,000 records takes 30 bytes as a rule, and 10 KB if every other record is done with.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from struct import Struct, error, pack, unpack_from
from typing import NamedTuple, Protocol

from broker.errors import StorageError
from broker.kafka.share.share_partition import SharePartition, ShareSettings
from broker.log import EventLimit, get_logger
from broker.metadata.catalogue import Catalogue
from broker.metadata.writer import CatalogueWriter, Done
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer

_VERSION = 1
# Version, bytes of a number, state epoch, start offset, how many ranges of each kind.
_HEAD = Struct(">BBiqII")
_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}


class ShareState(NamedTuple):
    """A copy, so that who encodes it needs no lock."""

    state_epoch: int
    start: int
    done: Sequence[tuple[int, int]]  # first offset, the one after the last
    failed: Sequence[tuple[int, int, int]]  # the same, and how often

    @property
    def end(self) -> int:
        """The offset after the last one that it knows of."""
        return max(self.start, *(rows[-1][1] for rows in (self.done, self.failed) if rows), 0)

    def encode(self) -> bytes:
        numbers: list[int] = []
        at = self.start
        for first, end in self.done:
            numbers += (first - at, end - first)
            at = end
        at = self.start
        for first, end, count in self.failed:
            numbers += (first - at, end - first, count)
            at = end
        most = max(numbers, default=0)
        width = next(width for width in _WIDTHS if most < 1 << 8 * width)
        head = _HEAD.pack(_VERSION, width, self.state_epoch, self.start, len(self.done), len(self.failed))
        return head + pack(f">{len(numbers)}{_WIDTHS[width]}", *numbers)


def state_of(partition: SharePartition) -> ShareState:
    failed = [(first, last + 1, failures) for first, last, _, failures in partition.in_flight() if failures]
    return ShareState(partition.state_epoch, partition.start, list(partition.done()), failed)


def decode(state: bytes) -> ShareState:
    """Raises StorageError for what ``encode`` has not written."""
    try:
        version, width, epoch, start, done_count, failed_count = _HEAD.unpack_from(state)
        if version != _VERSION or width not in _WIDTHS:
            raise ValueError(f"version {version}")
        count = 2 * done_count + 3 * failed_count
        if len(state) != _HEAD.size + count * width:
            raise ValueError("its length is not what its head says")
        numbers = unpack_from(f">{count}{_WIDTHS[width]}", state, _HEAD.size)
        edges = list(accumulate(numbers[: 2 * done_count], initial=start))
        done = list(zip(edges[1::2], edges[2::2], strict=True))
        failed = []
        at = start
        for place in range(2 * done_count, count, 3):
            first = at + numbers[place]
            at = first + numbers[place + 1]
            failed.append((first, at, numbers[place + 2]))
    except (error, ValueError) as fault:
        raise StorageError(f"The catalogue has a share partition that cannot be read: {fault}.") from None
    return ShareState(epoch, start, done, failed)


def restored(state: ShareState, settings: ShareSettings, log_end: int) -> SharePartition:
    """The share partition, with nothing acquired. Raises StorageError."""
    partition = SharePartition(state.start, settings, state.state_epoch)
    try:
        partition.restore(state.done, state.failed, log_end)
    except ValueError as fault:
        raise StorageError(f"The catalogue has a share partition that cannot be read: {fault}.") from None
    return partition


log = get_logger("kafka")

KIND = "share-partition"
INTERVAL_S = 1.0


class Key(NamedTuple):
    group_id: str
    topic_id: bytes
    partition: int

    @property
    def text(self) -> str:
        return f"{self.group_id}\0{self.topic_id.hex()}\0{self.partition}"

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Raises ValueError."""
        group_id, topic_id, partition = text.rsplit("\0", 2)
        return cls(group_id, bytes.fromhex(topic_id), int(partition))


class Stored(Protocol):
    """A share partition as it is stored."""

    @property
    def key(self) -> Key: ...

    def state(self) -> tuple[int, bytes] | None:
        """The version of the state and its bytes; None: it is forgotten."""

    def saved(self, version: int, state: bytes) -> None:
        """The state of this version is durable."""


class ShareStore:
    def __init__(self, writer: CatalogueWriter, clock: Clock, timer: Timer) -> None:
        self._writer = writer
        self._clock = clock
        self._timer = timer
        self._lock = Lock()
        self._waiting: dict[Stored, list[Done]] = {}  # in the writer's queue, and who waits for that
        self._changed: dict[Stored, None] = {}  # to be written at the next tick
        self._deleting: Counter[Key] = Counter()  # to be deleted by what is in the writer's queue
        self._doomed: dict[Key, None] = {}  # to be deleted at the next tick, because it has failed
        self._ticking = False
        self._failures = EventLimit()
        self.written = 0  # rows

    def save(self, stored: Stored, done: Done) -> None:
        """Write it now, and call ``done`` on the writer's thread when what it has at this moment is durable, or could not be
        written."""
        with self._lock:
            self._changed.pop(stored, None)
            waiting = self._waiting.get(stored)
            if waiting is not None:
                waiting.append(done)
                return
            self._waiting[stored] = [done]
        self._enqueue(stored)

    def changed(self, stored: Stored) -> None:
        """Write it within a second."""
        with self._lock:
            self._changed[stored] = None
        self._tick_later()

    def delete(self, keys: Iterable[Key], done: Done) -> None:
        """Remove these rows; their ``state`` is None from now on. A deletion that has failed is tried again every second, too."""
        keys = list(keys)
        with self._lock:
            self._deleting.update(keys)

        def delete(catalogue: Catalogue) -> None:
            catalogue.alter_documents([(KIND, key.text, None) for key in keys])

        def deleted(error: StorageError | None) -> None:
            with self._lock:
                self._deleting.subtract(keys)
                for key in keys:
                    if not self._deleting[key]:
                        del self._deleting[key]
            if error is not None:
                self._note(error)
                with self._lock:
                    self._doomed.update(dict.fromkeys(keys))
                self._tick_later()
            done(error)

        self._writer.change(delete, deleted)

    def is_being_deleted(self, key: Key) -> bool:
        """A row of this key that is written now, not by the writer, would be deleted as well."""
        return key in self._deleting

    def spare(self, key: Key) -> None:
        """There is a new share partition of this key: an older deletion that has failed is not tried again."""
        if self._doomed:
            with self._lock:
                self._doomed.pop(key, None)

    def flush(self) -> None:
        """Hand everything that is left to the writer, which then has to be flushed."""
        self._tick()

    def _tick_later(self) -> None:
        with self._lock:
            if self._ticking:
                return
            self._ticking = True
        self._timer.at(self._clock.monotonic() + INTERVAL_S, self._tick)

    def _tick(self) -> None:
        with self._lock:
            self._ticking = False
            due = [stored for stored in self._changed if stored not in self._waiting]
            self._changed.clear()
            self._waiting.update({stored: [] for stored in due})
            doomed, self._doomed = self._doomed, {}
        if doomed:
            self.delete(doomed, _ignore)
        for stored in due:
            self._enqueue(stored)

    def _enqueue(self, stored: Stored) -> None:
        write = _Write(self, stored)
        self._writer.change(write, write.done)

    def _take_waiting(self, stored: Stored) -> list[Done]:
        """The state is about to be asked for: who comes later waits for the next time."""
        with self._lock:
            return self._waiting.pop(stored, [])

    def _note(self, error: StorageError) -> None:
        left_out = self._failures.take(self._clock.monotonic())
        if left_out is not None:
            log.error("share_state_not_saved", error=str(error), unlogged_before=left_out)

    def _failed(self, stored: Stored, error: StorageError) -> None:
        self._note(error)
        self.changed(stored)


class _Write:
    """One state on its way into the catalogue. The writer may call it twice: together with others, and then by itself."""

    __slots__ = ("_asked", "_state", "_store", "_stored", "_waiting")

    def __init__(self, store: ShareStore, stored: Stored) -> None:
        self._store = store
        self._stored = stored
        self._waiting: list[Done] = []
        self._asked = False
        self._state: tuple[int, bytes] | None = None

    def __call__(self, catalogue: Catalogue) -> None:
        if not self._asked:
            self._asked = True
            self._waiting = self._store._take_waiting(self._stored)
            self._state = self._stored.state()
        if self._state is not None:
            catalogue.alter_documents([(KIND, self._stored.key.text, self._state[1])])

    def done(self, error: StorageError | None) -> None:
        if error is not None:
            self._store._failed(self._stored, error)
        elif self._state is not None:
            self._store.written += 1
            self._stored.saved(*self._state)
        for done in self._waiting:
            done(error)


def load(catalogue: Catalogue) -> dict[Key, bytes]:
    """All rows. Raises StorageError."""
    rows = {}
    for text, body in catalogue.load_documents(KIND):
        try:
            rows[Key.parse(text)] = body
        except ValueError:
            log.error("share_state_unreadable", key=text)
    return rows


def delete_now(catalogue: Catalogue, keys: Iterable[Key]) -> None:
    """Remove rows at the start. Raises StorageError."""
    catalogue.alter_documents([(KIND, key.text, None) for key in keys])


def _ignore(_: StorageError | None) -> None:
    """The next tick finds out."""
