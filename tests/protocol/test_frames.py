import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.frames import frame_size, framed, split_frames, with_correlation_id


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 20)))
def test_any_split_of_stream_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(framed(body) for body in bodies)
    bodies_read: list[bytes] = []
    waiting = b""
    pos = 0
    for size in [*cuts, len(stream)]:
        waiting += stream[pos : pos + size]
        pos += size
        frames, used = split_frames(waiting)
        bodies_read += [bytes(frame) for frame in frames]
        waiting = waiting[used:]
    assert [framed(body) for body in bodies] == bodies_read
    assert waiting == b""


def test_a_frame_cut_short_asks_for_more() -> None:
    stream = framed(b"abc")
    for size in range(4):
        assert frame_size(stream[:size]) is None
    for size in range(len(stream)):
        assert split_frames(stream[:size]) == ([], 0)
    assert frame_size(stream[:4]) == len(stream)


@pytest.mark.parametrize("prefix", [b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x0b"])
def test_negative_or_excessive_length_is_refused(prefix: bytes) -> None:
    with pytest.raises(ProtocolError):
        frame_size(prefix, limit=10)
    with pytest.raises(ProtocolError):
        split_frames(framed(b"before") + prefix, limit=10)


def test_a_frame_of_just_the_limit_is_taken() -> None:
    assert frame_size(b"\x00\x00\x00\x0a", limit=10) == 14


def test_frame_can_be_resent_for_another_request() -> None:
    frame = framed(b"\x00\x00\x00\x01rest")
    assert framed(b"\x00\x00\x00\x07rest") == with_correlation_id(frame, 7)
