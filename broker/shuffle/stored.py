"""A buffer as the broker keeps it: its payload, untouched, in memory or in a file."""

from typing import Protocol

from broker.runtime.disk import File
from protocol.shuffle.data_type import IS_BUFFER, DataType


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


class StoredBuffer:
    """``payload``: the bytes; or their offset in the partition's file; None when it was sent and let go of.

    ``data_before``: how many data buffers of its subpartition came before it; what makes a backlog cheap to tell.
    """

    __slots__ = ("compressed", "data_before", "data_type", "payload", "size", "subpartition")

    def __init__(
        self,
        subpartition: int,
        data_type: DataType,
        compressed: bool,
        payload: bytes | int,
        size: int,
        data_before: int,
    ) -> None:
        self.subpartition = subpartition
        self.data_type = data_type
        self.compressed = compressed
        self.payload: bytes | int | None = payload
        self.size = size
        self.data_before = data_before

    @property
    def in_memory(self) -> bool:
        return type(self.payload) is bytes

    @property
    def is_data(self) -> bool:
        return IS_BUFFER[self.data_type]
