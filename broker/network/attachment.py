"""What another part of the broker does on a processor's thread: its descriptor is in the processor's poller.

So that part needs no thread of its own to wait, and no change of the thread to go on with what a request has begun.

Tests: tests/network/test_attachment.py.
"""

from typing import Protocol

from broker.runtime.poller import Pollable


class Attachment(Protocol):
    """For one processor. Every method but ``detach`` is called on its thread. None of them waits for the disk.

    What they submit to the processor goes through its inbox, as from another thread, so that an error costs one connection.
    """

    @property
    def due(self) -> object:
        """True if ``begin_due`` has something to do. Requests and ``ready`` make it true."""

    @property
    def source(self) -> Pollable:
        """What the processor's poller watches. It stays the same."""

    def attach(self) -> None:
        """The thread has started."""

    def ready(self) -> None:
        """``source`` is readable."""

    def begin_due(self) -> None:
        """The processor has handled what it has read, and is about to wait."""

    def detach(self) -> None:
        """The processor has no connections any more. Called once, on its thread or after that has ended."""
