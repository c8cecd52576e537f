"""New connections on their way from the acceptor to a processor, and attachments: other work on a processor's thread.

Each processor has a bounded queue of new connections. The acceptor's thread offers, the processor's thread takes. Once the queue
is closed nothing is offered any more, so the thread that closed it can empty it for good.

An attachment is another part of the broker whose descriptor is in the processor's poller. So that part needs no thread of its own
to wait, and no thread switch to continue the work of a request.
"""

from collections import deque
from typing import Final, Protocol

import attrs

from broker.network.service import Peer, Service
from broker.runtime.net import Socket
from broker.runtime.poller import Pollable
from broker.runtime.threads import Lock
from broker.security.tls_listener import TlsListener

# Kafka's connection queue size of a processor.
_NEW_CONNECTIONS_MAX = 20


@attrs.define(eq=False)
class NewConnection:
    """An accepted connection, counted in the quotas and not yet registered with a poller.

    The acceptor sets the times (Clock.monotonic() s), and changes nothing once a processor has it.
    """

    socket: Socket
    peer: Peer
    service: Service
    frame_max: int  # bytes; the listener's largest request
    tls: TlsListener | None = None  # None: no TLS
    accepted_at: float = 0.0
    handed_at: float = 0.0  # the last offer to a processor


class Receiver(Protocol):
    """What the acceptor sees of a processor."""

    def offer(self, new: NewConnection) -> bool:
        """Take a new connection; False if the processor cannot take one now."""


class NewConnectionQueue:
    def __init__(self) -> None:
        self.waiting: Final[deque[NewConnection]] = deque()  # the processor's thread takes from the left
        self._lock = Lock()  # between `offer` and `close`, and for `_turned_away`
        self._closed = False
        self._turned_away = False

    def offer(self, new: NewConnection) -> bool:
        """Queue it; False if the queue is full or closed."""
        with self._lock:
            if len(self.waiting) >= _NEW_CONNECTIONS_MAX or self._closed:
                self._turned_away = True
                return False
            self.waiting.append(new)
        return True

    def close(self) -> None:
        """Refuse every further offer. From any thread."""
        with self._lock:
            self._closed = True

    def turned_away(self) -> bool:
        """Whether an offer was refused since this was last asked."""
        with self._lock:
            turned_away, self._turned_away = self._turned_away, False
        return turned_away


class Attachment(Protocol):
    """For one processor. Every method but ``detach`` is called on its thread. None of them waits for the disk.

    Their calls to the processor go through its inbox, as from another thread, so that an error costs one connection.
    """

    @property
    def due(self) -> object:
        """True if ``begin_due`` has something to do. Requests and ``ready`` make it true."""

    @property
    def source(self) -> Pollable:
        """What the processor's poller watches. It stays the same."""

    def attach(self) -> None:
        """The thread has started, or another one has taken its place (see ``relief.py``)."""

    def ready(self) -> None:
        """``source`` is readable."""

    def begin_due(self) -> None:
        """Begin due work: the processor has handled everything that it has read, and is about to wait."""

    def detach(self) -> None:
        """The processor has no connections any more. Called once, on its thread or after that has ended."""
