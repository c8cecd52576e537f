"""New connections on their way from the acceptor to a processor: a bounded queue for each processor.

The acceptor's thread offers, the processor's thread takes. Once the queue is closed nothing is offered any more, so whoever
closed it can empty it for good.
"""

from collections import deque
from typing import Final, Protocol

import attrs

from broker.network.service import Peer, Service
from broker.runtime.net import Socket
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
