"""Rows of received buffers equal their frames decoded one by one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.shuffle.buffer_response import BufferResponse, BufferRow, ClientDecoder, header, take_rows
from protocol.shuffle.data_type import DataType
from protocol.shuffle.ids import Generation
from protocol.shuffle.messages import encode_backlog_announcement

V2_0 = Generation.V2_0
RECEIVERS = [bytes([number]) * 16 for number in range(3)]
DATA, CLEAR_END, EVENT = DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END, DataType.EVENT_BUFFER


def frame(
    receiver: int, sequence: int, payload: bytes, data_type: int = CLEAR_END, compressed: bool = False, backlog: int = 0
) -> bytes:
    return header(V2_0, RECEIVERS[receiver], 7, sequence, backlog, data_type, compressed, len(payload)) + payload


# (receiver, distance from the right number, payload, type, compressed)
FRAMES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([0, 0, 0, 1, 2]),
            st.sampled_from([0] * 10 + [1]),
            st.sampled_from([b"x", b"y", b"longer", b""]),
            st.sampled_from([DATA, CLEAR_END, DATA, CLEAR_END, EVENT]),
            st.sampled_from([False] * 5 + [True]),
        ),
        st.none(),
    ),
    max_size=25,
)


def stream(frames: list[Any]) -> bytes:
    next_of, parts = [0, 0, 0], []
    for each in frames:
        if each is None:
            parts.append(encode_backlog_announcement(RECEIVERS[0], 5))
            continue
        receiver, distance, payload, data_type, compressed = each
        if not payload and data_type is EVENT:
            payload = b"event"
        next_of[receiver] += distance
        parts.append(frame(receiver, next_of[receiver], payload, data_type, compressed, next_of[receiver]))
        next_of[receiver] += 1
    return b"".join(parts)


def singles(message: Any) -> list[Any]:
    """The messages of a row's frames; only the last has the row's backlog."""
    if not isinstance(message, BufferRow):
        return [message]
    assert len(message) > 0
    return [
        BufferResponse(message.receiver, index, (), number, -1, data_type, False, len(payload), payload)
        for index, number, data_type, payload in message
    ]


def by_receiver(messages: list[Any]) -> dict[bytes | None, list[Any]]:
    """The order matters only within a receiver."""
    groups: dict[bytes | None, list[Any]] = {}
    for message in messages:
        if isinstance(message, BufferResponse):
            message = message._replace(backlog=-1, payload=bytes(message.payload))
        groups.setdefault(message.receiver, []).append(message)
    return groups


@given(FRAMES, st.lists(st.integers(1, 200), max_size=20))
def test_rows_are_the_same_however_stream_is_split(frames: list[Any], cuts: list[int]) -> None:
    data = stream(frames)
    plain = ClientDecoder(V2_0).feed(data)
    decoder, came = ClientDecoder(V2_0, rows=True), []
    rest = memoryview(data)
    for cut in [*cuts, len(data)]:
        for message in decoder.feed(rest[:cut]):
            if isinstance(message, BufferRow):
                assert message.backlog == message.sequence + len(message) - 1  # of the last buffer
            came += singles(message)
        rest = rest[cut:]
    assert by_receiver(came) == by_receiver(plain)


@given(FRAMES.map(stream), st.data())
def test_mutations_give_the_same_messages_or_error(data: bytes, chooser: st.DataObject) -> None:
    changed = bytearray(data)
    for _ in range(chooser.draw(st.integers(0, 3)) if data else 0):
        changed[chooser.draw(st.integers(0, len(data) - 1))] = chooser.draw(st.integers(0, 255))

    def decoded(rows: bool) -> Any:
        try:
            messages = ClientDecoder(V2_0, rows=rows).feed(changed)
        except ProtocolError as error:
            return str(error)
        return by_receiver_or_text([single for message in messages for single in singles(message)])

    assert decoded(True) == decoded(False)


def by_receiver_or_text(messages: list[Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for message in messages:
        if isinstance(message, BufferResponse):
            message = message._replace(backlog=-1, payload=bytes(message.payload))
        groups.setdefault(getattr(message, "receiver", type(message)), []).append(message)
    return groups


def test_receivers_that_alternate_have_a_row_each() -> None:
    data = b"".join(frame(number % 2, number // 2, b"data", backlog=9 - number) for number in range(10))
    rows, size = take_rows(memoryview(data), 100)
    assert size == len(data)
    assert [(row.receiver, row.sequence, len(row), row.backlog) for row in rows] == [
        (RECEIVERS[0], 0, 5, 1),
        (RECEIVERS[1], 0, 5, 0),
    ]
    assert rows[0].subpartitions == [7] * 5


@pytest.mark.parametrize(
    "other",
    [
        frame(0, 3, b"data"),
        frame(0, 2, b""),
        frame(0, 2, b"data", EVENT),
        frame(0, 2, b"data", compressed=True),
        frame(0, 2, b"more than is allowed"),
        header(V2_0, RECEIVERS[0], 7, 2, 0, DATA, False, 4, (2, 2)) + b"data",
        frame(0, 2, b"data")[:-1],
    ],
)
def test_row_ends_before_anything_but_consecutive_plain_buffers(other: bytes) -> None:
    first = frame(0, 0, b"data") + frame(0, 1, b"data")
    rows, size = take_rows(memoryview(first + other), 10)
    assert ([len(row) for row in rows], size) == ([2], len(first))


def test_other_generations_have_no_rows() -> None:
    data = b"".join(
        header(Generation.V1_19, RECEIVERS[0], 7, number, 0, DATA, False, 4) + b"data" for number in range(3)
    )
    messages = ClientDecoder(Generation.V1_19, rows=True).feed(data)
    assert [type(message) for message in messages] == [BufferResponse] * 3
