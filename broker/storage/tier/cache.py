"""Pieces of objects on the local disk: a bounded cache of files of 1 MiB, from which records leave by sendfile.

Any thread that may wait calls ``open``. A piece that is not here is asked for once, by the first thread that needs it; the
others wait for that thread. An error goes to all of them and is not remembered. The threads ``remote-reader-N`` fetch pieces
that will be needed next (``ahead``); without them everything works, one piece after the other.

A piece is a file with a name of its own, which is written once. Evicting removes the name: who has opened the file keeps its
bytes, so what is being sent never changes. Such files take disk space beyond the bound until they are sent.

The directory is emptied at the start: its files are not durable, and nothing says what they are.
"""

from collections import OrderedDict

import attrs

from broker.metadata.catalogue import RemoteFile
from broker.runtime.disk import Disk, File, Unreachable
from broker.runtime.objects import ObjectError, ObjectMissing, ObjectStore
from broker.runtime.threads import Event, Lock
from broker.runtime.worker import Worker

# S3 needs 10-30 ms for the first byte, so less would not come much sooner; more would be in vain for readers of a few records.
CHUNK_BYTES = 1024 * 1024
# Requests to the store at a time, beside those of handlers. Kafka's remote.log.reader.threads is 10.
READER_THREADS = 4
# Pieces that wait to be fetched ahead. More are not asked for: whoever needs them fetches them.
_AHEAD_MAX = 64
# How often (times) a look-up is repeated because the piece was evicted before it was opened.
_ATTEMPTS = 10
# How long (s) a thread waits for another thread's request, which has deadlines of its own.
_PATIENCE_S = 120.0


@attrs.define(eq=False)
class Counts:
    """What was asked of the store: requests, bytes that came, requests that failed. Under the cache's lock."""

    requests: int = 0
    bytes: int = 0
    errors: int = 0
    hits: int = 0


@attrs.define(eq=False)
class _Fetch:
    """A request that is under way. ``file`` or ``error`` is set before ``done``."""

    done: Event = attrs.Factory(Event)
    file: File | None = None
    error: OSError | None = None


_At = tuple[str, int]  # key, number of the piece


class ChunkCache:
    """``size`` of a call is that of the whole object, in bytes."""

    def __init__(
        self, disk: Disk, directory: str, objects: ObjectStore, limit_bytes: int, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        """``disk`` is the machine's. At least one piece is kept, whatever ``limit_bytes`` says."""
        self.limit_bytes = limit_bytes
        self.chunk_bytes = chunk_bytes
        self.counts = Counts()
        self._disk = disk
        self._directory = directory
        self._objects = objects
        self._lock = Lock()
        self._kept: OrderedDict[_At, tuple[str, int]] = OrderedDict()  # path and size, the least recently used first
        self._bytes = 0
        self._fetches: dict[_At, _Fetch] = {}
        self._names = 0
        self._queued = 0
        self.readers: list[Worker[tuple[str, int, int]]] = []

    def start(self) -> None:
        """Make the directory, or empty it. Raises OSError."""
        self._disk.makedirs(self._directory)
        for name in self._disk.listdir(self._directory):
            self._disk.remove(f"{self._directory}/{name}")

    def new_readers(self, number: int = READER_THREADS) -> list[Worker[tuple[str, int, int]]]:
        """The bodies of the threads that fetch ahead."""
        self.readers = [Worker(self._read_ahead) for _ in range(number)]
        return self.readers

    @property
    def kept_bytes(self) -> int:
        return self._bytes

    def open(self, remote: RemoteFile, size: int, number: int) -> File:
        """The file with piece ``number`` of the object of ``remote``. It is not shared: it closes with its last reference.

        Raises Unreachable, which names the object and the file.
        """
        at = remote.object, number
        for _ in range(_ATTEMPTS):
            with self._lock:
                kept = self._kept.get(at)
                if kept is not None:
                    self._kept.move_to_end(at)
                    self.counts.hits += 1
                    fetch, mine = None, False
                else:
                    fetch = self._fetches.get(at)
                    mine = fetch is None
                    if fetch is None:
                        fetch = self._fetches[at] = _Fetch()
            if fetch is not None:
                return self._fetched(fetch, remote, size, number) if mine else _waited(fetch, remote)
            assert kept is not None
            try:
                return self._disk.open(kept[0], read_only=True)
            except FileNotFoundError:
                self._forget(at, kept[0])
        raise Unreachable(f"{remote.path}: the cache is too small for what is being read")

    def ahead(self, remote: RemoteFile, size: int, number: int) -> None:
        """Have this piece fetched soon, if there is any such piece and somebody has time."""
        at = remote.object, number
        if not self.readers or number * self.chunk_bytes >= size or at in self._kept or at in self._fetches:
            return
        with self._lock:
            if self._queued >= _AHEAD_MAX:
                return
            self._queued += 1
            reader = self.readers[self._names % len(self.readers)]
            self._names += 1
        reader.submit((remote.object, size, number))

    def _read_ahead(self, wanted: tuple[str, int, int]) -> None:
        key, size, number = wanted
        try:
            if (key, number) not in self._kept:
                self.open(RemoteFile(key, key, 0, size), size, number)
        except OSError:
            pass  # whoever needs it asks again, and gets the error
        finally:
            with self._lock:
                self._queued -= 1

    def _fetched(self, fetch: _Fetch, remote: RemoteFile, size: int, number: int) -> File:
        at = remote.object, number
        try:
            file = self._fetch(remote, size, number)
        except OSError as error:
            with self._lock:
                self.counts.errors += 1
                del self._fetches[at]
            fetch.error = error
            raise
        except BaseException as error:
            with self._lock:
                del self._fetches[at]
            fetch.error = Unreachable(f"{remote.path}: {error!r}")
            raise
        else:
            fetch.file = file
            return file
        finally:
            fetch.done.set()

    def _fetch(self, remote: RemoteFile, size: int, number: int) -> File:
        start = number * self.chunk_bytes
        wanted = min(self.chunk_bytes, size - start)
        with self._lock:
            self.counts.requests += 1
            self._names += 1
            path = f"{self._directory}/{self._names:016x}"
        data = self._get(remote, start, wanted)
        try:
            file = self._written(path, data)
        except OSError as error:
            self._evict(0)  # perhaps the disk is full
            raise Unreachable(f"{remote.path} could not be cached: {error}") from error
        with self._lock:
            self.counts.bytes += wanted
            del self._fetches[remote.object, number]
            self._kept[remote.object, number] = path, wanted
            self._bytes += wanted
        self._evict(self.limit_bytes)
        return file

    def _get(self, remote: RemoteFile, start: int, size: int) -> bytes:
        """Twice, if need be: behind a gateway, a store sometimes says that an object is missing which is not."""
        for last in (False, True):
            try:
                data = self._objects.get(remote.object, start, size)
            except ObjectMissing as error:
                if last:
                    raise Unreachable(f"{remote.path} is lost: {error}") from error
            except ObjectError as error:
                if last:
                    raise Unreachable(f"{remote.path} cannot be read now: {error}") from error
            else:
                if len(data) == size:
                    return data
                if last:
                    raise Unreachable(f"{remote.path} is damaged: {remote.object} ends before byte {start + size}")
        raise AssertionError

    def _written(self, path: str, data: bytes) -> File:
        file = self._disk.open(path, create=True)
        try:
            file.pwrite([data], 0)
        except OSError:
            file.close()
            self._disk.remove(path)
            raise
        return file

    def _evict(self, limit_bytes: int) -> None:
        removed = []
        with self._lock:
            while self._bytes > limit_bytes and len(self._kept) > 1:
                _, (path, size) = self._kept.popitem(last=False)
                self._bytes -= size
                removed.append(path)
        for path in removed:
            try:
                self._disk.remove(path)
            except OSError:  # it is not counted any longer; the next start removes it
                pass

    def _forget(self, at: _At, path: str) -> None:
        """Its file is missing: it was evicted, or somebody has removed it."""
        with self._lock:
            kept = self._kept.get(at)
            if kept is not None and kept[0] == path:
                del self._kept[at]
                self._bytes -= kept[1]


def _waited(fetch: _Fetch, remote: RemoteFile) -> File:
    if not fetch.done.wait(_PATIENCE_S):
        raise Unreachable(
            f"{remote.path} cannot be read now: the object store has not answered for {_PATIENCE_S:.0f} s"
        )
    if fetch.error is not None:
        raise Unreachable(str(fetch.error)) from fetch.error
    assert fetch.file is not None
    return fetch.file
