"""Messages between processes of one machine, over a Unix socket: whole, in order, of bounded length.

A socket in the file system is for the user who made it: its directory has to be private, or the file's mode is (0600). Calls
block, so channels are for threads that may wait, never for a processor.
"""

import os
import socket
import struct
from contextlib import suppress

# The rows of a large table, with room to spare.
MESSAGE_MAX = 1 << 30
# Nothing can be sent for so long: the other process stands still, and its channel is closed.
SEND_S = 10
_LENGTH = struct.Struct(">I")
_BACKLOG = 64


class ChannelClosed(Exception):
    """The other process has closed the channel, or has gone. What was sent last may have arrived."""


class Channel:
    """One end. Sending is for one thread at a time, and so is receiving."""

    def __init__(self, sock: socket.socket) -> None:
        # The system's, because Python's would count for receiving, too. It interrupts calls that block.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_S, 0))
        self._socket = sock
        self._received = bytearray()

    def send(self, message: bytes) -> None:
        """Raises ChannelClosed, also for a message that is too long."""
        try:
            if len(message) > MESSAGE_MAX:
                raise OSError(f"a message of {len(message)} bytes is too long")
            self._socket.sendall(_LENGTH.pack(len(message)) + message)
        except OSError as error:
            self.close()  # a part of the message may have been sent
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout: float | None = None) -> bytes | None:
        """The next message; None if it has not come within ``timeout`` s (0: if it is not there). What has come of it is kept.
        Raises ChannelClosed."""
        buffer = self._received
        try:
            self._socket.settimeout(timeout)
            while len(buffer) < (wanted := self._wanted()):
                piece = self._socket.recv(max(65536, wanted - len(buffer)))
                if not piece:
                    raise ChannelClosed("the other process has closed it")
                buffer += piece
        except (TimeoutError, BlockingIOError):
            return None
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        message = bytes(buffer[_LENGTH.size : wanted])
        del buffer[:wanted]
        return message

    def _wanted(self) -> int:
        """How many bytes have to be there: the length, and when it is known the whole message."""
        if len(self._received) < _LENGTH.size:
            return _LENGTH.size
        (length,) = _LENGTH.unpack_from(self._received)
        if length > MESSAGE_MAX:
            raise ChannelClosed(f"the other process has announced a message of {length} bytes")
        return _LENGTH.size + int(length)

    def is_ended(self) -> bool:
        """Whether the other process has closed it, or has gone, and all that has come from it was received."""
        try:
            return not self._received and not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """From any thread: a thread that waits gets ChannelClosed."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class ChannelListener:
    """Where processes connect."""

    def __init__(self, path: str) -> None:
        """A socket file that an earlier process has left is replaced. Raises OSError."""
        self.path = path
        with suppress(FileNotFoundError):
            os.remove(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            self._socket.bind(path)
        finally:
            os.umask(mask)
        self._socket.listen(_BACKLOG)

    def accept(self) -> Channel:
        """Wait for the next process. Raises ChannelClosed after ``close``."""
        try:
            accepted, _ = self._socket.accept()
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        return Channel(accepted)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with suppress(OSError):
            os.remove(self.path)


def connect(path: str) -> Channel:
    """Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return Channel(sock)
