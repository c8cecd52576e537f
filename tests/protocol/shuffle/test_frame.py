import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.shuffle.frame import HEADER, MAGIC, frame_size
from tests.loops import loop_over


@given(st.integers(9, 1000), st.integers(0, 255), st.binary(max_size=30))
def test_size_is_known_after_length_and_magic(size: int, message_id: int, rest: bytes) -> None:
    data = HEADER.pack(size, MAGIC, message_id) + rest
    for end in range(len(data) + 1):
        assert frame_size(memoryview(data)[:end], 1000) == (size if end >= 8 else 0)


@given(st.binary(max_size=12), st.integers(9, 2**31 - 1))
def test_invalid_beginning_is_refused_at_first_wrong_byte(data: bytes, limit: int) -> None:
    length = int.from_bytes(data[:4], "big", signed=True)
    wrong = len(data) >= 4 and not 9 <= length <= limit
    wrong |= data[4:8] != MAGIC.to_bytes(4, "big")[: len(data[4:8])]
    try:
        assert frame_size(data, limit) == (length if len(data) >= 8 else 0)
        assert not wrong
    except ProtocolError:
        assert wrong


@loop_over("length", [-(2**31), -1, 0, 8, 101])
@loop_over("held", [4, 5, 8, 9])
def test_a_length_that_cannot_be_is_refused(length: int, held: int) -> None:
    with pytest.raises(ProtocolError, match="bytes"):
        frame_size(HEADER.pack(length, MAGIC, 2)[:held], 100)


@pytest.mark.parametrize("at", [4, 5, 6, 7])
def test_a_wrong_magic_number_is_refused(at: int) -> None:
    data = bytearray(HEADER.pack(9, MAGIC, 5))
    data[at] ^= 1
    with pytest.raises(ProtocolError, match="magic"):
        frame_size(data)
    with pytest.raises(ProtocolError, match="magic"):
        frame_size(data[: at + 1])
    assert frame_size(data[:at]) == 0
