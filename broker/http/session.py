"""One connection that speaks HTTP/1.1: where a request ends, and what it says. Used by the connection's processor only.

The parser is h11. It gets the bytes of one request and no others, so that no byte is looked at twice and a request costs the same
whatever follows it: the head as soon as its blank line has come, the chunks of a chunked body as they come, and a body with a
length not at all. ``frame_size`` keeps its place between the calls, so that a client which sends a byte at a time costs no more
than its reads.

| state | the bytes at the front are |
|---|---|
| HEAD | the head of the next request |
| BODY | a body whose client has been told to go on (``Expect: 100-continue``), after the head |
| DISCARD | what follows a request that could not be read; it is dropped until the service closes the connection |

A request that cannot be read becomes an `HttpRequest` with a ``fault``. Its answer is the last one: where the next request
would begin is not known. What still arrives is dropped for a moment instead of being left unread, because closing a socket with
unread bytes resets the connection, and a client that is still sending would not see the answer.

Bounds: the head has at most 16 KiB and 100 lines, the body ``body_max`` bytes, and what surrounds the chunks of a chunked body 8
KiB, trailers included.
"""

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from math import inf
from typing import Final

import attrs
import h11

from broker.network.routes import BAD_REQUEST
from broker.network.service import Request

HEAD_MAX_BYTES: Final = 16 * 1024
HEAD_MAX_LINES: Final = 100
# Chunk sizes, extensions and trailers of one body: 1 MiB in chunks of 1 KiB has 7 KiB of them. Each chunk takes some 15 us, so
# that the 1,600 smallest that there may be take 25 ms.
CHUNKING_MAX_BYTES: Final = 8 * 1024
# Bytes of a chunked body that the parser gets at a time. What follows the body is copied in vain.
_STEP_BYTES = 8 * 1024

_BLANK_LINE = re.compile(rb"\n\r?\n")

TOO_LARGE, HEAD_TOO_LARGE, NOT_IMPLEMENTED, VERSION_NOT_SUPPORTED = 413, 431, 501, 505
_VERSIONS = (b"1.0", b"1.1")


class State(IntEnum):
    HEAD = 0
    BODY = 1
    DISCARD = 2


@attrs.frozen
class Fault:
    """Why a request cannot be read."""

    status: int
    reason: str


class _Unreadable(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.fault = Fault(status, reason)


@attrs.define(eq=False)
class Head:
    """A parsed head."""

    event: h11.Request
    parser: h11.Connection  # writes the response, too
    size: int  # bytes
    chunked: bool
    length: int  # of the body, unless it is chunked
    headers: Mapping[str, str]  # names in lower case


class HttpRequest(Request):
    """A request, or a step of one: ``fault``, ``dropped`` and ``proceed`` exclude each other.

    ``dropped``: bytes after the last answer. ``proceed``: the client waits for 100 before it sends the body.
    """

    __slots__ = ("body_offset", "chunks", "dropped", "fault", "head", "proceed")

    def __init__(
        self,
        head: Head | None,
        *,
        fault: Fault | None = None,
        proceed: bool = False,
        dropped: bool = False,
        body_offset: int = 0,
        chunks: bytes | None = None,
    ) -> None:
        self.head = head
        self.fault = fault
        self.proceed = proceed
        self.dropped = dropped
        self.body_offset = body_offset
        self.chunks = chunks

    def body(self) -> bytes:
        """Before the request is answered."""
        return bytes(self.frame[self.body_offset :]) if self.chunks is None else self.chunks


class HttpSession:
    """``deadline``: until when (Clock.monotonic() s) the request that has begun must have come."""

    in_flight_max = 1

    def __init__(self, body_max: int, timeout_s: float, monotonic: Callable[[], float]) -> None:
        self.dropped_bytes = 0
        self.deadline = inf
        self._state = State.HEAD
        self._body_max = body_max
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        # Of the request at the front. Positions are counted from the beginning of the frame.
        self._size = 0  # of its frame, once that is known
        self._searched = 0  # no blank line ends before
        self._head: Head | None = None
        self._fed = 0  # what the parser has got
        self._chunks: list[bytes] = []
        self._body_bytes = 0  # in `_chunks`
        self._fault: Fault | None = None

    # -- the reactor's side -------------------------------------------------------------------------------------------

    def frame_size(self, data: memoryview) -> int:
        if self._state is State.DISCARD:
            return len(data)
        if not self._size:
            try:
                self._size = self._find_end(data)
            except _Unreadable as error:
                self._fault = error.fault
                self._size = len(data)
        if not 0 < self._size <= len(data) and self.deadline == inf:
            self.deadline = self._monotonic() + self._timeout_s
        return self._size

    def receive(self, frame: memoryview) -> HttpRequest:
        if self._state is State.DISCARD:
            self.dropped_bytes += len(frame)
            return HttpRequest(None, dropped=True)
        head, fault, state = self._head, self._fault, self._state
        if fault is not None:
            self._state = State.DISCARD
            self.deadline = inf
            self._start_over()
            return HttpRequest(head, fault=fault)
        assert head is not None
        if state is State.HEAD and self._waits_for_100(head, len(frame)):
            # The body is a frame of its own.
            self._state = State.BODY
            self._size = self._fed = 0
            if self.deadline == inf:
                self.deadline = self._monotonic() + self._timeout_s
            return HttpRequest(head, proceed=True)
        self._state = State.HEAD
        self.deadline = inf
        body_offset = 0 if state is State.BODY else head.size
        chunks = b"".join(self._chunks) if head.chunked else None
        self._start_over()
        return HttpRequest(head, body_offset=body_offset, chunks=chunks)

    # -- finding the end ----------------------------------------------------------------------------------------------

    def _start_over(self) -> None:
        self._size = self._searched = self._fed = self._body_bytes = 0
        self._head = self._fault = None
        self._chunks = []

    def _find_end(self, data: memoryview) -> int:
        """The size of the frame; 0 as long as it is not known. Raises _Unreadable."""
        head = self._head
        if head is None:
            head = self._head = self._find_head(data)
            if head is None:
                return 0
            if self._waits_for_100(head, len(data)):
                return head.size
            self._fed = head.size
        if head.chunked:
            return self._find_last_chunk(head, data)
        return head.length if self._state is State.BODY else head.size + head.length

    def _waits_for_100(self, head: Head, arrived: int) -> bool:
        """Whether the client has sent no part of the body yet, and wants to be told to."""
        return (
            self._state is State.HEAD
            and arrived == head.size
            and (head.chunked or head.length > 0)
            and head.parser.they_are_waiting_for_100_continue
        )

    def _find_head(self, data: memoryview) -> Head | None:
        if data[0] < 0x21:  # an empty line, or TLS on a listener without
            raise _Unreadable(BAD_REQUEST, "This is not HTTP.")
        match = _BLANK_LINE.search(data[:HEAD_MAX_BYTES], max(0, self._searched - 2))
        if match is None:
            self._searched = len(data)
            if len(data) >= HEAD_MAX_BYTES:
                raise _Unreadable(HEAD_TOO_LARGE, f"The head of the request is longer than {HEAD_MAX_BYTES} bytes.")
            return None
        text = bytes(data[: match.end()])
        if text.count(b"\n") > HEAD_MAX_LINES:
            raise _Unreadable(HEAD_TOO_LARGE, f"The head of the request has more than {HEAD_MAX_LINES} lines.")
        return self._parse_head(text)

    def _parse_head(self, text: bytes) -> Head:
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=2 * HEAD_MAX_BYTES)
        event = _next_event(parser, text)
        if not isinstance(event, h11.Request):
            raise _Unreadable(BAD_REQUEST, "This is not HTTP.")
        if event.http_version not in _VERSIONS:
            raise _Unreadable(VERSION_NOT_SUPPORTED, "Use HTTP/1.1.")
        headers: dict[str, str] = {}
        for name, value in event.headers:
            key, word = name.decode("ascii"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {word}" if key in headers else word
        chunked = "transfer-encoding" in headers
        if chunked and ("content-length" in headers or event.http_version == b"1.0"):
            # Whoever stands between the client and this broker may have read it the other way.
            raise _Unreadable(BAD_REQUEST, "Send either Content-Length or, with HTTP/1.1, Transfer-Encoding.")
        try:
            length = int(headers.get("content-length", "0"))  # h11 has checked that it is a number
        except ValueError:  # of more digits than Python reads
            length = self._body_max + 1
        self._check_length(length)
        return Head(event, parser, len(text), chunked, length, headers)

    def _check_length(self, length: int) -> None:
        if length > self._body_max:
            raise _Unreadable(TOO_LARGE, f"The body is longer than {self._body_max} bytes (http_max_body_bytes).")

    def _find_last_chunk(self, head: Head, data: memoryview) -> int:
        begins = 0 if self._state is State.BODY else head.size
        while self._fed < len(data):
            step = bytes(data[self._fed : self._fed + _STEP_BYTES])
            self._fed += len(step)
            event = _next_event(head.parser, step)
            while isinstance(event, h11.Data):
                self._chunks.append(bytes(event.data))
                self._body_bytes += len(event.data)
                event = _next_event(head.parser)
            self._check_length(self._body_bytes)
            ended = isinstance(event, h11.EndOfMessage)
            end = self._fed - (len(head.parser.trailing_data[0]) if ended else 0)
            if end - begins - self._body_bytes > CHUNKING_MAX_BYTES:
                raise _Unreadable(TOO_LARGE, f"The chunks have more than {CHUNKING_MAX_BYTES} bytes around them.")
            if ended:
                return end
        return 0


def _next_event(parser: h11.Connection, data: bytes = b"") -> object:
    """What h11 makes of ``data`` and of what it has got before. Raises _Unreadable."""
    try:
        if data:
            parser.receive_data(data)
        return parser.next_event()
    except h11.RemoteProtocolError as error:
        status = NOT_IMPLEMENTED if error.error_status_hint == NOT_IMPLEMENTED else BAD_REQUEST
        raise _Unreadable(status, f"This is not a valid HTTP request: {str(error)[:200]}.") from None
