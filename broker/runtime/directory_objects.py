"""Objects as files below a directory: an object's key is its path. For one machine, and for a file system that several share.

An object is written under ``.uploads``, synced, and then gets its name, so it is there whole or not at all, whatever loses power.
What a process left there that was killed is removed a day later, by the next that opens the store. Directories that
become empty are removed. There are no deadlines: a file system that hangs, hangs the caller.

For any thread, and any number of processes.
"""

import contextlib
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from broker.runtime.disk import Buffer, SystemDisk
from broker.runtime.objects import (
    ObjectError,
    ObjectExists,
    ObjectMissing,
    Parts,
    check_key,
    check_prefix,
    check_range,
    joined_to_create,
    too_short,
)

T = TypeVar("T")

_UPLOADS = ".uploads"
# No upload takes that long. On a shared file system the clocks of others count, too.
_ABANDONED_S = 24 * 3600
# How often a file is given its name again, whose directory somebody else has just removed because it was empty.
_TRIES = 100
_COMPARED_BYTES = 1024 * 1024


class DirectoryObjects:
    """``root`` is an absolute path; it is made, unless nothing will be put (``read_only``). OSError if that fails."""

    def __init__(self, root: str, read_only: bool = False) -> None:
        self.name = f"file://{root}"
        self._root = root.rstrip("/") or "/"
        self._disk = SystemDisk()
        self._uploads = f"{self._root}/{_UPLOADS}"
        if not read_only:
            self._disk.makedirs(self._uploads)
            self._remove_abandoned()

    def put(self, key: str, parts: Iterable[Buffer], size: int, *, create: bool = False) -> None:
        check_key(key)
        if create:
            parts = [joined_to_create(key, parts, size)]
        source = Parts(parts, size)
        try:
            self._put(key, source, create)
        except OSError as error:
            if error is source.failure or isinstance(error, ObjectError):
                raise
            raise self._failed("create" if create else "put", key, error) from error

    def get(self, key: str, offset: int, size: int) -> bytes:
        check_key(key)
        check_range(offset, size)
        if not size:
            return b""
        data = self._call("get", key, lambda: self._read(key, offset, size))
        if len(data) < size:
            raise too_short(key, self.name, offset, size)
        return data

    def size(self, key: str) -> int:
        check_key(key)
        status = self._call("size of", key, lambda: os.stat(self._path(key)))
        if not stat.S_ISREG(status.st_mode):
            raise ObjectMissing("size of", key, self.name)
        return status.st_size

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        prefix = check_prefix(prefix)
        try:
            yield from _walk(f"{self._root}/{prefix}" if prefix else self._root, prefix and prefix + "/")
        except OSError as error:
            raise self._failed("list", prefix, error) from error

    def delete(self, keys: Iterable[str]) -> None:
        folders: dict[str, str] = {}  # to one of the keys in it
        for key in keys:
            check_key(key)
            with contextlib.suppress(ObjectMissing):
                self._call("delete", key, lambda key=key: self._disk.remove(self._path(key)))  # type: ignore[misc]
                folders[os.path.dirname(self._path(key))] = key
        for folder, key in folders.items():
            self._call("delete", key, lambda folder=folder: self._tidy(folder))  # type: ignore[misc]

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _call(self, operation: str, key: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ObjectMissing(operation, key, self.name) from error
        except OSError as error:
            raise self._failed(operation, key, error) from error

    def _failed(self, operation: str, key: str, error: OSError) -> ObjectError:
        reason = error.strerror or str(error)
        return ObjectError(operation, key, self.name, reason, *([error.errno] if error.errno else []))

    def _read(self, key: str, offset: int, size: int) -> bytes:
        file = self._disk.open(self._path(key), read_only=True)
        try:
            return file.pread(size, offset)
        finally:
            file.close()

    def _put(self, key: str, parts: Parts, create: bool) -> None:
        upload = f"{self._uploads}/{uuid.uuid4().hex}"
        file = self._disk.open(upload, create=True)
        try:
            try:
                position = 0
                for part in parts:
                    position += file.pwrite([part], position)
                file.sync()
            finally:
                file.close()
            self._name(upload, key, create)
        finally:
            with contextlib.suppress(OSError):  # it was renamed, or its removal waits for the next that opens the store
                self._disk.remove(upload)
        self._sync_folders(key)

    def _name(self, upload: str, key: str, create: bool) -> None:
        """Give the file its name, durably after ``_sync_folders``."""
        path = self._path(key)
        for tries in range(_TRIES):
            try:
                self._disk.makedirs(os.path.dirname(path))
                if create:
                    self._disk.link(upload, path)
                else:
                    self._disk.rename(upload, path)
                return
            except FileNotFoundError:
                if tries == _TRIES - 1:
                    raise
            except FileExistsError:
                if not create or not self._disk.exists(path):  # a part of the key is an object
                    raise
                if not self._same(upload, path):
                    raise ObjectExists(key, self.name) from None
                return

    def _same(self, one: str, other: str) -> bool:
        first, second = self._disk.open(one, read_only=True), self._disk.open(other, read_only=True)
        try:
            size = first.size()
            return size == second.size() and all(
                first.pread(_COMPARED_BYTES, position) == second.pread(_COMPARED_BYTES, position)
                for position in range(0, size, _COMPARED_BYTES)
            )
        finally:
            first.close()
            second.close()

    def _sync_folders(self, key: str) -> None:
        """The object's name, and those of its directories, which another call may have made that has not synced them yet."""
        folder = os.path.dirname(self._path(key))
        while len(folder) >= len(self._root):
            with contextlib.suppress(FileNotFoundError):  # another call has deleted the object
                self._disk.sync_dir(folder)
            if folder == self._root:
                break
            folder = os.path.dirname(folder)

    def _tidy(self, folder: str) -> None:
        """Make removals durable, and remove the directory if it is empty, and so on upwards."""
        while len(folder) > len(self._root):
            try:
                self._disk.rmdir(folder)
            except FileNotFoundError:  # another call has removed it
                pass
            except OSError:  # not empty
                break
            folder = os.path.dirname(folder)
        with contextlib.suppress(FileNotFoundError):
            self._disk.sync_dir(folder)

    def _remove_abandoned(self) -> None:
        oldest = time.time() - _ABANDONED_S
        for name in self._disk.listdir(self._uploads):
            with contextlib.suppress(FileNotFoundError):
                if os.stat(f"{self._uploads}/{name}").st_mtime < oldest:
                    self._disk.remove(f"{self._uploads}/{name}")


def _walk(folder: str, prefix: str) -> Iterator[tuple[str, int]]:
    """Keys and sizes of the files in a directory, which may change meanwhile."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(entry.path, f"{prefix}{entry.name}/")
            continue
        with contextlib.suppress(FileNotFoundError):
            yield prefix + entry.name, entry.stat().st_size
