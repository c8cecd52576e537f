"""The files that spilled buffers lie in.

Tests: tests/shuffle/spill/test_spiller.py.
"""

from typing import Protocol

from broker.runtime.disk import File


class SpillFile(Protocol):
    """The file of a partition. Files with a name are open only while they are used."""

    def get(self) -> File:
        """The open file; it stays open as long as the caller keeps the reference. OSError."""


class NamelessFile:
    """A file whose name was removed: it is deleted when its last reference is dropped."""

    __slots__ = ("_file",)

    def __init__(self, file: File) -> None:
        self._file = file

    def get(self) -> File:
        return self._file
