"""A ``Disk`` on which some files are in the object store: with or without a copy on the local disk.

It wraps the disk that has the local files. The catalogue says which files are in the store (``RemoteFile``), all of them in
directories of the data directory; they are loaded at the start and kept in memory. Both kinds have names in the same
directories, and all calls answer for both. A local copy is always preferred: it is as new as the one in the store, or newer. A
file without a local copy is read through the cache (``remote_view.py``) and cannot be written; opened with ``create`` it is
first copied to the local disk.

Names change as on any disk: at once for who asks, durably with the next ``sync_dir``; ``flush`` writes all changes to the
catalogue in one transaction. Should that fail, the changes stay noted, and a crash brings the old names back, which recovery
knows how to remove again. Two changes are durable at once, because the names of local files depend on them: that of a
directory, and the end of a remote file whose name a local one takes (a compacted segment). Such calls, ``sync_dir`` and what
the uploader does block for as long as the catalogue needs, and are for threads that may wait.

Any thread may call. ``_lock`` guards the tables while they change; they are read without it, one look-up at a time.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Final, Protocol, cast

from broker.errors import StorageError, UnknownOutcome
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue, RemoteFile
from broker.runtime.clock import Clock
from broker.runtime.disk import Disk, File, SyncQueue, Unreachable
from broker.runtime.threads import Lock
from broker.storage.segments.segment import CLEANED
from broker.storage.tier.cache import ChunkCache
from broker.storage.tier.remote_view import RemoteView

logger = get_logger("storage")

_COPY_BYTES: Final = 1024 * 1024


class Shipping(Protocol):
    """What a disk has that ships its files elsewhere (it is not the machine's own)."""

    def is_shipped(self, path: str) -> bool:
        """Whether everything in the file is durable elsewhere."""

    def forget(self, paths: Iterable[str]) -> None:
        """These files are in the object store as segments: nothing else need be kept of them."""


class TieredDisk:
    def __init__(
        self,
        inner: Disk,
        data_dir: str,
        catalogue: Catalogue,
        cache: ChunkCache,
        clock: Clock,
        mine: Callable[[RemoteFile], bool] | None = None,
    ) -> None:
        """Loads the remote files. ``mine``: which of them are this node's, if the catalogue has those of several. Raises
        StorageError."""
        self.inner = inner
        self.cache = cache
        self.shipping: Shipping | None = cast(Shipping, inner) if hasattr(inner, "is_shipped") else None
        self._root = data_dir
        self._prefix = f"{data_dir}/"
        self._catalogue = catalogue
        self._clock = clock
        self._mine = mine
        self._lock = Lock()
        self._files: dict[str, RemoteFile] = {}
        self._names: dict[str, dict[str, None]] = {}  # by directory; one whose last file is gone stays until ``rmdir``
        self._object_sizes: dict[str, int] = {}
        # What the catalogue is not told yet. Held while it is: changes are made one after the other.
        self._flushing = Lock()
        self._removed: dict[str, None] = {}
        self._put_later: dict[str, RemoteFile] = {}
        self._load()
        # What has nothing to do with names goes straight to the inner disk.
        self.when_exhausted = inner.when_exhausted
        self.makedirs = inner.makedirs
        self.is_link = inner.is_link
        self.syncs_at_once = inner.syncs_at_once
        self.free_bytes = inner.free_bytes
        self.total_bytes = inner.total_bytes
        self.lock = inner.lock

    # -- what is where --------------------------------------------------------------------------------------------------

    def is_remote(self, path: str) -> bool:
        """Whether the file is in the object store, with or without a local copy."""
        return self._relative(path) in self._files

    def is_local(self, path: str) -> bool:
        """Whether there is a file, or a copy, on the local disk. Asks the disk."""
        return self.inner.exists(path)

    def remote_files(self) -> list[RemoteFile]:
        return list(self._files.values())

    def objects(self) -> set[str]:
        """The keys of the objects that files refer to."""
        return {file.object for file in self.remote_files()}

    def adopt(self, files: Sequence[RemoteFile]) -> None:
        """Note, durably, that these files are in the object store now. Raises StorageError; UnknownOutcome: perhaps they are."""
        self._commit((), files)

    def abandon(self, paths: Sequence[str]) -> None:
        """Note, durably, that these files are no longer in the object store: their objects are condemned unless others use them.
        Each must have a local copy. Raises StorageError."""
        relative = [path.removeprefix(self._prefix) for path in paths]
        self._commit(relative, ())

    def evict(self, path: str) -> int:
        """Remove the local copy of a remote file. Who has opened it goes on with it. Returns its bytes; 0 if there is none, or if
        it is not the one that is in the store. Raises OSError."""
        remote = self._files.get(self._relative(path) or "")
        if remote is None:
            return 0
        try:
            size = self.inner.file_size(path)
            if size != remote.size:
                return 0
            self.inner.remove(path)
        except FileNotFoundError:
            return 0
        return size

    def forget_objects(self, keys: Iterable[str]) -> None:
        """These objects are gone."""
        with self._lock:
            for key in keys:
                self._object_sizes.pop(key, None)

    def forget_unused_objects(self, condemned: Set[str]) -> None:
        """Another node deletes objects: those that no file refers to and that are not ``condemned`` any more are gone."""
        with self._lock:
            used = {file.object for file in self._files.values()}
            for key in [key for key in self._object_sizes if key not in used and key not in condemned]:
                del self._object_sizes[key]

    def forget_directory(self, path: str) -> None:
        """Note, durably, that the files of a directory are no longer in the object store; local ones stay. Raises
        StorageError."""
        relative = self._relative(path)
        with self._lock:
            names = list(self._names.get(relative or "", ()))
        if names:
            self._commit([f"{relative}/{name}" for name in names], ())

    def relative(self, path: str) -> str:
        """The path as a ``RemoteFile`` has it."""
        return path.removeprefix(self._prefix)

    def _relative(self, path: str) -> str | None:
        """None for a path outside of the data directory."""
        if path.startswith(self._prefix):
            return path[len(self._prefix) :]
        return "" if path == self._root else None

    # -- Disk -----------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        relative = self._relative(path)
        remote = None if relative is None else self._files.get(relative)
        if remote is None:
            return self.inner.open(path, create=create, read_only=read_only)
        try:
            return self.inner.open(path, read_only=read_only)
        except FileNotFoundError:
            pass
        if create:
            self._copy(remote, path)
            return self.inner.open(path, read_only=read_only)
        return self._view(path, remote)

    def _view(self, path: str, remote: RemoteFile) -> RemoteView:
        size = self._object_sizes.get(remote.object, 0)
        return RemoteView(path, remote, max(size, remote.position + remote.size), self.cache)

    def _copy(self, remote: RemoteFile, path: str) -> None:
        """Make a local copy of a remote file at this path."""
        view = self._view(path, remote)
        passing = path + CLEANED  # the next start removes it if this one is not finished
        file = self.inner.open(passing, create=True)
        try:
            file.truncate(0)
            for position in range(0, remote.size, _COPY_BYTES):
                file.pwrite([view.pread(min(_COPY_BYTES, remote.size - position), position)], position)
            file.sync()
        except BaseException:
            file.close()
            self.inner.remove(passing)
            raise
        file.close()
        self.inner.rename(passing, path)

    def listdir(self, path: str) -> list[str]:
        others = self._names_in(path)
        try:
            names = self.inner.listdir(path)
        except FileNotFoundError:
            if not others:
                raise
            names = []
        return sorted({*names, *others}) if others else names

    def _names_in(self, path: str) -> set[str]:
        """The names of remote files in a directory; in the data directory, of the directories that have any."""
        relative = self._relative(path)
        if relative is None or not self._files:
            return set()
        with self._lock:
            if not relative:
                return {directory for directory, names in self._names.items() if names}
            return set(self._names.get(relative, ()))

    def exists(self, path: str) -> bool:
        return self.inner.exists(path) or self._relative(path) in self._files or bool(self._names_in(path))

    def is_dir(self, path: str) -> bool:
        return self.inner.is_dir(path) or (not self.inner.exists(path) and bool(self._names_in(path)))

    def file_size(self, path: str) -> int:
        try:
            return self.inner.file_size(path)
        except FileNotFoundError:
            remote = self._files.get(self._relative(path) or "")
            if remote is None:
                raise
            return remote.size

    def rename(self, old: str, new: str) -> None:
        """Raises OSError; Unreachable if the catalogue fails."""
        source, target = self._relative(old), self._relative(new)
        if source in self._files:
            assert source is not None
            assert target is not None, "a remote file leaves the data directory"
            if not self.is_dir(new.rpartition("/")[0]):
                raise FileNotFoundError(errno.ENOENT, "there is no such directory", new)
            row = self._files[source]._replace(path=target)
            self._note((source, target), (row,))
            try:
                self.inner.rename(old, new)
            except FileNotFoundError:
                if self.inner.exists(new):  # it is replaced by one without a local copy
                    self.inner.remove(new)
        elif target in self._files:
            # The local file replaces one in the store. Should the broker die before it does, recovery finds the file
            # under its old name and renames it.
            assert target is not None
            self.inner.file_size(old)  # raises FileNotFoundError
            self._commit_name((target,), ())
            self.inner.rename(old, new)
        elif source is not None and self._names_in(old):
            assert target is not None, "remote files leave the data directory"
            self._rename_directory(source, target)
            if self.inner.exists(old):
                self.inner.rename(old, new)
        else:
            self.inner.rename(old, new)
            if source is not None:
                self._names.pop(source, None)  # a directory that had remote files once

    def _rename_directory(self, old: str, new: str) -> None:
        with self._lock:
            moved = [self._files[f"{old}/{name}"] for name in self._names.get(old, ())]
        renamed = [file._replace(path=new + file.path.removeprefix(old)) for file in moved]
        self._commit_name([file.path for file in moved], renamed)
        self._names.pop(old, None)

    def link(self, old: str, new: str) -> None:
        """Of a remote file without a local copy, ``new`` gets a copy."""
        if self.exists(new) and self.exists(old):
            raise FileExistsError(errno.EEXIST, "there is a file of this name", new)
        remote = self._files.get(self._relative(old) or "")
        try:
            self.inner.link(old, new)
        except FileNotFoundError:
            if remote is None or self.inner.exists(old):
                raise
            self._copy(remote, new)

    def remove(self, path: str) -> None:
        relative = self._relative(path)
        if relative is None or relative not in self._files:
            self.inner.remove(path)
            return
        try:
            self.inner.remove(path)
        except FileNotFoundError:
            pass
        self._note((relative,), ())

    def rmdir(self, path: str) -> None:
        relative = self._relative(path)
        try:
            self.inner.rmdir(path)
        except FileNotFoundError:
            if relative not in self._names or self._names_in(path):
                raise
        if relative is not None:
            self._names.pop(relative, None)

    def sync_dir(self, path: str) -> None:
        self.flush()
        self.inner.sync_dir(path)

    def sync_all(self, files: Sequence[File], patience_s: float) -> Iterator[tuple[int, OSError | None] | None]:
        if any(file.is_remote for file in files):
            return self._sync_local(files, patience_s)
        return self.inner.sync_all(files, patience_s)

    def _sync_local(self, files: Sequence[File], patience_s: float) -> Iterator[tuple[int, OSError | None] | None]:
        """Remote files are durable already."""
        yield from ((number, None) for number, file in enumerate(files) if file.is_remote)
        local = [number for number, file in enumerate(files) if not file.is_remote]
        for done in self.inner.sync_all([files[number] for number in local], patience_s):
            yield None if done is None else (local[done[0]], done[1])

    def sync_queue(self) -> SyncQueue | None:
        return self.inner.sync_queue()

    # -- the catalogue --------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        keys: dict[str, str] = {}  # the files of a segment share one text
        files = {}
        for file in self._catalogue.load_remote_files():
            if self._mine is not None and not self._mine(file):
                continue
            key = keys.setdefault(file.object, file.object)
            files[file.path] = file._replace(object=key)
        with self._lock:
            self._files, self._names, self._object_sizes = {}, {}, {}
            for file in files.values():
                self._put(file)

    def _put(self, file: RemoteFile) -> None:
        self._files[file.path] = file
        directory, _, name = file.path.rpartition("/")
        self._names.setdefault(directory, {})[name] = None
        sizes = self._object_sizes
        sizes[file.object] = max(sizes.get(file.object, 0), file.position + file.size)

    def _change(self, removed: Iterable[str], put: Iterable[RemoteFile]) -> None:
        """In memory. Who still reads an object that no file refers to needs its size until it is gone. ``_lock`` is held."""
        for path in removed:
            file = self._files.pop(path, None)
            if file is not None:
                directory, _, name = path.rpartition("/")
                self._names[directory].pop(name, None)
        for file in put:
            self._put(file)

    def _note(self, removed: Sequence[str], put: Sequence[RemoteFile]) -> None:
        """Change names now, and durably later."""
        with self._lock:
            self._change(removed, put)
            for path in removed:
                self._put_later.pop(path, None)
                self._removed[path] = None
            for file in put:
                self._put_later[file.path] = file

    def flush(self) -> bool:
        """Make the names durable. False, after an event, if the catalogue fails."""
        if not self._removed and not self._put_later:
            return True
        try:
            self._commit((), ())
        except StorageError as error:
            logger.warning("remote_names_not_durable", error=str(error))
            return False
        return True

    def _commit_name(self, removed: Sequence[str], put: Sequence[RemoteFile]) -> None:
        """Raises Unreachable, an OSError, as callers of a disk expect."""
        try:
            self._commit(removed, put)
        except StorageError as error:
            raise Unreachable(f"a name of a file in the object store could not be changed: {error}") from error

    def _commit(self, removed: Sequence[str], put: Sequence[RemoteFile]) -> None:
        """Change names durably, and with them those that were noted before. Raises StorageError, after which the names are as
        they are known to be."""
        with self._flushing:
            with self._lock:
                before_removed, before_put = self._removed, self._put_later
                self._removed, self._put_later = {}, {}
            files = {path: file for path, file in before_put.items() if path not in removed} | {f.path: f for f in put}
            try:
                self._catalogue.alter_remote_files(
                    list(files.values()), [*before_removed, *removed], self._clock.time_ms()
                )
            except StorageError as error:
                is_unknown = isinstance(error, UnknownOutcome)
                was_made = is_unknown and self._was_made([*before_removed, *removed], files)
                with self._lock:
                    if not was_made:  # what was noted meanwhile came later
                        earlier = {path: file for path, file in before_put.items() if path not in self._removed}
                        self._put_later = earlier | self._put_later
                        self._removed = before_removed | self._removed
                    if is_unknown:  # the names were loaded
                        self._change(self._removed, list(self._put_later.values()))
                raise
            with self._lock:
                self._change(removed, put)

    def _was_made(self, removed: Sequence[str], put: Mapping[str, RemoteFile]) -> bool:
        """Whether the catalogue has a change of which its engine could not say so. All names are loaded again for it."""
        try:
            self._load()
        except StorageError as error:
            logger.error("remote_files_not_read", error=str(error))
            return False
        left = any(path in self._files for path in removed if path not in put)
        return not left and all(self._files.get(path) == file for path, file in put.items())
