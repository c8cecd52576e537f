"""Where a chunked body ends and what is in it: two readers that must not disagree unnoticed."""

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.http.chunks import ChunkScanner, Unreadable, decoded, next_event

BODY_MAX = 3000


def parser() -> h11.Connection:
    made = h11.Connection(h11.SERVER)
    next_event(made, b"PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
    return made


def end_of(data: bytes, step: int = 1 << 20) -> int | None:
    """None: it cannot be read."""
    scanner = ChunkScanner(0, BODY_MAX)
    try:
        for stop in range(step, len(data) + step, step):
            end = scanner.find_end(memoryview(data)[:stop])
            if end:
                return end
    except Unreadable:
        return None
    return 0


_EXTENSIONS = st.sampled_from([b"", b";a", b";a=b", b';a="b"'])
_BODIES = st.builds(
    lambda parts, extension, trailers: (
        b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts if part)
        + b"0\r\n"
        + b"t: x\r\n" * trailers
        + b"\r\n",
        b"".join(parts),
    ),
    st.lists(st.binary(max_size=100), max_size=6),
    _EXTENSIONS,
    st.integers(0, 2),
)


@given(_BODIES, st.binary(max_size=20), st.integers(1, 50))
def test_body_end_does_not_depend_on_cuts(body: tuple[bytes, bytes], rest: bytes, step: int) -> None:
    raw, content = body
    assert len(raw) == end_of(raw + rest) == end_of(raw + rest, step)
    assert content == decoded(parser(), raw)


@given(
    _BODIES, st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), min_size=1, max_size=4), st.integers(1, 50)
)
@example((b"0\r\n\r\n", b""), [(1, ord(";"))], 1)
def test_disagreement_of_scanner_and_parser_is_refused(
    body: tuple[bytes, bytes], changes: list[tuple[int, int]], step: int
) -> None:
    raw = bytearray(body[0])
    for place, byte in changes:
        raw[place % len(raw)] = byte
    whole, cut = end_of(bytes(raw)), end_of(bytes(raw), step)
    assert whole == cut
    if whole:
        try:
            content = decoded(parser(), bytes(raw[:whole]))
        except Unreadable:
            return
        assert len(content) <= BODY_MAX


@pytest.mark.parametrize(
    "raw",
    [
        b"2\nhe\r\n0\r\n\r\n",
        b"2 \r\nhe\r\n0\r\n\r\n",
        b" 2\r\nhe\r\n0\r\n\r\n",
        b"+2\r\nhe\r\n0\r\n\r\n",
        b"2;\0\r\nhe\r\n0\r\n\r\n",
    ],
)
def test_sizes_that_somebody_might_read_are_refused(raw: bytes) -> None:
    assert end_of(raw) is None


def test_ambiguous_body_is_refused() -> None:
    with pytest.raises(Unreadable, match="two ways"):
        decoded(parser(), b"0\r\n\r\nGET / HTTP/1.1\r\n")
    with pytest.raises(Unreadable, match="two ways"):
        decoded(parser(), b"2\r\nhe\r\n")
