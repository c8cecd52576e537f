"""A buffer as the broker keeps it: its payload, untouched, in memory or in a file."""

from broker.runtime.disk import FileRegion
from protocol.shuffle.data_type import IS_BUFFER, DataType


class StoredBuffer:
    """``data_before``: how many data buffers of its subpartition came before it; what makes a backlog cheap to tell."""

    __slots__ = ("compressed", "data_before", "data_type", "payload", "size")

    def __init__(self, data_type: DataType, compressed: bool, payload: bytes | FileRegion, data_before: int) -> None:
        self.data_type = data_type
        self.compressed = compressed
        self.payload: bytes | FileRegion | None = payload  # None: sent, and let go of
        self.size = payload.size if type(payload) is FileRegion else len(payload)  # type: ignore[arg-type]
        self.data_before = data_before

    @property
    def in_memory(self) -> bool:
        return type(self.payload) is bytes

    @property
    def is_data(self) -> bool:
        return IS_BUFFER[self.data_type]
