"""The tier as a whole: it is put together here, and answers questions about a log.

``Tier`` is made by the thread that starts the broker; any thread may ask it.
"""

from collections.abc import Callable, Iterator, Mapping

from broker.metadata.catalogue import Catalogue, RemoteFile
from broker.metrics import Registry, names
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk
from broker.runtime.entropy import Entropy
from broker.runtime.objects import ObjectStore
from broker.runtime.threads import Body
from broker.storage.config import StorageConfig
from broker.storage.log.log import Log
from broker.storage.tier.cache import ChunkCache
from broker.storage.tier.catalogue_copies import CatalogueCopies
from broker.storage.tier.tiered_disk import TieredDisk
from broker.storage.tier.uploads import Uploads, UploadSettings

# In the data directory; hidden, so that it is nobody's topic.
CACHE = ".remote-cache"


class Tier:
    """``disk`` is what the storage uses in place of the disk that it was made of."""

    def __init__(
        self,
        disk: Disk,
        objects: ObjectStore,
        catalogue: Catalogue,
        clock: Clock,
        data_dir: str,
        cache_bytes: int,
        *,
        cache_disk: Disk | None = None,
        mine: Callable[[RemoteFile], bool] | None = None,
    ) -> None:
        """Loads the names of all files in the store, and empties the cache. ``cache_disk``: the machine's, if ``disk`` keeps what
        is written to it elsewhere. ``mine``: as for ``TieredDisk``. Raises StorageError, OSError."""
        self.objects = objects
        self.cache = ChunkCache(disk if cache_disk is None else cache_disk, f"{data_dir}/{CACHE}", objects, cache_bytes)
        self.cache.start()
        self.disk = TieredDisk(disk, data_dir, catalogue, self.cache, clock, mine)
        self.uploads: Uploads | None = None
        self.copies: CatalogueCopies | None = None  # set before ``bodies``, if the catalogue is on this machine only
        self.deletes_objects = True  # set before ``bodies``: False where another node does so
        self._catalogue = catalogue
        self._clock = clock

    def bodies(
        self, entropy: Entropy, partitions: Mapping[tuple[str, int], Log], config: Callable[[], StorageConfig]
    ) -> Iterator[tuple[str, Body]]:
        """The threads, each with its name: the first one uploads, the others read ahead. ``config``: the settings in force."""

        def settings() -> UploadSettings:
            now = config()
            return UploadSettings(
                interval_ms=now.remote_log_manager_task_interval_ms, grace_ms=now.remote_object_delete_delay_ms
            )

        self.uploads = Uploads(self.disk, self.objects, self._catalogue, self._clock, entropy, partitions, settings)
        self.uploads.copies = self.copies
        self.uploads.deletes_objects = self.deletes_objects
        yield "segment-uploader", self.uploads
        for number, reader in enumerate(self.cache.new_readers()):
            yield f"remote-reader-{number}", reader

    def hurry(self) -> None:
        """Upload closed segments soon. After ``bodies``; any thread."""
        assert self.uploads is not None
        self.uploads.hurry()

    # -- where a log is -------------------------------------------------------------------------------------------------

    def earliest_local(self, log: Log) -> int:
        """The first offset on the local disk."""
        for segment in log.view.segments:
            if not self.disk.is_remote(segment.log.path) or self.disk.is_local(segment.log.path):
                return max(log.log_start_offset, segment.base_offset)
        return log.log_end_offset

    def latest_tiered(self, log: Log) -> int | None:
        """The last offset in the store, up to which everything is there; None if nothing is."""
        last = None
        for base, segment in zip(log.view.bases[1:], log.view.segments, strict=False):
            if self.disk.is_remote(segment.log.path):
                last = base - 1
            elif segment.size:
                break
        return last

    def local_bytes(self, log: Log) -> int:
        segments = log.view.segments
        return sum(
            segment.size
            for segment in segments
            if not self.disk.is_remote(segment.log.path) or self.disk.is_local(segment.log.path)
        )

    def forget_log(self, log: Log) -> None:
        self.disk.forget_directory(log.dir)

    # -- figures --------------------------------------------------------------------------------------------------------

    def register_metrics(self, registry: Registry) -> None:
        """After ``bodies``."""
        assert self.uploads is not None
        read, sent = self.cache.counts, self.uploads.counts
        registry.read_counter(names.REMOTE_FETCH_BYTES, lambda: {(): read.bytes})
        registry.read_counter(names.REMOTE_FETCH_REQUESTS, lambda: {(): read.requests})
        registry.read_counter(names.REMOTE_FETCH_ERRORS, lambda: {(): read.errors})
        registry.read_counter(names.REMOTE_CACHE_HITS, lambda: {(): read.hits})
        registry.gauge(names.REMOTE_CACHE_BYTES, lambda: {(): self.cache.kept_bytes})
        registry.read_counter(names.REMOTE_COPY_BYTES, lambda: {(): sent.copied_bytes})
        registry.read_counter(names.REMOTE_COPY_REQUESTS, lambda: {(): sent.copied})
        registry.read_counter(names.REMOTE_COPY_ERRORS, lambda: {(): sent.copy_errors})
        registry.read_counter(names.REMOTE_DELETE_REQUESTS, lambda: {(): sent.deleted})
        registry.read_counter(names.REMOTE_DELETE_ERRORS, lambda: {(): sent.delete_errors})
        registry.gauge(names.REMOTE_COPY_LAG_BYTES, lambda: {(): sent.waiting_bytes})
        registry.gauge(names.REMOTE_COPY_LAG_SEGMENTS, lambda: {(): sent.waiting_segments})
        registry.gauge(names.REMOTE_LOG_BYTES, lambda: {(): sum(file.size for file in self.disk.remote_files())})
