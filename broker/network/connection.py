"""One connection as its processor keeps it: socket, bytes that have come, bytes that must go, mute state.

Everything here is touched by the connection's own processor only; a service on another thread reaches it through the outbox
and may read ``writable``, ``finished`` and ``closed`` (plain flags, advice only).
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import attrs

from broker.network.mailbox import Mailbox
from broker.network.mute import UNWRITABLE
from broker.network.receive_buffer import ReceiveBuffer
from broker.network.service import Part, Peer, Request, Service, Session
from broker.runtime.disk import Buffer, FileRegion
from broker.runtime.net import WOULD_BLOCK, Socket

# Bytes of files one connection may send before the others of its processor get their turn. Memory parts are bounded by the
# high-water mark.
_TURN_BYTES = 4 * 1024 * 1024


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
    frame_size: int = 0  # of the incomplete frame that waits in `received`; 0 = not known yet
    holds: int = 0  # why no request is taken from it (see `mute.py`); 0 = receptive
    interest: int = 0  # events registered with the poller; 0 = not registered
    in_flight: Request | None = None
    held: Request | None = None  # parsed, but the request channel was full
    runnable: bool = False  # in its processor's queue of those that may go on

    # -- outgoing ---------------------------------------------------------------------------------------------------
    outgoing: deque[Part] = attrs.Factory(deque)
    outgoing_bytes: int = 0
    outgoing_files: int = 0  # bytes of it that are files': they take no memory
    dirty: bool = False  # in its processor's list of those to flush
    finished: bool = False  # the peer has closed its sending side: what came whole is answered, then we close
    keep: bool = False  # the service's: silence is no reason to close it
    closed: bool = False
    counted: bool = True  # in the quotas

    # -- counted ----------------------------------------------------------------------------------------------------
    requests: int = 0
    # The service's own, whatever it is.
    data: Any = None

    @property
    def writable(self) -> bool:
        """False from above the high-water mark until below the low one."""
        return not self.holds & UNWRITABLE

    @writable.setter
    def writable(self, _: bool) -> None:
        """A service has more to send than it may queue. It is told when the queue has drained."""
        assert not _
        self.holds |= UNWRITABLE

    def enqueue(self, parts: Sequence[Part]) -> None:
        """Append to what must go."""
        size = 0
        for part in parts:
            if type(part) is FileRegion:
                size += part.size
                self.outgoing_files += part.size
            else:
                size += len(part)  # type: ignore[arg-type]
        self.outgoing.extend(parts)
        self.outgoing_bytes += size

    def flush(self) -> bool:
        """Send what the socket takes, at most a turn's worth. True when nothing is left. OSError: the connection is gone."""
        outgoing = self.outgoing
        turn = _TURN_BYTES
        while outgoing:
            head = outgoing[0]
            if type(head) is FileRegion:
                if turn <= 0:
                    return False
                sent = self.socket.send_file(head)
                if sent == WOULD_BLOCK:
                    return False
                if sent == 0 and head.size:
                    raise OSError(f"{head.file.path} ends before byte {head.offset + head.size}")
                turn -= sent
                self.outgoing_bytes -= sent
                self.outgoing_files -= sent
                if sent == head.size:
                    outgoing.popleft()
                else:
                    outgoing[0] = FileRegion(head.file, head.offset + sent, head.size - sent)
                continue
            if len(outgoing) == 1:
                buffers: list[Buffer] = [head]  # type: ignore[list-item]
                more = False
            else:
                buffers = []
                more = False
                for part in outgoing:
                    if type(part) is FileRegion:
                        more = True
                        break
                    buffers.append(part)  # type: ignore[arg-type]
                    if len(buffers) == 64:
                        break
            sent = self.socket.send(buffers, more)
            if sent == WOULD_BLOCK:
                return False
            self.outgoing_bytes -= sent
            for buffer in buffers:
                size = len(buffer)
                if sent < size:
                    if sent:
                        outgoing[0] = memoryview(buffer)[sent:]
                    break
                sent -= size
                outgoing.popleft()
        return True
