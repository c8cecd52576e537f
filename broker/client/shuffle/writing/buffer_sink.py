"""The part of a partition's writer that a RecordWriter uses to push its buffers.

Tests: tests/client/shuffle/writing/test_record_writer.py.
"""

from collections.abc import Callable
from typing import Protocol

from protocol.shuffle.data_type import DataType
from protocol.shuffle.events import Event
from protocol.shuffle.generation import Generation
from protocol.shuffle.writer_frames import PartitionType

Bytes = bytes | bytearray | memoryview


class BufferSink(Protocol):
    subpartitions: int
    type: PartitionType
    generation: Generation
    on_buffer_size: Callable[[int, int], None] | None

    def push(
        self,
        subpartition: int,
        payload: Bytes,
        data_type: DataType = DataType.DATA_BUFFER,
        *,
        compressed: bool = False,
        timeout: float | None = None,
        copy: bool = True,
    ) -> None: ...

    def has_room(self, subpartition: int, size: int) -> bool: ...

    def push_event(
        self, event: Event, subpartition: int | None = None, *, priority: bool = False, timeout: float | None = None
    ) -> None: ...
