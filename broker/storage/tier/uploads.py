"""The thread ``segment-uploader``: closed segments go to the object store, local copies leave the disk, objects are deleted.

``step`` does one piece of work, so that stopping never waits long: every ``remote.log.manager.task.interval.ms`` it begins a
round over all logs with ``remote.storage.enable``. In a round each log's closed segments are uploaded that are durable and
below the last stable offset; then the copies are evicted that ``local.retention.ms`` and ``local.retention.bytes`` do not keep;
at the end come the objects that no file has needed for a while. Any error of the store ends the round; the next one tries
again.

An upload holds up nobody. Files are opened first and then read without a lock, since closed segments do not change. Compaction
and retention may replace or rename them meanwhile: so only under ``files_lock``, after the object is stored, it is decided
whether the segment is still a part of the log, and then its files get their rows in the catalogue, all in one transaction.
Otherwise the object is deleted. A process that dies in between leaves an object that nothing refers to (``orphans.py``).

| the upload ends                           | the store has | the catalogue has | then                                        |
|-------------------------------------------|---------------|-------------------|---------------------------------------------|
| whole                                     | the object    | the rows          | the local copy may be evicted               |
| the segment was deleted or compacted      | -             | -                 | the new segment is uploaded in its turn     |
| the store failed, or nobody knows         | perhaps       | -                 | again, under another key; ``orphans.py``    |
| the catalogue failed                      | the object    | -                 | again, under another key; ``orphans.py``    |
| nobody knows what the catalogue did       | the object    | perhaps           | loaded again, or with the next start        |
"""

from collections.abc import Callable, Generator, Iterator, Mapping

import attrs

from broker.errors import Refusal, StorageError
from broker.log import EventLimit, get_logger
from broker.metadata.catalogue import Catalogue, RemoteFile
from broker.runtime.clock import Clock
from broker.runtime.disk import File
from broker.runtime.entropy import Entropy
from broker.runtime.objects import ObjectError, ObjectStore
from broker.runtime.threads import Event
from broker.storage.log.log import Log
from broker.storage.recovery.recovery import indexed_end
from broker.storage.segments.index_file import CorruptIndex
from broker.storage.segments.segment import (
    NEVER,
    SNAPSHOT,
    Segment,
)
from broker.storage.tier.catalogue_copies import CatalogueCopies
from broker.storage.tier.closed_segments import Verifier
from broker.storage.tier.keys import SegmentKey
from broker.storage.tier.tiered_disk import TieredDisk

logger = get_logger("storage")

PIECE_BYTES = 1024 * 1024
# Objects that are deleted in one step, which is one request of S3.
_DELETED_AT_ONCE = 500
# In ``local.retention.*``: as ``retention.*``.
AS_RETENTION = -2


@attrs.frozen(kw_only=True)
class UploadSettings:
    """``grace_ms``: how long an object stays after the last file was removed that needed it, because a reader may still read."""

    interval_ms: int
    grace_ms: int


@attrs.define(eq=False)
class UploadCounts:
    """Written by the uploader's thread. ``waiting_*``: closed segments that were not uploaded yet when the last round began."""

    copied: int = 0
    copied_bytes: int = 0
    copy_errors: int = 0
    deleted: int = 0
    delete_errors: int = 0
    evicted_bytes: int = 0
    waiting_segments: int = 0
    waiting_bytes: int = 0
    rounds: int = 0


class _Stopped(OSError):
    """The thread is to end, or somebody has woken it."""


class Uploads:
    """The body of the thread. Other threads call ``wakeup`` and ``hurry``."""

    def __init__(
        self,
        disk: TieredDisk,
        objects: ObjectStore,
        catalogue: Catalogue,
        clock: Clock,
        entropy: Entropy,
        partitions: Mapping[tuple[str, int], Log],
        settings: Callable[[], UploadSettings],
    ) -> None:
        """``partitions`` is the log manager's dict, which changes while this thread reads it."""
        self.counts = UploadCounts()
        self.copies: CatalogueCopies | None = None  # of a catalogue that is on this machine only
        self.deletes_objects = True  # otherwise another node does so, for all
        self._disk = disk
        self._objects = objects
        self._catalogue = catalogue
        self._clock = clock
        self._entropy = entropy
        self._partitions = partitions
        self._settings = settings
        self._event = Event()
        self._woken = False
        self._due = clock.monotonic()
        self._round: Iterator[None] | None = None
        self._complaints = EventLimit()

    def step(self, timeout: float | None) -> bool:
        self._woken = False
        if self._round is None:
            wait = self._due - self._clock.monotonic()
            if wait > 0 and timeout != 0:
                self._event.wait(wait if timeout is None else min(wait, timeout))
                self._event.clear()
                wait = self._due - self._clock.monotonic()
            if wait > 0:
                return False
            self._due = self._clock.monotonic() + self._settings().interval_ms / 1000
            self._round = self._go_round()
        try:
            next(self._round)
        except StopIteration:
            self._round = None
            self.counts.rounds += 1
        except (OSError, StorageError) as error:
            self._round = None
            if not isinstance(error, _Stopped):
                self._complain("tier_round_failed", error)
        return True

    def wakeup(self) -> None:
        self._woken = True
        self._event.set()

    def hurry(self) -> None:
        """Begin the next round at the next step."""
        self._due = 0.0
        self._event.set()

    def _go_round(self) -> Iterator[None]:
        """Raises ObjectError, StorageError."""
        self._disk.flush()  # what was removed since somebody last synced a directory
        self._note_waiting()
        for log in list(self._partitions.values()):
            if log.offline is not None:
                continue
            config = log.config
            if not config.remote_storage_enable:
                if config.remote_log_delete_on_disable:
                    yield from self._of_log(log, self._bring_back)
                continue
            if not config.remote_log_copy_disable:
                yield from self._of_log(log, self._upload_all)
            yield from self._of_log(log, self._evict)
        if self.copies is not None and self.copies.step():
            yield
        yield from self._sweep()

    def _of_log(self, log: Log, work: Callable[[Log], Iterator[None]]) -> Iterator[None]:
        """An error of one log does not keep the others from their turn, but one of the store ends the round."""
        try:
            yield from work(log)
        except ObjectError:
            self.counts.copy_errors += 1
            raise
        except _Stopped:
            raise
        except (OSError, StorageError, Refusal) as error:
            if not log.deleted:
                self._complain("tier_failed", error, topic=log.topic, partition=log.partition)

    def _complain(self, event: str, error: Exception, **fields: object) -> None:
        dropped = self._complaints.take(self._clock.monotonic())
        if dropped is not None:
            logger.warning(event, error=str(error), dropped=dropped, **fields)

    # -- uploading ------------------------------------------------------------------------------------------------------

    def waiting(self, log: Log) -> list[tuple[Segment, int]]:
        """The closed segments that are to be uploaded now, each with the base offset of the next."""
        bases, segments = log.view
        end = min(log.saved_point, log.last_stable_offset)
        return [
            (segment, following)
            for segment, following in zip(segments, bases[1:], strict=False)
            if following <= end and segment.size and not self._disk.is_remote(segment.log.path)
        ]

    def _note_waiting(self) -> None:
        segments = size = 0
        for log in list(self._partitions.values()):
            config = log.config
            if log.offline is None and config.remote_storage_enable and not config.remote_log_copy_disable:
                for segment in log.view.segments[:-1]:
                    if segment.size and not self._disk.is_remote(segment.log.path):
                        segments += 1
                        size += segment.size
        self.counts.waiting_segments, self.counts.waiting_bytes = segments, size

    def _upload_all(self, log: Log) -> Iterator[None]:
        for segment, following in self.waiting(log):
            yield from self._upload(log, segment, following)

    def _upload(self, log: Log, segment: Segment, following: int) -> Iterator[None]:
        files = self._opened(log, segment)
        if files is None:
            return
        begin_ms = self._clock.time_ms()
        key = yield from self._verified(log, segment, files[0][1], begin_ms)
        _check_indexes(log, segment, following)
        name = str(key)
        rows, position = [], 0
        for path, _, size in files:
            rows.append(RemoteFile(self._disk.relative(path), name, position, size))
            position += size
        self._objects.put(name, self._bytes(files), position)
        with log.files_lock:
            wanted = not log.deleted and segment in log.view.segments
            if wanted:
                self._disk.adopt(rows)
        if not wanted:
            self._objects.delete([name])
            return
        self.counts.copied += 1
        self.counts.copied_bytes += position
        self.counts.waiting_segments -= 1
        self.counts.waiting_bytes -= segment.size
        if self._disk.shipping is not None:
            self._disk.shipping.forget([path for path, _, _ in files])
        yield

    def _opened(self, log: Log, segment: Segment) -> list[tuple[str, File, int]] | None:
        """Path, open file and size of each file of the segment, the log first; None if it is not to be uploaded now."""
        cached = [segment.log, segment.offsets.cached, segment.times.cached]
        if len(segment.aborted):
            cached.append(segment.aborted.cached)
        files = [(each.path, each.get()) for each in cached]
        if segment not in log.view.segments:  # otherwise these may be the files of a segment that has replaced it
            return None
        shipping = self._disk.shipping
        if shipping is not None and not all(shipping.is_shipped(path) for path, _ in files):
            return None
        opened = [(path, file, file.size()) for path, file in files]
        if opened[0][2] != segment.size:
            raise StorageError(f"{segment.log.path} has {opened[0][2]} bytes and should have {segment.size}")
        return opened

    def _verified(self, log: Log, segment: Segment, file: File, begin_ms: int) -> Generator[None, None, SegmentKey]:
        """Verify every batch: what is uploaded is trusted from now on. Returns the segment's key. Raises StorageError if
        the segment is damaged, which the scrub will find, too."""
        verifier = Verifier(segment, file, log.dense_from, log.leader_epoch)
        while verifier.is_going_on:
            verifier.step()
            if verifier.is_bad:
                raise StorageError(f"{segment.log.path} is damaged at position {verifier.position}: it is not uploaded")
            yield
        largest, at = verifier.largest_timestamp, verifier.timestamp_offset
        unique = self._entropy.uuid()
        return SegmentKey(log.topic_id, log.partition, segment.base_offset, verifier.end, largest, at, begin_ms, unique)

    def _bytes(self, files: list[tuple[str, File, int]]) -> Iterator[bytes]:
        for path, file, size in files:
            for position in range(0, size, PIECE_BYTES):
                if self._woken:
                    raise _Stopped("an upload was interrupted")
                piece = file.pread(min(PIECE_BYTES, size - position), position)
                if len(piece) < min(PIECE_BYTES, size - position):
                    raise StorageError(f"{path} was cut")
                yield piece

    # -- local copies ---------------------------------------------------------------------------------------------------

    def _evict(self, log: Log) -> Iterator[None]:
        """Remove the oldest copies, of as many uploaded segments as ``local.retention.*`` does not keep."""
        config = log.config
        keep_ms, keep_bytes = config.local_retention_ms, config.local_retention_bytes
        keep_ms = config.retention_ms if keep_ms == AS_RETENTION else keep_ms
        keep_bytes = config.retention_bytes if keep_bytes == AS_RETENTION else keep_bytes
        segments = log.view.segments
        local = [segment for segment in segments if segment.hot_from < NEVER and self._disk.is_local(segment.log.path)]
        kept = sum(segment.size for segment in local)
        oldest_ms = self._clock.time_ms() - keep_ms
        for segment in local:
            if not segment.size and segment is not segments[-1]:  # compaction has removed all of it
                continue
            if segment is segments[-1] or not self._disk.is_remote(segment.log.path):
                return
            too_many = keep_bytes >= 0 and kept - segment.size >= keep_bytes
            if not too_many and (keep_ms < 0 or _latest(log, segment) >= oldest_ms):
                return
            self._evict_one(log, segment)
            kept -= segment.size
            yield

    def _evict_one(self, log: Log, segment: Segment) -> None:
        with log.files_lock:
            if log.deleted or segment not in log.view.segments:
                return
            segment.hot_from = NEVER  # before its log goes: a reader then asks the file whether it is resident
            # The log goes first: readers who must not wait ask whether that is here.
            for path in segment.paths():
                if not path.endswith(SNAPSHOT):
                    self.counts.evicted_bytes += self._disk.evict(path)
            segment.drop_files()

    def _bring_back(self, log: Log) -> Iterator[None]:
        """Tiering was switched off, with ``remote.log.delete.on.disable``: what is only in the store is deleted."""
        segments = log.view.segments
        remote = [segment for segment in segments if self._disk.is_remote(segment.log.path)]
        if not remote:
            return
        gone = [segment for segment in remote if not self._disk.is_local(segment.log.path)]
        if gone:
            log.trimming.advance_start(log.view.bases[segments.index(gone[-1]) + 1])
            log.around.save_log_start(log)
            log.trimming.drop_old_segments()
            yield
        with log.files_lock:
            for segment in remote:
                if segment in log.view.segments:
                    paths = [path for path in segment.paths() if self._disk.is_remote(path)]
                    self._disk.abandon([path for path in paths if self._disk.is_local(path)])
        yield

    # -- objects --------------------------------------------------------------------------------------------------------

    def _sweep(self) -> Iterator[None]:
        """Delete the objects that have been condemned for long enough."""
        if not self.deletes_objects:
            self._disk.forget_unused_objects({key for key, _ in self._catalogue.condemned_objects()})
            return
        before = self._clock.time_ms() - self._settings().grace_ms
        if self.copies is not None:
            before = min(before, self.copies.taken_ms - 1)
        old = [key for key, since_ms in self._catalogue.condemned_objects() if since_ms <= before]
        for first in range(0, len(old), _DELETED_AT_ONCE):
            condemned = old[first : first + _DELETED_AT_ONCE]
            try:
                self._objects.delete(condemned)
            except ObjectError:
                self.counts.delete_errors += 1
                raise
            self._catalogue.forget_objects(condemned)
            self._disk.forget_objects(condemned)
            self.counts.deleted += len(condemned)
            yield


def _check_indexes(log: Log, segment: Segment, following: int) -> None:
    """The start of a broker trusts the indexes of a segment in the store; wrong ones are built again first. Raises
    StorageError."""

    def check() -> None:
        if segment in log.view.segments and indexed_end(segment, following) is None:
            raise CorruptIndex(segment.offsets.cached.path, "does not agree with its segment")

    log.reader.search(check)


def _latest(log: Log, segment: Segment) -> int:
    """The time (ms) of the newest record; of the file, if records have none."""
    timestamp, _ = log.reader.search(segment.largest)
    return timestamp if timestamp >= 0 else segment.created_ms
