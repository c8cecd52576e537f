"""TLS, the broker's end of a connection: a ``Socket`` around another ``Socket``.

OpenSSL works on memory here and not on the descriptor, so that this module decides how much it is given at a time. With a
descriptor, one ``SSL_read`` continues for as long as records without data arrive, and a client can send these without an end: a
KeyUpdate takes 26 bytes, and 20-40 us. Here each record is cut off the stream and handed over by itself, and a connection that
sends 32 records in a row without data has failed, as in BoringSSL. In memory, 1 MiB takes as long as on a descriptor to receive,
and 10-20 % longer to send (tests/bench/security.py). Kernel TLS needs the descriptor and is therefore not used.

A ``TlsSocket`` belongs to one thread at a time. Its errors are ``OSError``, as ``ssl.SSLError`` is.
"""

import ssl
from collections.abc import Sequence
from typing import Any

import attrs

from broker.runtime.disk import Buffer, FileRegion
from broker.runtime.net import WOULD_BLOCK, Socket
from broker.runtime.poller import READ, WRITE
from broker.runtime.threads import Local

TlsContext = ssl.SSLContext

# The most data of one record.
_RECORD_BYTES = 16 * 1024
_HEADER_BYTES = 5
# The longest record of TLS 1.2 without its header. Those of TLS 1.3 are shorter.
_RECORD_MAX = _RECORD_BYTES + 2048
_RECORD_TYPES = range(20, 25)
_DATA = 23
# Records decrypted in one call: 0.5 ms, however little each of them carries. 1 MiB takes 64 of full size.
_TURN_RECORDS = 128
# Data to encrypt before it is sent. So much of a connection waits here while its peer does not read.
_SEND_BYTES = 4 * _RECORD_BYTES
# Bytes of one read. Bytes that do not fit in the caller's buffer must be kept, so a read asks for little more than fits.
_RECEIVE_BYTES = 64 * 1024
_BEYOND_BYTES = 512
# BoringSSL's limit for key updates, and OpenSSL's for empty records.
_BARREN_MAX = 32
# What a client may send before it has finished its handshake. OpenSSL accepts 100 KiB of certificates.
_HANDSHAKE_BYTES = 128 * 1024
# Records of a handshake handled in one call.
_HANDSHAKE_RECORDS = 16
# Reads after a failed handshake whose bytes are thrown away: closing a socket with unread bytes resets the connection, and the
# client would not see the alert.
_DISCARDED_READS = 4


class _Scratch(Local):
    """Each thread's memory for received bytes. Nothing stays in it from one call to the next."""

    def __init__(self) -> None:
        self.received = memoryview(bytearray(_HEADER_BYTES + _RECORD_MAX + _RECEIVE_BYTES + _BEYOND_BYTES))


_scratch = _Scratch()


@attrs.frozen
class TlsFacts:
    """What a handshake has established."""

    version: str  # such as "TLSv1.3"
    cipher: str
    certificate: bytes | None  # the client's, verified, in DER


class TlsSocket:
    """Call ``handshake`` until it returns 0; until then, nothing else but ``fileno``, ``broken``, ``close`` and ``reset``."""

    __slots__ = (
        "_ahead",
        "_barren",
        "_counted",
        "_ended",
        "_established",
        "_garbage",
        "_handshake_bytes",
        "_incoming",
        "_missing",
        "_object",
        "_outgoing",
        "_rest",
        "_socket",
        "_unsent",
        "buffered",
    )

    def __init__(self, socket: Socket, context: TlsContext) -> None:
        self._socket = socket
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._established = False
        self._handshake_bytes = 0
        # -- receiving
        self._rest: Buffer = (
            b""  # received, and not given to OpenSSL: the beginning of a header, or records that had no room
        )
        self._missing = 0  # bytes until the end of the record of which OpenSSL has the beginning
        self._garbage = False  # bytes were received that are no record
        self._barren = 0  # records in a row without data
        self._ahead = b""  # the byte of data that `at_eof` has read
        self._ended = False  # the peer sends nothing more
        self.buffered = False
        # -- sending
        self._unsent: Buffer = b""  # encrypted, and not sent
        self._counted = 0  # the data in `_unsent`, in bytes: it counts as sent when all of it has been

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def held_bytes(self) -> int:
        """Encrypted bytes that the kernel has not taken yet."""
        return len(self._unsent)

    # -- the handshake --------------------------------------------------------------------------------------------------

    def handshake(self) -> int:
        """Go on with the handshake. Returns the event for which it waits, READ or WRITE; 0 if it is done. If it returns READ and
        ``buffered`` is True, it only waits for its next turn. OSError if it has failed; the client was told, if possible."""
        if self._unsent and not self._send_unsent():
            return WRITE
        if self._established:
            self.buffered = bool(self._rest)
            return 0
        raw = _scratch.received
        start, end = 0, self._unpack(raw)
        received = established = incomplete = False
        for _ in range(_HANDSHAKE_RECORDS):
            start, whole = self._feed(raw, start, end)
            if whole:
                established = self._step()
                if established or self._unsent:
                    break
            elif received:  # one read for each call
                incomplete = True
                break
            else:
                received = True
                start, end = _to_the_front(raw, start, end)
                got = self._receive(raw[end : end + _RECEIVE_BYTES])
                if got == 0:
                    raise ConnectionAbortedError("the client has closed the connection")
                end += max(got, 0)
                self._handshake_bytes += max(got, 0)
                if self._handshake_bytes > _HANDSHAKE_BYTES:
                    raise ConnectionAbortedError(f"more than {_HANDSHAKE_BYTES} bytes before the end of the handshake")
        self._pack(raw, start, end)
        if self._unsent:
            return WRITE
        self.buffered = not incomplete and (not established or start < end)
        return 0 if established else READ

    def _step(self) -> bool:
        """Give OpenSSL its turn, and send its output. True if the handshake is done."""
        try:
            self._object.do_handshake()
            self._established = True
        except ssl.SSLWantReadError:
            if self._garbage:
                raise ConnectionAbortedError("what the client sends is not TLS") from None
        except OSError:
            self._say_why()
            raise
        self._send_outgoing()
        return self._established

    def facts(self) -> TlsFacts:
        """After the handshake."""
        cipher = self._object.cipher()
        return TlsFacts(self._object.version() or "", cipher[0] if cipher else "", self._object.getpeercert(True))

    # -- receiving --------------------------------------------------------------------------------------------------------

    def recv_into(self, buffer: memoryview) -> int:
        """As much as has arrived and fits. If more is left, ``buffered`` is True."""
        raw = _scratch.received
        if self.buffered or self._rest or self._missing or self._ended:
            return self._fill(buffer, raw, self._unpack(raw), short=False)
        size = len(buffer)
        asked = min(size + _BEYOND_BYTES, _RECEIVE_BYTES)
        got = self._receive(raw[:asked])
        if got == WOULD_BLOCK:
            return WOULD_BLOCK
        # A small request arrives as one record and nothing else: without the loop it takes half the time.
        if _HEADER_BYTES < got < asked and raw[0] == _DATA and (raw[3] << 8) + raw[4] + _HEADER_BYTES == got:
            self._incoming.write(raw[:got])
            filled = self._decrypt(buffer, 0)
            self._count_barren(not filled)
            if filled:
                self.buffered = filled == size and self._object.pending() > 0
                return filled
            got = 0
        return self._fill(buffer, raw, max(got, 0), short=0 < got < asked)

    def _fill(self, buffer: memoryview, raw: memoryview, end: int, short: bool) -> int:
        """From ``raw[:end]``, and from the socket unless the last read was ``short``."""
        size = len(buffer)
        filled = 0
        if self.buffered:
            if self._ahead:
                buffer[:1], self._ahead = self._ahead, b""
                filled = 1
            if filled < size and self._object.pending():
                filled = self._decrypt(buffer, filled)
        start = 0
        turn = _TURN_RECORDS
        while filled < size and turn:
            start, whole = self._feed(raw, start, end)
            if whole:
                turn -= 1
                before = filled
                filled = self._decrypt(buffer, filled)
                if self._ended:  # bytes after a close_notify do not count
                    start = end
                    break
                self._count_barren(filled == before)
            elif short or self._ended:
                break
            else:
                start, end = _to_the_front(raw, start, end)
                asked = min(size - filled + _BEYOND_BYTES, _RECEIVE_BYTES)
                got = self._receive(raw[end : end + asked])
                end += max(got, 0)
                short = got < asked
        self._pack(raw, start, end)
        self.buffered = (filled == size or not turn) and (start < end or self._object.pending() > 0)
        if self._outgoing.pending:  # answers to key updates, or an alert
            self._send_outgoing()
            if len(self._unsent) > 2 * _SEND_BYTES:
                raise ConnectionAbortedError("the client asks for key updates and does not read them")
        return filled or (0 if self._ended else WOULD_BLOCK)

    def at_eof(self) -> bool:
        if not self.buffered and not self._ended:
            byte = bytearray(1)
            if self.recv_into(memoryview(byte)) == 1:
                self._ahead = bytes(byte)
                self.buffered = True
        return self._ended and not self.buffered

    def broken(self) -> bool:
        return self._socket.broken()

    def _decrypt(self, buffer: memoryview, filled: int) -> int:
        """Read the data that OpenSSL has of a record. Returns the number of bytes filled in ``buffer``."""
        try:
            got: Any = self._object.read(len(buffer) - filled, buffer[filled:])
        except ssl.SSLWantReadError:
            if self._garbage:
                raise ConnectionAbortedError("what the client sends is not TLS") from None
            return filled
        except OSError:
            self._say_why()
            raise
        if not got:
            self._ended = True  # close_notify
        return filled + int(got)

    def _count_barren(self, barren: bool) -> None:
        self._barren = self._barren + 1 if barren else 0
        if self._barren > _BARREN_MAX:
            raise ConnectionAbortedError(f"{_BARREN_MAX} TLS records in a row without data")

    def _feed(self, raw: memoryview, start: int, end: int) -> tuple[int, bool]:
        """Give OpenSSL the next record of ``raw[start:end]``, or the received part of it. Returns the new ``start``, and whether
        OpenSSL has all of the record."""
        take = self._missing
        if not take:
            if end - start < _HEADER_BYTES:
                return start, False
            length = (raw[start + 3] << 8) + raw[start + 4]
            take = _HEADER_BYTES + length
            if raw[start] not in _RECORD_TYPES or raw[start + 1] != 3 or length > _RECORD_MAX:
                self._garbage = True
                take = end - start  # OpenSSL knows the answer
        if take > end - start:
            if start < end:
                self._incoming.write(raw[start:end])
            self._missing = take - (end - start)
            return end, False
        self._incoming.write(raw[start : start + take])
        self._missing = 0
        return start + take, True

    def _receive(self, space: memoryview) -> int:
        got = self._socket.recv_into(space)
        if got == 0:
            self._ended = True
        return got

    def _unpack(self, raw: memoryview) -> int:
        """Put the kept bytes to the front of ``raw``. Returns their number."""
        rest = self._rest
        if not rest:
            return 0
        raw[: len(rest)] = rest
        self._rest = b""
        return len(rest)

    def _pack(self, raw: memoryview, start: int, end: int) -> None:
        if start < end:
            self._rest = bytes(raw[start:end])

    # -- sending ----------------------------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[Buffer], more: bool) -> int:
        """After WOULD_BLOCK the next call must be for the same bytes, because they are encrypted already; more may follow them.
        During the handshake nothing is sent."""
        if not self._established:
            return WOULD_BLOCK
        if self._unsent and not self._send_unsent():
            return WOULD_BLOCK
        if self._counted:
            counted, self._counted = self._counted, 0
            return counted
        data = buffers[0]
        if len(data) < _RECORD_BYTES and len(buffers) > 1:
            data = b"".join(_first(buffers, _SEND_BYTES))
        return self._encrypt(data, more)

    def send_file(self, region: FileRegion) -> int:
        if self._unsent and not self._send_unsent():
            return WOULD_BLOCK
        if self._counted:
            counted, self._counted = self._counted, 0
            return counted
        data = region.file.pread(min(region.size, _SEND_BYTES), region.offset)
        return self._encrypt(data, more=False)

    def _encrypt(self, data: Buffer, more: bool) -> int:
        size = len(data)
        records: Sequence[Buffer]
        if size <= _RECORD_BYTES:
            if not size:
                return 0
            self._object.write(data)
            records = (self._outgoing.read(),)
        else:
            size = min(size, _SEND_BYTES)
            view = memoryview(data)
            records = [
                self._record(view[start : min(start + _RECORD_BYTES, size)]) for start in range(0, size, _RECORD_BYTES)
            ]
        sent = max(self._socket.send(records, more), 0)
        if sent == sum(map(len, records)):
            return size
        self._unsent = memoryview(b"".join(records))[sent:]
        self._counted = size
        return WOULD_BLOCK

    def _record(self, data: memoryview) -> bytes:
        self._object.write(data)
        return self._outgoing.read()

    def _send_outgoing(self) -> None:
        """Send OpenSSL's output beside data, after the rest of the data."""
        if self._outgoing.pending:
            self._unsent = bytes(self._unsent) + self._outgoing.read()
        if self._unsent:
            self._send_unsent()

    def _send_unsent(self) -> bool:
        """True if nothing is left."""
        sent = self._socket.send([self._unsent], False)
        if sent == len(self._unsent):
            self._unsent = b""
            return True
        if sent > 0:
            self._unsent = memoryview(self._unsent)[sent:]
        return False

    # -- the end ----------------------------------------------------------------------------------------------------------

    def _say_why(self) -> None:
        """Send the alert and discard the bytes that the client has sent meanwhile, as far as possible at once."""
        try:
            self._send_outgoing()
            for _ in range(_DISCARDED_READS):
                if self._socket.recv_into(_scratch.received) <= 0:
                    break
        except OSError:
            pass

    def close(self) -> None:
        """Tell the peer that no more data follows, without waiting for its answer, and close."""
        if self._established and not self._unsent:
            try:
                self._object.unwrap()
            except (OSError, ValueError):  # it waits for the peer's own; or the connection has failed
                pass
            try:
                self._send_outgoing()
            except OSError:
                pass
        self._established = False
        self._socket.close()

    def reset(self) -> None:
        self._socket.reset()


def _to_the_front(raw: memoryview, start: int, end: int) -> tuple[int, int]:
    """Move ``raw[start:end]``, which is less than a header, to the front."""
    if start < end and start:
        raw[: end - start] = bytes(raw[start:end])
    return 0, end - start


def _first(buffers: Sequence[Buffer], size: int) -> list[Buffer]:
    """The first ``size`` bytes of the buffers."""
    first: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) >= size:
            first.append(memoryview(buffer)[:size])
            break
        first.append(buffer)
        size -= len(buffer)
    return first
