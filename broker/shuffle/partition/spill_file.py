"""The files that spilled buffers lie in."""

from typing import Protocol

from broker.runtime.disk import File


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
