"""A connection that speaks HTTP/1.1: finds where a request ends, and parses it. Used by the connection's processor
only.

The parser is h11. It gets the bytes of one request only, so that no byte is parsed twice and a request's cost does not
depend on the bytes after it: the head as soon as its blank line has come, the chunks of a chunked body on the handler's
thread (``chunks.py``), and a body with a length not at all. ``frame_size`` keeps its position between calls, so that a
client that sends a byte at a time costs no more than its reads.

| state | the bytes at the front are |
|---|---|
| HEAD | the head of the next request |
| BODY | a body whose client has been told to go on (``Expect: 100-continue``), after the head |
| DISCARD | bytes after a request that could not be read; they are dropped until the service closes the connection |

A request that cannot be read becomes an `HttpRequest` with a ``fault``. Its answer is the last, because the beginning
of the next request is unknown. Bytes that still arrive are dropped for a moment instead of being left unread, because
closing a socket with unread bytes resets the connection, and a client that is still sending would not see the answer.

Bounds: the head has at most 16 KiB and 100 lines, the body ``body_max`` bytes, and the sizes, extensions and trailers
of a chunked body 8 KiB.
"""

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from math import inf
from typing import Final

import attrs
import h11

from broker.http.chunks import (
    HEAD_TOO_LARGE,
    VERSION_NOT_SUPPORTED,
    ChunkScanner,
    Fault,
    Unreadable,
    decoded,
    next_event,
    too_large,
)
from broker.network.service import Request
from broker.web.routes import BAD_REQUEST

HEAD_MAX_BYTES: Final = 16 * 1024
HEAD_MAX_LINES: Final = 100
_BLANK_LINE = re.compile(rb"\n\r?\n")

_VERSIONS = (b"1.0", b"1.1")


class State(IntEnum):
    HEAD = 0
    BODY = 1
    DISCARD = 2


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
    """A request, or a step of a request: ``fault``, ``dropped`` and ``proceed`` exclude each other.

    ``dropped``: bytes after the last answer. ``proceed``: the client waits for 100 before it sends the body.
    """

    __slots__ = ("body_offset", "dropped", "fault", "head", "proceed")

    kind = "http"

    def __init__(
        self,
        head: Head | None,
        *,
        fault: Fault | None = None,
        proceed: bool = False,
        dropped: bool = False,
        body_offset: int = 0,
    ) -> None:
        self.head = head
        self.fault = fault
        self.proceed = proceed
        self.dropped = dropped
        self.body_offset = body_offset

    def body(self) -> bytes:
        """To be called once, before the request is answered. Raises Unreadable for a chunked body, which takes up to
        some ten ms."""
        content = bytes(self.frame[self.body_offset :])
        assert self.head is not None
        return decoded(self.head.parser, content) if self.head.chunked else content


class HttpSession:
    """``deadline``: when (Clock.monotonic() s) the request that has begun must be complete."""

    in_flight_max = 1

    def __init__(self, body_max: int, timeout_s: float, monotonic: Callable[[], float]) -> None:
        self.dropped_bytes = 0
        self.deadline = inf
        self._state = State.HEAD
        self._body_max = body_max
        self._timeout_s = timeout_s
        self._monotonic = monotonic
        # State of the request at the front. Positions are counted from the beginning of the frame.
        self._size = 0  # the size of its frame, once known
        self._searched = 0  # no blank line ends before this position
        self._head: Head | None = None
        self._chunks: ChunkScanner | None = None
        self._fault: Fault | None = None

    # -- the reactor's side -------------------------------------------------------------------------------------------

    def frame_size(self, data: memoryview) -> int:
        if self._state is State.DISCARD:
            return len(data)
        if not self._size:
            try:
                self._size = self._find_end(data)
            except Unreadable as error:
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
            self._size = 0
            if self.deadline == inf:
                self.deadline = self._monotonic() + self._timeout_s
            return HttpRequest(head, proceed=True)
        self._state = State.HEAD
        self.deadline = inf
        body_offset = 0 if state is State.BODY else head.size
        self._start_over()
        return HttpRequest(head, body_offset=body_offset)

    # -- finding the end ----------------------------------------------------------------------------------------------

    def _start_over(self) -> None:
        self._size = self._searched = 0
        self._head = self._fault = self._chunks = None

    def _find_end(self, data: memoryview) -> int:
        """The size of the frame; 0 while unknown. Raises Unreadable."""
        head = self._head
        if head is None:
            head = self._head = self._find_head(data)
            if head is None:
                return 0
            if self._waits_for_100(head, len(data)):
                return head.size
        begins = 0 if self._state is State.BODY else head.size
        if not head.chunked:
            return begins + head.length
        if self._chunks is None:
            self._chunks = ChunkScanner(begins, self._body_max)
        return self._chunks.find_end(data)

    def _waits_for_100(self, head: Head, arrived: int) -> bool:
        """Whether the client has sent no part of the body yet, and waits for 100."""
        return (
            self._state is State.HEAD
            and arrived == head.size
            and (head.chunked or head.length > 0)
            and head.parser.they_are_waiting_for_100_continue
        )

    def _find_head(self, data: memoryview) -> Head | None:
        if data[0] < 0x21:  # an empty line, or TLS on a listener without TLS
            raise Unreadable(BAD_REQUEST, "This is not HTTP.")
        match = _BLANK_LINE.search(data[:HEAD_MAX_BYTES], max(0, self._searched - 2))
        if match is None:
            self._searched = len(data)
            if len(data) >= HEAD_MAX_BYTES:
                raise Unreadable(HEAD_TOO_LARGE, f"The head of the request is longer than {HEAD_MAX_BYTES} bytes.")
            return None
        text = bytes(data[: match.end()])
        if text.count(b"\n") > HEAD_MAX_LINES:
            raise Unreadable(HEAD_TOO_LARGE, f"The head of the request has more than {HEAD_MAX_LINES} lines.")
        return self._parse_head(text)

    def _parse_head(self, text: bytes) -> Head:
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=2 * HEAD_MAX_BYTES)
        event = next_event(parser, text)
        if not isinstance(event, h11.Request):
            raise Unreadable(BAD_REQUEST, "This is not HTTP.")
        if event.http_version not in _VERSIONS:
            raise Unreadable(VERSION_NOT_SUPPORTED, "Use HTTP/1.1.")
        headers: dict[str, str] = {}
        for name, value in event.headers:
            key, word = name.decode("ascii"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {word}" if key in headers else word
        chunked = "transfer-encoding" in headers
        if chunked and ("content-length" in headers or event.http_version == b"1.0"):
            # A proxy between the client and this broker may have interpreted it the other way.
            raise Unreadable(BAD_REQUEST, "Send either Content-Length or, with HTTP/1.1, Transfer-Encoding.")
        try:
            length = int(headers.get("content-length", "0"))  # h11 has checked that it is a number
        except ValueError:  # it has more digits than Python parses
            length = self._body_max + 1
        if length > self._body_max:
            raise too_large(self._body_max)
        return Head(event, parser, len(text), chunked, length, headers)
