"""The state of a broker whose machine may be lost: an engine (``engine.py``) has catalogue, journal and objects.

``open_durable`` becomes the owner, which may mean to stand by until another broker has gone. ``DurableState.restore`` makes the
local files again. The rest of the broker gets a disk and a catalogue, and uses them as those of a single machine. A broker
without ``catalogue`` imports nothing of this.

On the thread that starts and stops the broker. The threads that run from then on are the shippers, the owner's, and
``journal-keeper``, which tidies the journal.
"""

from collections.abc import Callable
from functools import partial

import attrs

from broker.cluster.owner import Callbacks
from broker.config import BrokerConfig
from broker.errors import ConfigError, StorageError
from broker.log import EventLimit, get_logger
from broker.metadata.catalogue import RemoteFile
from broker.metadata.copying import refuse_unfinished
from broker.metrics import Registry, names
from broker.runtime import Runtime
from broker.runtime.clock import Clock
from broker.runtime.disk import File
from broker.runtime.entropy import Entropy
from broker.runtime.threads import ThreadHandle
from broker.runtime.worker import Inbox
from broker.server.engine import Engine, OpenEngine
from broker.storage.journal import cache_directory, store_mark
from broker.storage.journal.restoring import ahead, restore
from broker.storage.journal.shipped_disk import ShippedDisk
from broker.storage.journal.shipper import Shipper
from broker.storage.log_manager import LogManager
from broker.storage.segments.segment import CLEANED, DELETED, LOG, SWAP
from broker.storage.tier.tier import Tier

logger = get_logger("server")

# Where journals' objects are in the store.
JOURNAL = "journal"
# Where files that are no segments are in the store.
FILES = "files"
_PIECE_BYTES = 1024 * 1024
# Segments that no log has any more, or does not have yet, are about to go.
LOG_ENDS = (DELETED, CLEANED, SWAP, LOG)
# How long the threads may take to end.
_PATIENCE_S = 3.0


def journal_of(node: int) -> str:
    """Where the objects of a node's journal are in the store: those of the first one as those of a broker alone."""
    return f"nodes/{node}/{JOURNAL}" if node else JOURNAL


def owners_prefix(journal: str, epoch: int, entropy: Entropy) -> str:
    """Of the keys of an owner's objects: each has a place of its own, so an owner that has been replaced overwrites nothing. A
    part is drawn: after a restore of the database, or the loss of a replica's last rows, an epoch may come twice."""
    return f"{journal}/{epoch:08x}/{entropy.uuid().hex[:8]}-"


def open_durable(
    config: BrokerConfig, runtime: Runtime, stopped: Callable[[], bool], open_engine: OpenEngine, node: int = 0
) -> "DurableState | None":
    """Become the owner of the state. With ``standby``, wait for it until ``stopped``: then None. ``node``: which of several that
    share the catalogue. Raises ConfigError."""
    engine = open_engine(config, runtime, stopped)
    return None if engine is None else DurableState(config.data_dir, runtime, engine, journal_of(node))


def check_end(shipper: Shipper, number: int) -> None:
    """Whether the journal that was replayed ends with this row, as its owner's row says. Raises ConfigError."""
    rows = shipper.rows
    if rows and rows[-1][0] != number:
        raise ConfigError(
            f"Restore the database as a whole: its journal ends with row {rows[-1][0]}, and its owner's row says {number}."
        )


class DurableState:
    """``catalogue`` and ``disk`` are what the broker uses; the disk can be used after ``restore``. ``engine`` and ``shipper`` are
    for whoever moves the state as a whole."""

    def __init__(self, data_dir: str, runtime: Runtime, engine: Engine, journal: str = JOURNAL) -> None:
        """``journal``: where its objects are in the store."""
        self.objects = engine.objects
        self.catalogue = engine.catalogue
        self._runtime = runtime
        self._data_dir = data_dir
        self._journal = journal
        self.engine = engine
        self.shipper = Shipper(
            engine.journal,
            engine.objects,
            runtime.clock,
            prefix=owners_prefix(journal, engine.owner.epoch, runtime.entropy),
            last=engine.owner.number,
            limits=engine.limits,
        )
        self.disk = ShippedDisk(runtime.disk, data_dir, self.shipper)
        self._threads: list[ThreadHandle] = []
        self._keeper: ThreadHandle | None = None

    def start(self, callbacks: Callbacks, on_crash: Callable[[BaseException], None]) -> None:
        """Keep the lease from now on. ``callbacks`` are called on a thread of the owner."""
        owner = self.engine.owner
        owner.callbacks = attrs.evolve(callbacks, on_fenced=partial(self._fenced, callbacks.on_fenced))
        owner.start(on_crash)
        self.shipper.on_failed = on_crash
        for number, body in enumerate(self.shipper.threads):
            self._threads.append(self._runtime.threads.spawn(f"shipper-{number}", body, on_crash))

    def _fenced(self, then: Callable[[str], None], reason: str) -> None:
        self.shipper.close()
        then(reason)

    def restore(self, cluster_id: Callable[[], str]) -> None:
        """Make the local files what the journal says. The data directory is locked. ``cluster_id`` gives the catalogue an id if
        it has none. Raises ConfigError, StorageError."""
        refuse_unfinished(self.catalogue)
        clock, disk, engine = self._runtime.clock, self._runtime.disk, self.engine
        began = clock.monotonic()
        try:
            cache_directory.empty(disk, self._data_dir)
            store_mark.claim(self.objects, cluster_id(), lambda: store_mark.some_object(self.catalogue, engine.journal))
            size = restore(disk, self._data_dir, engine.journal, self.objects, self.shipper, ahead(engine.readers))
        except (OSError, StorageError) as error:
            raise ConfigError(f"The journal cannot be read: {error}.") from error
        check_end(self.shipper, engine.owner.number)
        logger.info(
            "journal_replayed", rows=len(self.shipper.rows), bytes=size, seconds=round(clock.monotonic() - began, 3)
        )

    def settle(self, tier: Tier) -> None:
        """Bring journal and tier into step, before services use files. Raises ConfigError."""
        files = tier.disk.remote_files()
        try:
            # A take-over may have come after a file was uploaded, and before the journal knew.
            self.disk.forget([f"{self._data_dir}/{file.path}" for file in files])
            for file in files:
                if file.object.startswith(f"{FILES}/"):
                    self._bring(tier, f"{self._data_dir}/{file.path}", file.size)
        except OSError as error:
            raise ConfigError(f"The files of the journal cannot be had: {error}.") from error

    def _bring(self, tier: Tier, path: str, size: int) -> None:
        """Make a local copy, of which the journal need not know: services send such files, and one that is in the store only has
        no descriptor."""
        disk = self._runtime.disk
        disk.makedirs(path.rpartition("/")[0])
        remote, copy = tier.disk.open(path, read_only=True), disk.open(f"{path}.tmp", create=True)
        try:
            for position in range(0, size, _PIECE_BYTES):
                copy.pwrite([remote.pread(min(_PIECE_BYTES, size - position), position)], position)
        finally:
            copy.close()
            remote.close()
        disk.rename(f"{path}.tmp", path)

    def keep(self, logs: LogManager, tier: Tier, on_crash: Callable[[BaseException], None]) -> None:
        """Tidy the journal from now on."""
        runtime = self._runtime
        keeper = JournalKeeper(self.shipper, self._data_dir, logs, tier, runtime.clock, runtime.entropy, self._journal)
        self._keeper = self._runtime.threads.spawn("journal-keeper", keeper, on_crash)

    def register_metrics(self, registry: Registry) -> None:
        shipper, counts, owner = self.shipper, self.shipper.counts, self.engine.owner
        now, lease = self._runtime.clock.monotonic, owner.lease
        registry.read_counter(names.JOURNAL_FLUSHES, lambda: {(): counts.flushes})
        registry.read_counter(names.JOURNAL_BYTES, lambda: {(): counts.bytes})
        registry.read_counter(names.JOURNAL_OBJECTS, lambda: {(): counts.objects})
        registry.read_counter(names.JOURNAL_FAILURES, lambda: {(): counts.failures})
        registry.read_histogram(
            names.JOURNAL_FLUSH_SECONDS, lambda: {(): (list(counts.seconds.counts), counts.seconds.sum)}
        )
        registry.gauge(names.JOURNAL_ROWS, lambda: {(): len(shipper.rows)})
        registry.gauge(names.JOURNAL_SIZE, lambda: {(): shipper.row_bytes})
        registry.gauge(names.OWNER_EPOCH, lambda: {(): owner.epoch})
        registry.gauge(names.OWNER_LEADING, lambda: {(): float(owner.is_leading())})
        registry.gauge(names.OWNER_LEASE_SECONDS, lambda: {(): max(0.0, lease.until - now())})

    def stop_keeping(self, patience_s: float = _PATIENCE_S) -> bool:
        """True if the thread has ended."""
        keeper, self._keeper = self._keeper, None
        return keeper is None or keeper.stop(patience_s)

    def close(self, patience_s: float = _PATIENCE_S) -> int:
        """Give the state up, so that a standby need not wait. Nothing is written any more. Returns how many threads did not
        end."""
        self.shipper.close()
        for thread in self._threads:
            thread.ask_to_stop()
        now = self._runtime.clock.monotonic
        deadline = now() + patience_s  # of all: those that wait for the engine do so together
        left = sum(not thread.stop(max(0.0, deadline - now())) for thread in self._threads)
        self._threads = []
        return left + (not self.engine.close())


class JournalKeeper:
    """The body of the thread ``journal-keeper``."""

    def __init__(
        self,
        shipper: Shipper,
        data_dir: str,
        logs: LogManager,
        tier: Tier,
        clock: Clock,
        entropy: Entropy,
        journal: str = JOURNAL,
    ) -> None:
        self._journal = journal
        self._shipper = shipper
        self._root = f"{data_dir}/"
        self._logs = logs
        self._tier = tier
        self._clock = clock
        self._entropy = entropy
        self._inbox: Inbox[None] = Inbox()
        self._complaints = EventLimit()
        self._has_swept = False

    def step(self, timeout: float | None) -> bool:
        tidy_s = self._shipper.limits.tidy_s
        self._inbox.take(tidy_s if timeout is None else min(tidy_s, timeout))
        try:
            if not self._has_swept:
                self._shipper.sweep(self._journal)
                self._has_swept = True
            self._shipper.tidy(self._open)
            self._make_room([self._root + path for path in self._shipper.oversized()])
        except (OSError, StorageError) as error:
            dropped = self._complaints.take(self._clock.monotonic())
            if dropped is not None:
                logger.warning("journal_not_tidied", error=str(error), dropped=dropped)
        return False

    def wakeup(self) -> None:
        self._inbox.wakeup()

    def _open(self, path: str) -> File:
        return self._tier.disk.open(self._root + path, read_only=True)

    def _make_room(self, paths: list[str]) -> None:
        """These keep too much in the journal. Segments are closed, and closed ones uploaded; of other files, which nobody changes
        once they are durable (result partitions, Pulsar's compacted topics), the whole is put into the store. Raises
        StorageError, OSError."""
        if not paths:
            return
        others = set(paths)
        for log in list(self._logs.partitions.values()):
            segments = log.view.segments
            of_log = others.intersection(segment.log.path for segment in segments)
            if segments and segments[-1].log.path in of_log and log.offline is None:
                with log.lock:
                    log.rolling.roll(self._clock.time_ms())
            others -= of_log
        if len(others) < len(paths):
            self._logs.housekeeper.hurry()  # a closed segment is uploaded after a checkpoint
            self._tier.hurry()
        for path in others:
            if not path.endswith(LOG_ENDS):
                self._upload(path)

    def _upload(self, path: str) -> None:
        disk = self._tier.disk
        key = f"{FILES}/{self._clock.time_ms()}-{self._entropy.uuid().hex}"
        file = disk.open(path, read_only=True)
        try:
            size = file.size()
            pieces = (file.pread(_PIECE_BYTES, position) for position in range(0, size, _PIECE_BYTES))
            self._tier.objects.put(key, pieces, size)
        finally:
            file.close()
        disk.adopt([RemoteFile(disk.relative(path), key, 0, size)])
        if disk.shipping is not None:
            disk.shipping.forget([path])
        if not disk.is_local(path):  # it was removed meanwhile
            disk.remove(path)
