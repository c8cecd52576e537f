"""What the user's threads and the I/O thread share of one writer. All of it is guarded by ``changed``.

Tests: tests/client/shuffle/writing/test_shuffle_writer.py.
"""

from broker.client.shuffle.writing.resend_window import ResendWindow
from broker.client.shuffle.writing.writer_state import WriterEvent, WriterState, next_state
from broker.runtime.threads import Condition


class SharedState:
    __slots__ = ("changed", "error", "readers_left", "state", "waiting_threads", "window")

    def __init__(self, window: ResendWindow) -> None:
        self.changed = Condition()
        self.window = window
        self.state = WriterState.NEW
        self.error: Exception | None = None  # why it is FAILED; it stays when the writer is closed
        self.readers_left = False  # a fact about the readers, which outlasts DISCARDING
        self.waiting_threads = 0

    @property
    def is_finishing(self) -> bool:
        """``commit`` was called, and the partition is not finished yet."""
        return self.state is WriterState.FINISHING or self.state is WriterState.COMMITTING

    def advance(self, event: WriterEvent) -> None:
        self.state = next_state(self.state, event)

    def fail(self, error: Exception) -> None:
        """The first error counts, unless the partition is finished."""
        if self.state < WriterState.FINISHED:
            self.state = next_state(self.state, WriterEvent.FAIL)
            self.error = error
        elif self.state is WriterState.CLOSED and self.error is None:
            self.error = error  # for a thread that still waits
        self.changed.notify_all()

    def wake_waiting(self) -> None:
        """Something has changed that a waiting thread may wait for."""
        if self.waiting_threads:
            self.changed.notify_all()
