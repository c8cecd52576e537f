"""Where requests end: however the bytes are cut, and whatever they are."""

from contextlib import suppress
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from broker.http.chunks import Unreadable
from broker.http.session import HttpRequest, HttpSession

BODY_MAX = 2000

_TOKENS = st.text("abcXYZ09-_", min_size=1, max_size=10)
_BODIES = st.binary(max_size=300)


def _with_length(path: str, body: bytes) -> bytes:
    return b"PUT /%s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


def _chunked(path: str, parts: list[bytes], trailer: bool) -> bytes:
    head = b"PUT /%s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % path.encode()
    chunks = b"".join(b"%x;e\r\n%s\r\n" % (len(part), part) for part in parts if part)
    return head + chunks + b"0\r\n" + b"t: x\r\n" * trailer + b"\r\n"


_REQUESTS = st.one_of(
    st.tuples(_TOKENS, _BODIES).map(lambda pair: (_with_length(*pair), *pair)),
    st.tuples(_TOKENS, st.lists(_BODIES, max_size=5), st.booleans()).map(
        lambda drawn: (_chunked(*drawn), drawn[0], b"".join(drawn[1]))
    ),
    _TOKENS.map(lambda path: (b"GET /%s HTTP/1.1\nhost: x\n\n" % path.encode(), path, b"")),
)


class Reactor:
    """What the processor does with a session."""

    def __init__(self) -> None:
        self.session = HttpSession(BODY_MAX, 30.0, lambda: 100.0)
        self.buffer = bytearray()
        self.taken: list[HttpRequest] = []
        self._wanted = 0

    def receive(self, data: bytes) -> None:
        self.buffer += data
        while self.buffer and self._wanted <= len(self.buffer):
            view = memoryview(bytes(self.buffer))
            size = self.session.frame_size(view)
            if size <= 0 or size > len(view):
                self._wanted = max(0, size)
                return
            self._wanted = 0
            request = self.session.receive(view[:size])
            request.frame = view[:size]
            del self.buffer[:size]
            self.taken.append(request)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(marks)]


@given(st.lists(_REQUESTS, min_size=1, max_size=5), st.lists(st.integers(0, 10_000), max_size=30))
def test_requests_do_not_depend_on_cuts(requests: list[Any], places: list[int]) -> None:
    reactor = Reactor()
    for part in cut(b"".join(data for data, _, _ in requests), places):
        reactor.receive(part)
    assert [(path, body) for _, path, body in requests] == [
        (request.head.event.target.decode()[1:], request.body())
        for request in reactor.taken
        if request.head is not None
    ]
    assert not reactor.buffer
    assert reactor.session.deadline == float("inf")


@example((_chunked("a", [], True), "a", b""), [(-8, 0)], [])
@given(
    _REQUESTS,
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
    st.lists(st.integers(0, 10_000)),
)
def test_no_mutation_raises_or_stops_the_session(
    request: Any, changes: list[tuple[int, int]], places: list[int]
) -> None:
    data = bytearray(request[0])
    for place, byte in changes:
        data[place % len(data)] = byte
    reactor = Reactor()
    for part in cut(bytes(data), places):
        reactor.receive(part)
    # Something is left only of a request that is not whole, and that one has a deadline.
    assert not reactor.buffer or reactor.session.deadline == 130.0
    for taken in reactor.taken:
        if taken.fault is None and not taken.dropped and not taken.proceed:
            with suppress(
                Unreadable
            ):  # of a trailer that is none, which is answered with 400 (tests/faults/test_http.py)
                assert len(taken.body()) <= BODY_MAX


@given(st.binary(max_size=400), st.lists(st.integers(0, 10_000)))
def test_no_bytes_raise(data: bytes, places: list[int]) -> None:
    reactor = Reactor()
    for part in cut(data, places):
        reactor.receive(part)
    faults = [request.fault for request in reactor.taken if request.fault is not None]
    assert len(faults) <= 1


def test_a_truncated_request_is_no_request() -> None:
    data = _chunked("a", [b"hello", b"world"], True)
    for end in range(len(data)):
        reactor = Reactor()
        reactor.receive(data[:end])
        assert reactor.taken == []


def test_frame_length_is_bounded_by_the_body_limit() -> None:
    session = HttpSession(BODY_MAX, 30.0, lambda: 0.0)
    head = b"PUT /a HTTP/1.1\r\nhost: x\r\ncontent-length: 2000\r\n\r\n"
    assert len(head) + 2000 == session.frame_size(memoryview(head))
