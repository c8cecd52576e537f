import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.shuffle import buffer_response
from protocol.shuffle import messages as m
from protocol.shuffle import writer_frames as w
from protocol.shuffle.buffer_response import (
    BufferHeader,
    BufferResponse,
    ClientDecoder,
    ServerMessage,
    header,
    header_template,
    parse_header,
)
from protocol.shuffle.data_type import DataType
from protocol.shuffle.frame import HEADER, MAGIC, frame_size
from protocol.shuffle.ids import Generation
from tests.protocol.shuffle.strategies import (
    GENERATIONS,
    SERVER_FRAMES,
    SERVER_MESSAGES,
    buffers,
    in_pieces,
    mutated,
    packed,
)

RECEIVER = bytes(range(16))
V2_0 = Generation.V2_0


@st.composite
def streams(draw: st.DrawFn, generation: Generation) -> tuple[list[ServerMessage], list[bytes]]:
    """A server's messages, and the frame of each."""
    expected: list[ServerMessage] = []
    frames: list[bytes] = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["buffer", "buffer", "message", "writer"]))
        if kind == "buffer":
            head, payload = draw(buffers(generation))
            expected.append(BufferResponse(*head, payload))
            frames.append(packed(head, generation) + payload)
        elif kind == "message":
            message = draw(SERVER_MESSAGES)
            expected.append(message)
            frames.append(m.encode(message, generation))
        else:
            frame = draw(SERVER_FRAMES)
            expected.append(frame)
            frames.append(w.encode(frame))
    return expected, frames


@given(GENERATIONS, st.data())
def test_a_template_makes_the_same_headers(generation: Generation, data: st.DataObject) -> None:
    head, _ = data.draw(buffers(generation))
    pack, fixed, fixed_bytes = header_template(generation, head.receiver, head.subpartition)
    of_one = head.sequence, head.backlog, head.data_type, head.compressed, head.size
    whole = header(generation, head.receiver, head.subpartition, *of_one)
    assert fixed_bytes == len(whole)
    assert pack(fixed_bytes + head.size, fixed, *of_one) == whole


@given(GENERATIONS, st.data())
def test_a_header_is_read_back(generation: Generation, data: st.DataObject) -> None:
    head, payload = data.draw(buffers(generation))
    raw = packed(head, generation)
    assert len(raw) + len(payload) == frame_size(raw)
    assert len(raw) == 9 + generation.buffer_header_bytes + 4 * len(head.partial_sizes)
    parsed = parse_header(memoryview(b"ab" + raw), generation, 2)
    assert head == parsed
    assert type(parsed) is BufferHeader


@given(GENERATIONS, st.data())
def test_stream_is_the_same_however_it_is_split(generation: Generation, data: st.DataObject) -> None:
    expected, frames = data.draw(streams(generation))
    decoder = ClientDecoder(generation)
    decoded: list[ServerMessage] = []
    for piece in data.draw(in_pieces(b"".join(frames))):
        decoded += decoder.feed(piece)
    assert expected == decoded
    assert [type(message) for message in expected] == [type(message) for message in decoded]
    assert decoder.pending == 0


@given(GENERATIONS, st.data())
def test_stream_is_the_same_with_payloads_received_directly(generation: Generation, data: st.DataObject) -> None:
    expected, frames = data.draw(streams(generation))
    decoder = ClientDecoder(generation)
    decoded: list[ServerMessage] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffer_response, "_DIRECT_BYTES", 3)
        patch.setattr(buffer_response, "_BELIEVED_BYTES", data.draw(st.integers(1, 20)))
        for piece in data.draw(in_pieces(b"".join(frames))):
            while piece:
                space = decoder.space
                if space is None:
                    decoded += decoder.feed(piece)
                    break
                size = min(len(space), len(piece))
                space[:size], piece = piece[:size], piece[size:]
                decoded += decoder.filled(size)
    assert expected == decoded
    assert decoder.pending == 0


@given(GENERATIONS, st.data())
def test_a_stream_may_come_byte_by_byte(generation: Generation, data: st.DataObject) -> None:
    expected, frames = data.draw(streams(generation))
    decoder = ClientDecoder(generation)
    held = 0
    for message, frame in zip(expected, frames, strict=True):
        for number, byte in enumerate(frame, 1):
            decoded = decoder.feed(bytes((byte,)))
            assert ([message] if number == len(frame) else []) == decoded
            held = decoder.pending
            assert held == (0 if number == len(frame) else number)


@given(GENERATIONS, st.data())
def test_a_truncated_stream_asks_for_more(generation: Generation, data: st.DataObject) -> None:
    expected, frames = data.draw(streams(generation).filter(lambda stream: bool(stream[0])))
    cut = data.draw(st.integers(0, len(frames[-1]) - 1))
    decoder = ClientDecoder(generation)
    assert expected[:-1] == decoder.feed(b"".join(frames[:-1]) + frames[-1][:cut])
    assert cut == decoder.pending
    assert expected[-1:] == decoder.feed(frames[-1][cut:])


@given(GENERATIONS, st.data())
def test_mutations_are_messages_or_protocol_errors(generation: Generation, data: st.DataObject) -> None:
    _, frames = data.draw(streams(generation))
    stream = bytes(data.draw(mutated(b"".join(frames))))
    decoder = ClientDecoder(generation, max_payload=100, max_frame=10_000)
    for piece in data.draw(in_pieces(stream)):
        try:
            decoder.feed(piece)
        except ProtocolError:
            return
        assert decoder.pending <= len(stream)


@given(st.binary(max_size=100), GENERATIONS)
def test_any_bytes_raise_nothing_but_protocol_errors(data: bytes, generation: Generation) -> None:
    for stream in (data, HEADER.pack(len(data) + 9, MAGIC, data[0] if data else 0) + data[1:]):
        try:
            ClientDecoder(generation).feed(stream)
        except ProtocolError:
            pass


def test_payload_survives_reuse_of_the_receive_buffer() -> None:
    received = bytearray(header(V2_0, RECEIVER, 0, 0, 0, 1, False, 4) + b"data")
    (response,) = ClientDecoder(V2_0).feed(received)
    received[:] = bytes(len(received))
    assert isinstance(response, BufferResponse)
    assert (RECEIVER, b"data") == (response.receiver, response.payload)


def test_two_payloads_that_came_in_pieces_are_two() -> None:
    decoder = ClientDecoder(V2_0)
    decoded: list[ServerMessage] = []
    for payload in (b"first", b"other"):
        stream = header(V2_0, RECEIVER, 0, 0, 0, 1, False, 5) + payload
        decoded += decoder.feed(stream[:-2]) + decoder.feed(stream[-2:])
    assert [b"first", b"other"] == [response.payload for response in decoded if isinstance(response, BufferResponse)]


def test_frame_length_is_ignored_for_a_buffer() -> None:
    frame = bytearray(header(V2_0, RECEIVER, 0, 0, 0, 1, False, 4) + b"data")
    frame[:4] = (9).to_bytes(4, "big")
    (response,) = ClientDecoder(V2_0).feed(frame)
    assert isinstance(response, BufferResponse)
    assert response.payload == b"data"


def test_partial_buffers_come_apart() -> None:
    head = header(V2_0, RECEIVER, 5, 100, 1, 1, False, 10, (3, 5, 2))
    (response,) = ClientDecoder(V2_0).feed(head + b"aaabbbbbcc")
    assert isinstance(response, BufferResponse)
    assert [b"aaa", b"bbbbb", b"cc"] == response.partials()
    assert response.next_sequence == parse_header(head, V2_0).next_sequence == 103


def test_an_ordinary_buffer_is_one() -> None:
    (response,) = ClientDecoder(V2_0).feed(header(V2_0, RECEIVER, 5, 100, 1, 1, False, 2) + b"ab")
    assert isinstance(response, BufferResponse)
    assert [b"ab"] == response.partials()
    assert response.next_sequence == 101


@pytest.mark.parametrize("generation", [Generation.V1_16, Generation.V1_19])
def test_partial_buffers_are_of_2_0(generation: Generation) -> None:
    with pytest.raises(ValueError, match="no partial buffers"):
        header(generation, RECEIVER, 0, 0, 0, 1, False, 2, (1, 1))


def test_partial_sizes_must_make_up_the_payload() -> None:
    with pytest.raises(ValueError, match="partial"):
        header(V2_0, RECEIVER, 0, 0, 0, 1, False, 3, (1, 1))


def test_an_empty_payload_has_no_partial_buffers() -> None:
    # Flink's client would take their sizes for the next frame.
    with pytest.raises(ValueError, match="partial"):
        header(V2_0, RECEIVER, 0, 0, 0, 1, False, 0, (0,))
    frame = bytearray(header(V2_0, RECEIVER, 0, 0, 0, 1, False, 3, (3,)))
    frame[43:] = bytes(8)
    with pytest.raises(ProtocolError, match="partial"):
        ClientDecoder(V2_0).feed(frame)


@pytest.mark.parametrize("sizes", [(1, 2, 1), (4, -1), (3, 1)])
def test_partial_sizes_that_lie_are_refused(sizes: tuple[int, ...]) -> None:
    frame = bytearray(header(V2_0, RECEIVER, 0, 0, 0, 1, False, 3, (1,) * 2 + (1,)) + b"abc")
    frame[29:33] = len(sizes).to_bytes(4, "big")
    frame[47:-3] = b"".join(size.to_bytes(4, "big", signed=True) for size in sizes)
    with pytest.raises(ProtocolError, match="partial"):
        ClientDecoder(V2_0).feed(frame)


@pytest.mark.parametrize("count", [-1, 33, 2**31 - 1])
def test_a_count_of_partial_buffers_is_not_believed(count: int) -> None:
    frame = bytearray(header(V2_0, RECEIVER, 0, 0, 0, 1, False, 3, (3,)) + b"abc")
    frame[29:33] = count.to_bytes(4, "big", signed=True)
    for cut in (0, 10, 46):
        decoder = ClientDecoder(V2_0, max_payload=32)
        assert [] == decoder.feed(frame[:cut])
        with pytest.raises(ProtocolError, match="partial"):
            decoder.feed(frame[cut:])


@pytest.mark.parametrize("size", [-1, 33, 2**31 - 1])
def test_a_size_is_not_believed(size: int) -> None:
    frame = bytearray(header(V2_0, RECEIVER, 0, 0, 0, 1, False, 3) + b"abc")
    frame[43:47] = size.to_bytes(4, "big", signed=True)
    tracemalloc.start()
    for cut in (0, 1, 20, 46):
        decoder = ClientDecoder(V2_0, max_payload=32)
        assert [] == decoder.feed(frame[:cut])
        with pytest.raises(ProtocolError, match="bytes"):
            decoder.feed(frame[cut:])
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_large_size_allocates_little_more_than_received_bytes() -> None:
    decoder = ClientDecoder(V2_0, max_payload=1 << 30)
    tracemalloc.start()
    try:
        assert decoder.feed(header(V2_0, RECEIVER, 0, 0, 0, 1, False, 1 << 30) + bytes(100)) == []
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
        for _ in range(3):
            assert (space := decoder.space) is not None
            assert decoder.filled(len(space)) == []
        assert tracemalloc.get_traced_memory()[0] < 9 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [10_001, 2**31 - 1, -1, 8])
@pytest.mark.parametrize("cut", [4, 8, 9])
def test_frame_above_the_limit_is_refused_at_once(length: int, cut: int) -> None:
    with pytest.raises(ProtocolError, match="bytes"):
        ClientDecoder(V2_0, max_frame=10_000).feed(HEADER.pack(length, MAGIC, 1)[:cut])


@pytest.mark.parametrize("data_type", [DataType.END_OF_DATA, DataType.EVENT_BUFFER])
def test_an_event_of_no_bytes_is_refused(data_type: DataType) -> None:
    with pytest.raises(ProtocolError, match="event"):
        ClientDecoder(V2_0).feed(header(V2_0, RECEIVER, 0, 0, 0, data_type, False, 0))


def test_data_of_no_bytes_is_a_buffer() -> None:
    (response,) = ClientDecoder(V2_0).feed(header(V2_0, RECEIVER, 0, 0, 0, 1, False, 0))
    assert isinstance(response, BufferResponse)
    assert response.payload == b""


@pytest.mark.parametrize(("generation", "first"), [(Generation.V1_16, 8), (Generation.V1_19, 12), (V2_0, 14)])
def test_type_unknown_to_a_generation_is_refused(generation: Generation, first: int) -> None:
    with pytest.raises(ProtocolError, match="type"):
        ClientDecoder(generation).feed(header(generation, RECEIVER, 0, 0, 0, first, False, 1) + b"x")
    assert ClientDecoder(generation).feed(header(generation, RECEIVER, 0, 0, 0, first - 1, False, 1) + b"x")
