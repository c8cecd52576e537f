"""One topic partition: a row of segments, of which the last one grows.

``Log`` is what the rest of the broker holds. It does little itself: its state is in ``state.py``, with the locks and what may be
read without one, and a component does each part of the work (``append.py``, ``reading.py``, ``times.py``, ``durability.py``,
``trimming.py``, ``transactions.py``, ``state.py``). Any thread may call.

What it promises: a record that ``append`` has returned for survives the death of the process; one below ``durable_offset``
survives the machine's. What retention, compaction, recovery and the background threads do stands in modules of their own.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import attrs

from broker.errors import Refusal, StorageError
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk, File
from broker.runtime.entropy import Entropy
from broker.runtime.open_files import OpenFiles
from broker.runtime.threads import Lock
from broker.storage import partition_dir
from broker.storage.log.append import Appender
from broker.storage.log.durability import Durability, Sync
from broker.storage.log.log_config import LogConfig
from broker.storage.log.producer_state import ProducerState
from broker.storage.log.reading import IndexRepair, LogReader, ReadResult
from broker.storage.log.state import LoadedLog, LogState, Sums, View, Watchers
from broker.storage.log.times import TimeLookup
from broker.storage.log.transactions import ProducerDescription, Transactions
from broker.storage.log.trimming import Rolling, Trimming
from broker.storage.segments.index_file import AbortedTransaction
from broker.storage.segments.segment import MAX_TIMESTAMP, Segment

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Surroundings:
    """What a log needs of the storage around it."""

    disk: Disk
    clock: Clock
    entropy: Entropy
    files: OpenFiles
    # fsync this log soon, on another thread.
    flush_soon: Callable[["Log"], None]
    # Have the operating system begin to write what the log has, on another thread.
    begin_soon: Callable[["Log"], None]
    # Wake the log's watchers soon, on another thread.
    wake_soon: Callable[["Log"], None]
    # Make the log start offset durable before this returns.
    save_log_start: Callable[["Log"], None]
    # Make durable that compaction is about to make gaps in this log.
    save_cleaner_offset: Callable[["Log"], None]
    # Told how long (s) each fsync of data took.
    observe_fsync: Callable[[float], None]
    # Told what a log took to open: how many bytes were scanned, and cut off.
    opened: Callable[[int, int], None]
    # Remove these files (already renamed) after so many ms.
    delete_later: Callable[[list[str], int], None]
    # Held while a batch is decompressed that is large inside (``inspection.py``), to be stored. Requests that take this lock or
    # one of the next two have lanes in which they follow each other, so that no handler waits for a lock.
    large: Lock = attrs.field(factory=Lock)
    # The same to find a record by its time.
    large_sought: Lock = attrs.field(factory=Lock)
    # The same for people who look at records.
    large_shown: Lock = attrs.field(factory=Lock)
    # Held while an entry is taken apart that is large inside, for a consumer (``inspection.py``).
    large_entries: Lock = attrs.field(factory=Lock)


class Log:
    """Offsets: ``log_start_offset`` is the first that is served, ``log_end_offset`` the next to be given. ``high_watermark``
    is the end of what consumers see; without replicas it is the log end offset. Everything below ``durable_offset`` is
    fsynced, and below ``recovery_point`` so durably that recovery need not look at it.

    ``append``, ``read``, ``watch`` and ``unwatch`` are the components' own methods, and handlers may read ``state``, so that a
    produce or a fetch pays for no layer in between. Other threads change the state only through methods.
    """

    __slots__ = (
        "_appender",
        "_durability",
        "_leader_epochs",
        "_reader",
        "_rolling",
        "_times",
        "_transactions",
        "_trimming",
        "_watchers",
        "append",
        "append_run",
        "around",
        "decompresses",
        "dir",
        "leader_epoch",
        "partition",
        "read",
        "state",
        "topic",
        "topic_id",
        "unwatch",
        "watch",
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
        # (epoch, start offset) of each leader epoch; the last one is the current one.
        self._leader_epochs: Sequence[tuple[int, int]] = [(0, 0)]
        self._watchers = Watchers()
        self._reader = LogReader(state, IndexRepair(state))
        self._times = TimeLookup(state, self._reader, around.large_sought)
        self._durability = Durability(state, self._watchers)
        self._trimming = Trimming(
            state, self._reader, self._durability, partial(around.save_log_start, self), around.delete_later
        )
        self._rolling = Rolling(state, around.files, around.entropy, partial(around.flush_soon, self))
        self._transactions = Transactions(state, self._rolling, self._watchers)
        self._appender = Appender(
            state,
            self._rolling,
            self._transactions,
            self._watchers,
            self._durability.flush_appended,
            around.large,
            self.allow_entries,
            partial(around.begin_soon, self),
            partial(around.flush_soon, self),
        )
        # Whether appending may take long, because the records of each batch are looked at.
        self.decompresses = config.decompresses
        self.append = self._appender.append
        self.append_run = self._appender.append_run
        self.read = self._reader.read
        self.watch = self._watchers.watch
        self.unwatch = self._watchers.unwatch

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    # -- opening -------------------------------------------------------------------------------------------------------

    def start(self, loaded: LoadedLog, recovery_point: int, first_dirty_offset: int = 0, dense_from: int = 0) -> None:
        """Begin to serve what recovery has loaded. Only what is before the checkpoint's ``recovery_point`` is known durable, so a
        log that shows nothing else is fsynced first. Raises StorageError if that fails; the log is offline then."""
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
            self._durability.start(loaded, recovery_point)
            state.publish(loaded.log_end_offset, state.active)
            if state.active.size:
                first = state.active.header(0, state.active.size)
                state.active.first_timestamp = first[MAX_TIMESTAMP] if first else -1
                self._rolling.set_roll_time(state.active)
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
        """(epoch, start offset) of each leader epoch, the last one the current one. Before the log is served."""
        self._leader_epochs = epochs
        self.leader_epoch = self.state.leader_epoch = epochs[-1][0]

    # -- settings ------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        """The topic's settings in force. Set it to change them; one thread at a time does."""
        return self.state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        state = self.state
        with state.lock:
            state.config = config
            if state.active is not None and not config.shows_durable and state.offline is None:
                state.publish(state.log_end_offset, state.active)
        self._watchers.wake()
        self.decompresses = config.decompresses
        self._appender.configure(config)
        self._rolling.configure(config)

    def make_visible(self) -> None:
        """Have consumers see all that is in the log. Waits for the disk if that waits for an fsync. Raises StorageError."""
        state = self.state
        if state.high_watermark < state.log_end_offset:
            self._durability.show_all()

    # -- where it stands: read without a lock --------------------------------------------------------------------------

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
        """The end of what a reader that wants only committed transactions sees."""
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
        """The recovery point as the checkpoint file says."""
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
        """When (monotonic, s) the disk had no room for records; None if it had for later ones, or always."""
        full = self.state.full_since
        return None if full is None or full[0] != self.state.log_end_offset else full[1]

    @property
    def deleted(self) -> bool:
        return self.state.deleted

    @property
    def last_flush_ms(self) -> int:
        return self._durability.last_flush_ms

    @property
    def tail(self) -> tuple[int, Segment | None, int]:
        """High watermark, the segment that has it and where in that it is, as published together."""
        return self.state.tail

    @property
    def written_end(self) -> tuple[int, Segment | None, int]:
        """The same of the log end offset, also while readers do not see it yet. They belong together under ``lock``."""
        state = self.state
        active = state.active
        if active is None or not state.config.shows_durable:
            return state.tail
        return state.log_end_offset, active, active.size

    @property
    def view(self) -> View:
        """The row of segments."""
        return self.state.view

    @property
    def snapshots(self) -> set[int]:
        """The offsets of the snapshot files."""
        return self._durability.snapshots

    @property
    def aborted_sums(self) -> Sums:
        """What is durable of the indexes of aborted transactions. Background thread."""
        return self._durability.aborted_sums

    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.view.segments)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest leader epoch that is at most ``epoch``, the offset at which it ended); (-1, -1) where that is unknown."""
        if epoch == self.leader_epoch:
            return epoch, self.log_end_offset
        if epoch > self.leader_epoch:
            return -1, -1
        found = -1
        for known, start in self._leader_epochs:
            if known > epoch:
                return (found, start) if found >= 0 else (epoch, start)
            found = known
        return -1, -1

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

    def segments_from(self, offset: int) -> tuple[Segment, ...]:
        """The segments that have ``offset`` or later ones in them. ``lock`` is held."""
        return self.state.segments_from(offset)

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment, unless the present one is empty. ``lock`` is held."""
        return self._rolling.roll(now_ms)

    # -- reading -------------------------------------------------------------------------------------------------------

    def search(self, attempt: Callable[[], T]) -> T:
        """Run a look-up in the segments, again where they changed under it. See ``LogReader.search``."""
        return self._reader.search(attempt)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        return self._times.offset_for_timestamp(timestamp)

    def timestamp_at(self, offset: int) -> int:
        return self._times.timestamp_at(offset)

    def max_timestamp_offset(self) -> tuple[int, int] | None:
        return self._times.max_timestamp_offset()

    def aborted_transactions(self, offset: int, read: ReadResult, stable: int) -> list[AbortedTransaction]:
        return self._transactions.aborted(offset, read, stable)

    def oldest_open(self) -> tuple[int, int] | None:
        return self._transactions.oldest_open()

    def describe_producers(self) -> list[ProducerDescription]:
        return self._transactions.describe_producers()

    # -- transactions --------------------------------------------------------------------------------------------------

    def allow_transaction(self, producer_id: int, epoch: int) -> None:
        self._transactions.allow(producer_id, epoch)

    def allows_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether this producer may append to its transaction now. Takes no lock."""
        return self._transactions.writers.get(producer_id) == epoch

    def knows_producer(self, producer_id: int) -> bool:
        """Whether the log has anything of this producer that it remembers. Takes no lock."""
        return self.state.producers.get(producer_id) is not None

    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        now_ms: int,
        if_open: bool = False,
    ) -> int:
        return self._transactions.append_marker(
            producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch, now_ms=now_ms, if_open=if_open
        )

    # -- entries -------------------------------------------------------------------------------------------------------

    @property
    def has_entries(self) -> bool:
        """There may be entries among the batches (``protocol/kafka/records/entry.py``), which Kafka's clients get as records."""
        return self.state.has_entries

    def end(self) -> None:
        """Refuse every append from now on with LogEnded. The markers of transactions are still written."""
        self._appender.end()

    def allow_entries(self) -> None:
        """Make it durable that the log may have entries. The first time, this waits for the disk. Raises StorageError, Refusal.

        The first append of an entry does it, too; who appends on a thread that must not wait calls this before.
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

    # -- durability ----------------------------------------------------------------------------------------------------

    def flush_to(self, offset: int) -> None:
        self._durability.flush_to(offset)

    def begin_flush(self, offset: int) -> tuple[Sync, File] | None:
        return self._durability.begin_flush(offset)

    def end_flush(self, sync: Sync, error: OSError | None) -> None:
        self._durability.end_flush(sync, error)

    def begin_sync(self) -> None:
        self._durability.begin_sync()

    def checkpoint(self, *, closing: bool = False) -> bool:
        return self._durability.checkpoint(closing=closing)

    def save_aborted(self, durable: Mapping[Segment, int]) -> None:
        self._durability.save_aborted(durable)

    def distrust_from(self, offset: int) -> None:
        """Put the recovery point back to ``offset``, where the scrub found damage, so that the next start verifies it. Background
        thread."""
        self.state.recovery_point = min(self.state.recovery_point, offset)

    def note_saved_point(self, offset: int) -> None:
        """The checkpoint file now has this recovery point."""
        self.state.saved_point = offset

    def note_saved_start(self, offset: int) -> None:
        """The checkpoint file now has this log start offset: segments before it may be deleted."""
        self.state.saved_start = offset

    # -- getting shorter, and replacing files --------------------------------------------------------------------------

    def delete_records(self, before: int) -> int:
        return self._trimming.delete_records(before)

    def advance_start(self, offset: int) -> bool:
        return self._trimming.advance_start(offset)

    def drop_old_segments(self) -> int:
        return self._trimming.drop_old_segments()

    def discard(self, paths: list[str]) -> None:
        self._trimming.discard(paths)

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        self._trimming.replace_segments(old, new)

    def expect_gaps_before(self, offset: int) -> None:
        """Compaction is about to make gaps between offsets, all before this one. Background thread."""
        self.state.dense_from = max(self.state.dense_from, offset)

    def mark_cleaned(self, offset: int) -> None:
        """Compaction has seen the records before this offset. Background thread."""
        self.state.first_dirty_offset = offset

    # -- failures and the end ------------------------------------------------------------------------------------------

    def failed(self, what: str, error: OSError) -> StorageError:
        return self.state.failed(what, error)

    def go_offline(self, why: str) -> StorageError:
        return self.state.go_offline(why)

    def why_unavailable(self) -> Refusal | StorageError:
        return self.state.why_unavailable()

    def mark_deleted(self) -> None:
        """The topic is being deleted: nothing more is read or written, and watchers are told."""
        state = self.state
        with state.lock:
            state.deleted = True
            state.offline = StorageError(f"{state.topic}-{state.partition} was deleted")
        self.wake()

    def moved_to(self, directory: str) -> None:
        """Its files are in this directory, to be removed later. Their descriptors are not kept until then."""
        state = self.state
        with state.lock:  # no append is under way
            for segment in state.view.segments:
                segment.moved_to(directory)

    def wake(self) -> None:
        """Call the watchers. The caller holds no lock."""
        self._watchers.wake()
