"""What other threads may ask of a processor, and nothing else of it: the mailbox in which they leave work.

A verb is never called by others. It goes through ``submit`` with its two arguments, which runs it on the processor's thread.
The module is below requests and connections, so a verb's arguments have no types here: `Processor` declares them.

Tests: tests/network/test_outbox.py, tests/network/test_processor.py.
"""

from collections.abc import Callable
from typing import Any, Protocol

Verb = Callable[[Any, Any], None]


class Mailbox(Protocol):
    def submit(self, verb: Verb, target: Any, argument: Any) -> None:
        """From any thread: run ``verb(target, argument)`` on the processor's thread, at once if this is it, else soon."""

    # -- verbs on a request -------------------------------------------------------------------------------------------

    @property
    def send(self) -> Verb:
        """(request, parts): answer it."""

    @property
    def no_op(self) -> Verb:
        """(request, None): it needs no answer."""

    @property
    def close_connection(self) -> Verb:
        """(request, None): close its connection once the bytes queued so far have been sent."""

    @property
    def hand_over(self) -> Verb:
        """(request, what goes with it): a parked request goes to a handler."""

    @property
    def give_back(self) -> Verb:
        """(request, None): its handler has returned; release the memory of its frame if it was lent to the handler."""

    # -- verbs on a connection ----------------------------------------------------------------------------------------

    @property
    def push(self) -> Verb:
        """(connection, parts): send bytes that answer no request."""

    @property
    def call(self) -> Verb:
        """(connection, callable): run a service's own work."""

    @property
    def throttle(self) -> Verb:
        """(connection, event): a quota begins or ends to mute the connection."""
