"""One topic partition: a row of segments, of which the last one grows.

``Log`` is what the rest of the broker holds. It puts together the components that do the work, each of them an attribute:
``state`` (with the locks, and what may be read without a lock), ``appender``, ``reader``, ``times``, ``durability``,
``trimming``, ``rolling``, ``transactions`` and ``watchers``. ``Log`` itself has what handlers often need: append, read, watch,
and the offsets. Any thread may call.

A record for which ``append`` has returned survives the death of the process; a record below ``durable_offset`` survives the
machine's. Retention, compaction, recovery and the background threads stand in modules of their own.
"""

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import attrs

from broker.errors import StorageError
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk
from broker.runtime.entropy import Entropy
from broker.runtime.open_files import OpenFiles
from broker.runtime.threads import Lock
from broker.storage import partition_dir
from broker.storage.log.append import SLOW_WRITE_S, Appender
from broker.storage.log.durability import Durability
from broker.storage.log.log_config import LogConfig
from broker.storage.log.producer_state import ProducerState
from broker.storage.log.reading import IndexRepair, LogReader
from broker.storage.log.state import LoadedLog, LogState, View, Watchers
from broker.storage.log.times import TimeLookup
from broker.storage.log.transactions import Transactions
from broker.storage.log.trimming import Rolling, Trimming
from broker.storage.segments.segment import MAX_TIMESTAMP, Segment


class Tiers(Protocol):
    """Where the segments of a log are, if there is an object store."""

    def earliest_local(self, log: "Log") -> int:
        """The first offset on the local disk."""

    def latest_tiered(self, log: "Log") -> int | None:
        """The last offset in the store, up to which everything is there; None if nothing is."""

    def local_bytes(self, log: "Log") -> int:
        """The bytes of its segments on the local disk. Asks the disk."""

    def forget_log(self, log: "Log") -> None:
        """Another node has deleted its topic, and removes what is on the local disk. Raises StorageError."""


@attrs.frozen(kw_only=True)
class Surroundings:
    """What a log needs of the storage around it."""

    disk: Disk
    clock: Clock
    entropy: Entropy
    files: OpenFiles
    # Have another thread fsync this log soon.
    flush_soon: Callable[["Log"], None]
    # Have another thread ask the operating system to begin to write this log.
    begin_soon: Callable[["Log"], None]
    # Have another thread wake the log's watchers soon.
    wake_soon: Callable[["Log"], None]
    # Make the log start offset durable before this returns.
    save_log_start: Callable[["Log"], None]
    # Make durable that compaction is about to make gaps in this log, before this returns.
    save_cleaner_offset: Callable[["Log"], None]
    # Told how long (s) each fsync of data took.
    observe_fsync: Callable[[float], None]
    # Told what a log took to open: how many bytes were scanned, and cut off.
    opened: Callable[[int, int], None]
    # Remove these files (already renamed) after this many ms.
    delete_later: Callable[[list[str], int], None]
    tier: Tiers | None = None
    # Held while a batch that is large inside (``inspection.py``) is decompressed to be stored. Requests that take this lock or
    # either of the next two have lanes in which they follow each other, so that no handler waits for a lock.
    large: Lock = attrs.field(factory=Lock)
    # The same to find a record by its time.
    large_sought: Lock = attrs.field(factory=Lock)
    # The same for people who look at records.
    large_shown: Lock = attrs.field(factory=Lock)
    # Held while an entry that is large inside (``inspection.py``) is taken apart for a consumer.
    large_entries: Lock = attrs.field(factory=Lock)


class Log:
    """Offsets: ``log_start_offset`` is the first that is served, ``log_end_offset`` the next to be assigned. ``high_watermark``
    is the end of what consumers see; without replicas it is the log end offset. Everything below ``durable_offset`` is
    fsynced, and below ``recovery_point`` so durably that recovery need not look at it.

    ``append``, ``read``, ``watch`` and ``unwatch`` are the components' own methods, and handlers may read ``state``, so that a
    produce or a fetch pays for no layer in between. The state is changed only through the methods of the components.
    """

    __slots__ = (
        "_leader_epochs",
        "append",
        "append_run",
        "appender",
        "around",
        "decompresses",
        "dir",
        "durability",
        "leader_epoch",
        "partition",
        "read",
        "reader",
        "rolling",
        "state",
        "times",
        "topic",
        "topic_id",
        "transactions",
        "trimming",
        "unwatch",
        "watch",
        "watchers",
    )

    def __init__(
        self, around: Surroundings, directory: str, topic: str, partition: int, topic_id: uuid.UUID, config: LogConfig
    ) -> None:
        self.around = around
        self.dir = directory
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.leader_epoch = 0
        self.state = state = LogState(
            disk=around.disk,
            clock=around.clock,
            directory=directory,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            config=config,
            wake_soon=partial(around.wake_soon, self),
            observe_fsync=around.observe_fsync,
        )
        # (epoch, start offset) of each leader epoch; the last is the current one.
        self._leader_epochs: Sequence[tuple[int, int]] = [(0, 0)]
        self.watchers = Watchers()
        self.reader = LogReader(state, IndexRepair(state))
        self.times = TimeLookup(state, self.reader, around.large_sought)
        self.durability = Durability(state, self.watchers)
        self.trimming = Trimming(
            state, self.reader, self.durability, partial(around.save_log_start, self), around.delete_later
        )
        self.rolling = Rolling(state, around.files, around.entropy, partial(around.flush_soon, self))
        self.transactions = Transactions(state, self.rolling, self.watchers)
        self.appender = Appender(
            state,
            self.rolling,
            self.transactions,
            self.watchers,
            self.durability.flush_appended,
            around.large,
            self.allow_entries,
            partial(around.begin_soon, self),
            partial(around.flush_soon, self),
        )
        # Whether appending may take long, because the records of each batch are looked at.
        self.decompresses = config.decompresses
        self.append = self.appender.append
        self.append_run = self.appender.append_run
        self.read = self.reader.read
        self.watch = self.watchers.watch
        self.unwatch = self.watchers.unwatch

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    # -- opening -------------------------------------------------------------------------------------------------------

    def start(self, loaded: LoadedLog, recovery_point: int, first_dirty_offset: int = 0, dense_from: int = 0) -> None:
        """Begin to serve what recovery has loaded. Only what is before the checkpoint's ``recovery_point`` is known to be
        durable, so a log that shows only durable records is fsynced first. Raises StorageError if that fails; the log is
        offline then."""
        state = self.state
        with state.lock:
            state.first_dirty_offset = min(first_dirty_offset, loaded.log_end_offset)
            state.dense_from = min(dense_from, loaded.log_end_offset)
            state.active = loaded.segments[-1]
            state.set_segments(tuple(loaded.segments))
            state.log_start_offset = loaded.log_start_offset
            state.producers = loaded.producers
            state.has_entries = loaded.has_entries
            state.first_unstable = state.producers.first_unstable()
            state.first_offset = loaded.log_end_offset
            self.durability.start(loaded, recovery_point)
            state.publish(loaded.log_end_offset, state.active)
            if state.active.size:
                first = state.active.header(0, state.active.size)
                state.active.first_timestamp = first[MAX_TIMESTAMP] if first else -1
                self.rolling.set_roll_time(state.active)
            state.dir_dirty = True  # an earlier process may have left names that are not durable
            state.offline = None
            if self.config.shows_durable:
                whole = state.durable_offset == loaded.log_end_offset
                end = loaded.log_end_offset if whole else loaded.log_start_offset
                last = loaded.segments[-1 if whole else 0]
                state.high_watermark, state.tail = end, (end, last, last.size if whole else 0)
        self.make_visible()

    def mark_unreadable(self, error: StorageError) -> None:
        """The log could not be opened: every use raises this error."""
        self.state.offline = error

    def set_leader_epochs(self, epochs: Sequence[tuple[int, int]]) -> None:
        """(epoch, start offset) of each leader epoch, the last is current. Before the log is served."""
        self._leader_epochs = epochs
        self.leader_epoch = self.state.leader_epoch = epochs[-1][0]

    # -- settings ------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        """The topic's settings in force. One thread at a time assigns it, to change them."""
        return self.state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        state = self.state
        with state.lock:
            state.config = config
            if state.active is not None and not config.shows_durable and state.offline is None:
                state.publish(state.log_end_offset, state.active)
        self.watchers.wake()
        self.decompresses = config.decompresses
        self.appender.configure(config)
        self.rolling.configure(config)

    def make_visible(self) -> None:
        """Have consumers see everything in the log. With ``visible=durable`` this waits for the disk. Raises StorageError."""
        state = self.state
        if state.high_watermark < state.log_end_offset:
            self.durability.show_all()

    # -- where it stands: read without a lock --------------------------------------------------------------------------

    @property
    def is_stuck(self) -> bool:
        """A write has been under way for so long that the next append would wait, too."""
        since = self.state.writing_since
        return bool(since) and self.state.clock.monotonic() - since > 10 * SLOW_WRITE_S

    @property
    def log_start_offset(self) -> int:
        return self.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.state.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The end of what a reader of committed transactions sees."""
        state = self.state
        end = state.high_watermark  # first: a transaction that begins now begins here or later
        first = state.first_unstable
        return end if first is None else min(end, max(first, state.log_start_offset))

    @property
    def durable_offset(self) -> int:
        return self.state.durable_offset

    @property
    def recovery_point(self) -> int:
        return self.state.recovery_point

    @property
    def saved_point(self) -> int:
        """The recovery point in the checkpoint file."""
        return self.state.saved_point

    @property
    def first_dirty_offset(self) -> int:
        """Compaction has seen the records before this offset."""
        return self.state.first_dirty_offset

    @property
    def dense_from(self) -> int:
        """No gap between offsets reaches beyond this offset."""
        return self.state.dense_from

    @property
    def offline(self) -> StorageError | None:
        """The error that every use raises since the machine failed, or None."""
        return self.state.offline

    @property
    def refused_for_room_at(self) -> float | None:
        """When (monotonic, s) the disk last had no room for records; None if there was always room, or has been since."""
        full = self.state.full_since
        return None if full is None or full[0] != self.state.log_end_offset else full[1]

    @property
    def deleted(self) -> bool:
        return self.state.deleted

    @property
    def tail(self) -> tuple[int, Segment | None, int]:
        """High watermark, its segment and its position there, as published together."""
        return self.state.tail

    @property
    def written_end(self) -> tuple[int, Segment | None, int]:
        """The same of the log end offset, even while readers do not see it yet. The parts belong together under ``lock``."""
        state = self.state
        active = state.active
        if active is None or not state.config.shows_durable:
            return state.tail
        return state.log_end_offset, active, active.size

    @property
    def view(self) -> View:
        """The row of segments."""
        return self.state.view

    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.view.segments)

    def local_bytes(self) -> int:
        """The bytes on the local disk, which this may ask."""
        return self.size_bytes() if self.around.tier is None else self.around.tier.local_bytes(self)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest leader epoch that is at most ``epoch``, the offset at which it ended); (-1, -1) if unknown."""
        if epoch == self.leader_epoch:
            return epoch, self.log_end_offset
        if epoch > self.leader_epoch:
            return -1, -1
        largest = -1
        for started, start in self._leader_epochs:
            if started > epoch:
                return (largest, start) if largest >= 0 else (epoch, start)
            largest = started
        return largest, self.log_end_offset  # it leads in a later epoch, but has no records of it

    # -- under a lock --------------------------------------------------------------------------------------------------

    @property
    def lock(self) -> Lock:
        """Guards the end of the log, the row of segments and ``producers``."""
        return self.state.lock

    @property
    def files_lock(self) -> Lock:
        """Held while files of closed segments are renamed; taken before ``lock``."""
        return self.state.files_lock

    @property
    def producers(self) -> ProducerState:
        """Changed under ``lock``."""
        return self.state.producers

    # -- entries -------------------------------------------------------------------------------------------------------

    @property
    def has_entries(self) -> bool:
        """There may be entries among the batches (``protocol/kafka/records/entry.py``), which Kafka's clients get as records."""
        return self.state.has_entries

    def allow_entries(self) -> None:
        """Make it durable that the log may have entries. The first time, this waits for the disk. Raises StorageError, Refusal.

        The first append of an entry does it, too; a caller whose thread must not wait calls this before.
        """
        state = self.state
        with state.files_lock:
            if state.has_entries:
                return
            if state.offline is not None:
                raise state.why_unavailable()
            try:
                partition_dir.mark_entries(state.disk, state.dir)
            except OSError as error:
                if state.deleted:
                    raise state.why_unavailable() from error
                raise state.failed("the mark that it has entries could not be written", error) from error
            state.has_entries = True

    # -- failures and the end ------------------------------------------------------------------------------------------

    def mark_deleted(self) -> None:
        """The topic is being deleted: nothing more is read or written, and watchers are told."""
        state = self.state
        with state.lock:
            state.deleted = True
            state.offline = StorageError(f"{state.topic}-{state.partition} was deleted")
        self.watchers.wake()

    def moved_to(self, directory: str) -> None:
        """Note that the files are in this directory now, to be removed later. Their descriptors are closed."""
        state = self.state
        with state.lock:  # no append is under way
            for segment in state.view.segments:
                segment.moved_to(directory)
