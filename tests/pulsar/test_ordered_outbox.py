"""What several threads push to one connection leaves in the order in which they pushed it."""

from collections.abc import Callable
from typing import Any

from broker.pulsar.producers.producer import OrderedOutbox


class Processor:
    """An outbox like the reactor's: what its own thread asks for happens at once, the rest when the inbox is read."""

    def __init__(self) -> None:
        self.is_mine = False
        self.sent: list[bytes] = []
        self._inbox: list[Callable[[], None]] = []

    def _submit(self, work: Callable[[], None]) -> None:
        if self.is_mine:
            work()
        else:
            self._inbox.append(work)

    def push(self, connection: Any, parts: Any) -> None:
        self._submit(lambda: self.sent.extend(parts))

    def call(self, connection: Any, work: Callable[[], None]) -> None:
        self._submit(work)

    def read_inbox(self) -> None:
        self.is_mine = True
        inbox, self._inbox = self._inbox, []
        for work in inbox:
            work()


def test_the_processor_does_not_overtake_another_thread() -> None:
    processor = Processor()
    outbox = OrderedOutbox("connection", processor)  # type: ignore[arg-type]
    outbox.push("connection", [b"1", b"2"])  # type: ignore[arg-type]  # from another thread
    processor.is_mine = True
    outbox.push("connection", [b"3"])  # type: ignore[arg-type]
    assert processor.sent == [b"1", b"2", b"3"]
    processor.read_inbox()
    assert processor.sent == [b"1", b"2", b"3"]


def test_pushes_of_other_threads_leave_with_inbox() -> None:
    processor = Processor()
    outbox = OrderedOutbox("connection", processor)  # type: ignore[arg-type]
    called: list[int] = []
    outbox.push("connection", [b"1"])  # type: ignore[arg-type]
    outbox.call("connection", lambda: called.append(len(processor.sent)))  # type: ignore[arg-type]
    outbox.push("connection", [b"2"])  # type: ignore[arg-type]
    assert processor.sent == []
    processor.read_inbox()
    assert processor.sent == [b"1", b"2"]
    assert called
