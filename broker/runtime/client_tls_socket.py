"""TLS on a connected, non-blocking socket, the client's end. The broker's end is elsewhere, because it must bound what a stranger
may cost; a client chooses its broker.

One thread uses it. OpenSSL reads one record at a time from the descriptor, so a poller sees what has not been read; ``buffered``
says that the rest of a record is here already and that the poller will not report it.
"""

import contextlib
import ssl
from collections.abc import Sequence

from broker.runtime.client_tls import TlsContext, refusal
from broker.runtime.disk import Buffer
from broker.runtime.net import WOULD_BLOCK, Socket, SystemSocket
from broker.runtime.poller import READ, WRITE

# The most data of one record.
_RECORD_BYTES = 16 * 1024
# The most of one call, so that other connections get their turn.
_SEND_BYTES = 16 * _RECORD_BYTES


class ClientTlsSocket:
    """Call ``handshake`` until it returns 0, then use it as a ``Socket``. ``host``: the name that the certificate must have."""

    def __init__(self, plain: Socket, context: TlsContext, host: str) -> None:
        """Takes over the descriptor of ``plain``, which must not be registered with a poller."""
        assert isinstance(plain, SystemSocket)
        self._socket = context.wrap_socket(plain.detach(), server_hostname=host, do_handshake_on_connect=False)
        self._record: memoryview | None = None  # OpenSSL has encrypted it and could not send it
        self.buffered = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def handshake(self) -> int:
        """Go on. Returns the events that it waits for, 0 if it is done. Raises TlsRefused, OSError."""
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return READ
        except ssl.SSLWantWriteError:
            return READ | WRITE
        except ssl.SSLError as error:
            raise refusal(error) from None
        return 0

    def recv_into(self, buffer: memoryview) -> int:
        """As ``Socket``. Raises TlsRefused where the peer refuses our certificate: with TLS 1.3 that is after the handshake."""
        filled, size = 0, len(buffer)
        self.buffered = False
        while filled < size:
            try:
                got = self._socket.recv_into(buffer[filled:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return filled or WOULD_BLOCK
            except ssl.SSLError as error:
                if error.reason and "ALERT" in error.reason and "CERTIFICATE" in error.reason:
                    raise refusal(error) from None
                raise
            if not got:
                return filled  # the next call returns 0
            filled += got
        self.buffered = self._socket.pending() > 0
        return filled

    def send(self, buffers: Sequence[Buffer], more: bool) -> int:
        """As ``Socket``. After WOULD_BLOCK the next call must begin with the same bytes, because they are encrypted already."""
        views = [memoryview(buffer) for buffer in buffers]
        sent = index = offset = 0
        while sent < _SEND_BYTES and index < len(views):
            record = self._record or _next_record(views, index, offset)
            try:
                size = self._socket.send(record)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self._record = record
                break
            self._record = None
            sent += size
            offset += size
            while index < len(views) and offset >= len(views[index]):
                offset -= len(views[index])
                index += 1
        return sent or WOULD_BLOCK

    def close(self) -> None:
        """Say goodbye, as far as that is possible at once, and close."""
        with contextlib.suppress(OSError, ValueError):
            self._socket.unwrap()
        self._socket.close()

    def forget(self) -> None:
        """Close this process's descriptor and send nothing."""
        self._socket.close()


def _next_record(views: list[memoryview], index: int, offset: int) -> memoryview:
    """The next bytes for one record. Small buffers are joined, because each record costs about as much as copying 16 KiB."""
    first = views[index][offset : offset + _RECORD_BYTES]
    if len(first) == _RECORD_BYTES or index + 1 == len(views):
        return first
    joined = bytearray(first)
    for view in views[index + 1 :]:
        joined += view[: _RECORD_BYTES - len(joined)]
        if len(joined) == _RECORD_BYTES:
            break
    return memoryview(joined)
