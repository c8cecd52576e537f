"""The state of one writer that the user's threads and the I/O thread share. All fields are guarded by ``changed``.

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
        self.error: Exception | None = None  # why the state is FAILED; kept when the writer is closed
        self.readers_left = False  # all readers have cancelled; stays true in the states after DISCARDING
        self.waiting_threads = 0

    @property
    def is_finishing(self) -> bool:
        """``commit`` was called, and the partition is not finished yet."""
        return self.state is WriterState.FINISHING or self.state is WriterState.COMMITTING

    def advance(self, event: WriterEvent) -> None:
        self.state = next_state(self.state, event)

    def fail(self, error: Exception) -> None:
        """Record the first error, unless the partition is finished, and wake all waiting threads."""
        if self.state < WriterState.FINISHED:
            self.state = next_state(self.state, WriterEvent.FAIL)
            self.error = error
        elif self.state is WriterState.CLOSED and self.error is None:
            self.error = error  # for a thread that is still waiting
        self.changed.notify_all()

    def wake_waiting(self) -> None:
        """Wake the waiting threads, after a change that one of them may wait for."""
        if self.waiting_threads:
            self.changed.notify_all()
