"""Objects: what is kept in an object store (S3 and others), in a directory, or in memory, behind one interface.

An object is written whole and never changed in part; it is read in ranges. This module has the interface, its errors, and the
store in memory. ``directory_objects.py`` keeps objects as files, ``cloud_objects.py`` in S3, Google Cloud Storage and Azure, and
``open_objects.py`` opens one of them by its URL. Nothing here knows what is in an object.

For any thread; a call may block for as long as its store's deadline, so never on a processor.

Tests: tests/contract/test_objects.py.
"""

import errno
import re
from collections.abc import Iterable, Iterator
from typing import Protocol

from broker.runtime.disk import Buffer
from broker.runtime.threads import Lock

# What is created (``put`` with ``create``) goes in one request, from memory: no store creates in parts.
CREATE_MAX_BYTES = 16 * 1024 * 1024
# S3 allows 1,024 for a whole name; the rest is for the prefix in the store's URL. A part is a file's name in a directory.
KEY_MAX, _PART_MAX = 768, 200
# Characters that no store, file system or URL spells differently. Names with a dot in front are the directory store's own.
_PART = re.compile(r"[A-Za-z0-9_=@+~-][A-Za-z0-9._=@+~-]*")


class ObjectError(OSError):
    """A store could not do what it was asked for. It may have done it all the same, unless the message says otherwise.

    An ``OSError``, so that a file whose bytes are in a store raises what files raise. ``errno`` is that of the directory store's
    file system, else EIO. Messages name the operation, the key and the store, and never have credentials in them.
    """

    def __init__(self, operation: str, key: str, store: str, reason: str, code: int = errno.EIO) -> None:
        super().__init__(f"{operation} {key or 'everything'} in {store}: {reason}")
        self.errno = code
        self.operation = operation
        self.key = key
        self.reason = reason


class ObjectMissing(ObjectError):
    """There is no such object. No ``FileNotFoundError``: who takes a missing file for normal must not take this for normal."""

    def __init__(self, operation: str, key: str, store: str) -> None:
        super().__init__(operation, key, store, "there is no such object", errno.ENOENT)


class ObjectExists(ObjectError):
    """Something else is stored under the key that was to be created."""

    def __init__(self, key: str, store: str) -> None:
        super().__init__("create", key, store, "there is another object under this key", errno.EEXIST)


class ObjectStore(Protocol):
    """Objects by key, from any thread. What a call has returned is durable, and every later call sees it.

    A key consists of parts with ``/`` between them. A part consists of ASCII letters, digits and ``._=@+~-``, does not begin
    with a dot, and has 200 characters at most; a key has 768. No key may be the beginning of another (``a`` and ``a/b``). A
    call with another key, or a negative number, is a mistake of the caller: ValueError.
    """

    name: str
    """The URL, for messages."""

    def put(self, key: str, parts: Iterable[Buffer], size: int, *, create: bool = False) -> None:
        """Store ``parts``, one after another, ``size`` bytes in all (ValueError, and nothing is stored, if they are not).

        Readers see the object whole or not at all, or the one before. A large one is sent while ``parts`` is read, so
        memory stays bounded; ``parts`` may be read on another thread, and is not read after the return.

        With ``create``, ``ObjectExists`` if another object is there; one with the same content is taken for an earlier try of
        this call. So of two that create a key, both succeed unless the content tells them apart. At most
        ``CREATE_MAX_BYTES`` (ValueError).
        """

    def get(self, key: str, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes from ``offset``. ``ObjectMissing``; ``ObjectError`` if the object ends before them.

        Nothing is asked for 0 bytes.
        """

    def size(self, key: str) -> int:
        """In bytes. ``ObjectMissing``."""

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Keys and sizes of the objects whose keys begin with these whole parts, all for ``""``; in no order.

        ``a/b`` is the beginning of ``a/b/c``, and neither of ``a/bc`` nor of ``a/b`` itself. Objects that are put or deleted
        meanwhile may be missing or not. Errors are raised while it is read.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Those that are missing are no error. If one cannot be deleted, ``ObjectError``; others may then be left as well."""


def check_key(key: str) -> None:
    """ValueError if this is no key."""
    if len(key) > KEY_MAX or not all(len(part) <= _PART_MAX and _PART.fullmatch(part) for part in key.split("/")):
        raise ValueError(f"no key of an object: {key[:KEY_MAX]!r}")


def check_prefix(prefix: str) -> str:
    """The beginning of keys without a ``/`` at its end; ValueError if it is none."""
    prefix = prefix.removesuffix("/")
    if prefix:
        check_key(prefix)
    return prefix


def check_range(offset: int, size: int) -> None:
    if offset < 0 or size < 0:
        raise ValueError(f"no range of an object: {size} bytes from {offset}")


class Parts:
    """Iterates over parts without the empty ones. ValueError, at the end or before, if they are not ``size`` bytes.

    ``failure`` is the error that this, or their source, has raised."""

    def __init__(self, parts: Iterable[Buffer], size: int) -> None:
        self._parts = parts
        self._size = size
        self.failure: BaseException | None = None

    def __iter__(self) -> Iterator[Buffer]:
        left = self._size
        try:
            for part in self._parts:
                if part:
                    left -= len(part)
                    if left < 0:
                        break
                    yield part
            if left:
                raise ValueError(f"not {self._size} bytes but {'more' if left < 0 else self._size - left}")
        except BaseException as error:
            self.failure = error
            raise


def joined(parts: Iterable[Buffer], size: int) -> bytes:
    """Those bytes, which nobody can change. ValueError if they are not ``size``."""
    pieces = [*Parts(parts, size)]
    if len(pieces) == 1 and type(pieces[0]) is bytes:
        return pieces[0]
    return b"".join(pieces)


def joined_to_create(key: str, parts: Iterable[Buffer], size: int) -> bytes:
    """As ``joined``. ValueError if it is too large to be created."""
    if size > CREATE_MAX_BYTES:
        raise ValueError(f"{key} has {size} bytes, and {CREATE_MAX_BYTES} can be created")
    return joined(parts, size)


def too_short(key: str, store: str, offset: int, size: int) -> ObjectError:
    """The error for an object that is cut, or from which too much was asked."""
    return ObjectError("get", key, store, f"it ends before byte {offset + size}")


class MemoryObjects:
    """Objects in the memory of this process, for tests and simulations: no threads, no clock, and calls never wait."""

    def __init__(self) -> None:
        self.name = "memory://"
        self._lock = Lock()
        self._objects: dict[str, bytes] = {}

    def put(self, key: str, parts: Iterable[Buffer], size: int, *, create: bool = False) -> None:
        check_key(key)
        data = joined_to_create(key, parts, size) if create else joined(parts, size)
        with self._lock:
            if create and self._objects.get(key, data) != data:
                raise ObjectExists(key, self.name)
            self._objects[key] = data

    def get(self, key: str, offset: int, size: int) -> bytes:
        check_key(key)
        check_range(offset, size)
        if not size:
            return b""
        data = self._find("get", key)[offset : offset + size]
        if len(data) < size:
            raise too_short(key, self.name, offset, size)
        return data

    def size(self, key: str) -> int:
        check_key(key)
        return len(self._find("size of", key))

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        prefix = check_prefix(prefix)
        start = prefix and prefix + "/"
        with self._lock:
            found = [(key, len(data)) for key, data in self._objects.items() if key.startswith(start)]
        return iter(found)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            check_key(key)
            with self._lock:
                self._objects.pop(key, None)

    def _find(self, operation: str, key: str) -> bytes:
        with self._lock:
            data = self._objects.get(key)
        if data is None:
            raise ObjectMissing(operation, key, self.name)
        return data
