"""Who listens to a result partition: its writer and its readers, as the partition knows them.

The partition stands below the code that serves connections. It calls these, and that code implements them: ``WriterListener`` in
``serving/writers.py``, ``ReaderListener`` in ``serving/view.py``.

Tests: tests/shuffle/test_fencing.py, tests/shuffle/serving/test_view.py.
"""

from typing import Protocol


class WriterListener(Protocol):
    """The connection of a partition's writer. Any thread may call; each call leaves a note with the connection's processor."""

    @property
    def peer(self) -> str:
        """The other end of its connection, for people."""

    @property
    def credit(self) -> int:
        """Pushes that it may still make; read from another thread it may be wrong for a moment."""

    def room_freed(self) -> None:
        """A writer that was held back may get credit again."""

    def partition_ended(self) -> None:
        """The partition has failed or was released, and not by this writer."""

    def fenced(self) -> None:
        """Another writer has opened the partition."""

    def task_event(self, subpartition: int, event: bytes) -> None:
        """A reader has sent an event upstream."""

    def buffer_size(self, subpartition: int, size: int) -> None:
        """A reader would like buffers of this size (bytes)."""

    def records_processed(self, subpartitions: list[int]) -> None:
        """The readers of these subpartitions have processed all user records."""


class ReaderListener(Protocol):
    """A reader of a partition. Any thread may call, without the partition's lock."""

    def notify(self) -> None:
        """There is something for the reader: data where there was none, or the partition's end."""
