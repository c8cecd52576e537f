"""The files that spilled buffers lie in."""

from typing import Protocol
from weakref import ref

from broker.runtime.disk import File
from broker.runtime.threads import Lock
from broker.storage.files import CachedFile


class SpillFile(Protocol):
    """The file of a partition. Some are open only while they are used."""

    def get(self) -> File:
        """The open file; whoever keeps the reference keeps it open. OSError."""


class NamelessFile:
    """One that has no name any more: it goes when it is let go of."""

    __slots__ = ("_file",)

    def __init__(self, file: File) -> None:
        self._file = file

    def get(self) -> File:
        return self._file


class DataFile:
    """One that has a name, and knows who still has it open: only when nobody does, it may be written again."""

    __slots__ = ("_cached", "_given", "_last", "_lock", "_retired")

    def __init__(self, cached: CachedFile) -> None:
        self._cached = cached
        self._lock = Lock()
        self._given: list[ref[File]] = []
        self._last: ref[File] | None = None
        self._retired = False

    @property
    def path(self) -> str:
        return self._cached.path

    def get(self) -> File:
        file, last = self._cached.file, self._last
        if file is not None and last is not None and last() is file:
            self._cached.used = True
            return file
        return self._open()

    def create(self) -> File:
        """As ``get``; makes the file if it is missing."""
        return self._open(create=True)

    def _open(self, create: bool = False) -> File:
        # What is opened is noted before anybody has it, so ``in_use`` is right from the moment of ``retire`` on.
        with self._lock:
            if self._retired:
                raise FileNotFoundError(self.path)
            file = self._cached.create() if create else self._cached.get()
            if self._last is None or self._last() is not file:
                self._last = ref(file)
                self._given = [given for given in self._given if given() is not None]
                self._given.append(self._last)
            return file

    def retire(self) -> None:
        """It is not given to anybody any more."""
        with self._lock:
            self._retired = True
            self._cached.drop()

    @property
    def in_use(self) -> bool:
        """Of one that was retired: somebody who was given it reads it, or sends from it."""
        return any(given() is not None for given in self._given)
