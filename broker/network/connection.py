"""One connection as its processor keeps it: the socket, received bytes, bytes to send, and its holds.

Only the connection's own processor uses it. A service on another thread reaches it through the outbox and may read ``writable``,
``finished`` and ``closed``, which may change the moment after.

The booleans are independent of each other. ``runnable`` and ``dirty`` say that the connection is in a list of its processor,
``finished`` is about the peer, ``keep`` is the service's, ``counted`` the quotas', and ``closed`` never changes back.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from broker.network.memory_pool import ReceiveBuffer
from broker.network.mute import UNWRITABLE
from broker.network.service import Mailbox, Part, Peer, Request, Service, Session
from broker.runtime.disk import Buffer, FileRegion
from broker.runtime.net import WOULD_BLOCK, Socket
from broker.security.principal import ANONYMOUS, Principal

# Bytes of files that one connection may send before the processor's other connections get their turn. Bytes in memory are
# bounded by the high-water mark.
_TURN_BYTES = 4 * 1024 * 1024
# A region of a file up to this size is read and sent together with the bytes around it. That takes less CPU than a system call
# of its own for each piece; from 16 KiB on, the copy takes more.
_COPIED_BYTES = 8 * 1024
# Limits of one call that sends: parts, and bytes that are read for it.
_GATHERED_PARTS = 64
_GATHERED_BYTES = 128 * 1024


@attrs.define(eq=False)
class ProcessorConnection:
    socket: Socket
    peer: Peer
    service: Service
    session: Session
    processor: Mailbox
    frame_max: int  # bytes; the listener's largest request
    last_active: float  # Clock.monotonic() s
    # -- incoming ---------------------------------------------------------------------------------------------------
    received: ReceiveBuffer
    frame_size: int = 0  # bytes of the incomplete frame at the start of `received`; 0 = not known yet
    holds: int = 0  # the reasons why no request is taken from it, as bits (see `mute.py`); 0 = receptive
    interest: int = 0  # events registered with the poller; 0 = not registered
    in_flight: Request | None = None
    held: Request | None = None  # parsed; the request channel was full
    runnable: bool = False  # in its processor's queue of connections that may continue

    # -- outgoing ---------------------------------------------------------------------------------------------------
    outgoing: deque[Part] = attrs.Factory(deque)
    outgoing_bytes: int = 0
    outgoing_files: int = 0  # bytes of `outgoing_bytes` that are in files and take no memory
    dirty: bool = False  # in its processor's list of connections to flush
    finished: bool = (
        False  # the peer has closed its sending side; complete requests are answered before the connection closes
    )
    keep: bool = False  # set by the service: do not close it for being idle
    closed: bool = False  # the socket is closed; `CLOSING` is among the holds
    counted: bool = True  # the quotas count it

    # -- counted ----------------------------------------------------------------------------------------------------
    requests: int = 0
    kind: str = ""  # of the last request
    stalled_at: float = 0.0  # since when (Clock.monotonic() s) the socket has not taken the answers; 0 = it has
    throttled_at: float = 0.0  # since when the hold THROTTLED is set
    opened_at: float = 0.0  # Clock.monotonic() s
    bytes_in: int = 0
    bytes_out: int = 0
    data: Any = None  # for the service
    on_flushed: Callable[[float, float], object] | None = None
    principal: Principal = ANONYMOUS

    @property
    def writable(self) -> bool:
        """False from above the high-water mark until below the low-water mark."""
        return not self.holds & UNWRITABLE

    @writable.setter
    def writable(self, _: bool) -> None:
        """Set by a service that has more to send than it may queue. It is told when the queue has drained."""
        assert not _
        self.holds |= UNWRITABLE

    @property
    def busy(self) -> bool:
        """A request of a session that takes one at a time is being handled."""
        return self.in_flight is not None

    def enqueue(self, parts: Sequence[Part]) -> None:
        """Append to the bytes to send."""
        size = 0
        for part in parts:
            if type(part) is FileRegion:
                size += part.size
                self.outgoing_files += part.size
            else:
                size += len(part)
        self.outgoing.extend(parts)
        self.outgoing_bytes += size

    def flush(self) -> bool:
        """Send what the socket takes, but at most a turn's worth of files. True if all is sent.

        Raises OSError if the connection is broken or a file is shorter than its region.
        """
        outgoing = self.outgoing
        turn = _TURN_BYTES
        while outgoing:
            head = outgoing[0]
            if type(head) is FileRegion and head.size > _COPIED_BYTES:
                if turn <= 0:
                    return False
                sent = self.socket.send_file(head)
                if sent == WOULD_BLOCK:
                    return False
                if not sent:
                    raise head.too_short()
                turn -= sent
                self.outgoing_bytes -= sent
                self.outgoing_files -= sent
                if sent == head.size:
                    outgoing.popleft()
                else:
                    outgoing[0] = FileRegion(head.file, head.offset + sent, head.size - sent)
                continue
            if len(outgoing) == 1 and type(head) is not FileRegion:
                buffers: list[Buffer] = [head]  # type: ignore[list-item]
                more, copied = False, 0
            else:
                buffers, more, copied = self._gather()
                if copied and turn <= 0:
                    return False
            sent = self.socket.send(buffers, more)
            if sent == WOULD_BLOCK:
                return False
            if sent == self.outgoing_bytes:  # the usual case: all of it
                outgoing.clear()
                self.outgoing_bytes = self.outgoing_files = 0
                return True
            turn -= copied
            self._sent(buffers, sent)
        return True

    def _gather(self) -> tuple[list[Buffer], bool, int]:
        """The bytes of the first parts for one call, with short regions read into memory; whether a file follows at once; and the
        number of bytes read. Until they are sent, the parts stay as they are."""
        buffers: list[Buffer] = []
        copied = 0
        for part in self.outgoing:
            if type(part) is FileRegion:
                if part.size > _COPIED_BYTES:
                    return buffers, True, copied
                if copied > _GATHERED_BYTES:
                    break
                try:
                    part = part.read()
                except OSError:
                    if not buffers:
                        raise
                    break  # the parts before it are still sent
                copied += len(part)
            buffers.append(part)  # type: ignore[arg-type]
            if len(buffers) == _GATHERED_PARTS:
                break
        return buffers, False, copied

    def _sent(self, buffers: Sequence[Buffer], sent: int) -> None:
        """So many bytes of ``buffers``, which are the first parts, have left."""
        outgoing = self.outgoing
        self.outgoing_bytes -= sent
        for buffer in buffers:
            size = len(buffer)
            if sent < size:
                if sent:
                    if type(outgoing[0]) is FileRegion:
                        self.outgoing_files -= size  # the rest is in memory now
                    outgoing[0] = memoryview(buffer)[sent:]
                break
            sent -= size
            if type(outgoing.popleft()) is FileRegion:
                self.outgoing_files -= size
