"""Rows of pushes equal their frames parsed one by one."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.shuffle.frame import frame_size
from protocol.shuffle.push_row import PushRow, push_frames, take_row
from protocol.shuffle.writer_frames import encode_finish_partition, encode_push_buffer, parse, parse_push, push_header
from protocol.shuffle.writer_values import PushBuffer

DATA, EVENT, CLEAR_END = 1, 2, 8

PUSHES = st.builds(
    encode_push_buffer,
    st.sampled_from([1, 1, 1, 2]),
    st.integers(0, 2),
    st.integers(0, 5),
    st.sampled_from([DATA, CLEAR_END, DATA, CLEAR_END, EVENT]),
    st.booleans(),
    st.sampled_from([b"x", b"y" * 20, b"z" * 20, b"long" * 50]),
)
# With the fields of a frame, which may be invalid.
WRONG = st.builds(
    lambda sequence, subpartition, size, payload: (
        struct.pack(">iIBiiiBBi", 27 + len(payload), 0xBADC0FFE, 65, 1, subpartition, sequence, DATA, 0, size) + payload
    ),
    st.integers(-2, 2),
    st.integers(-2, 2),
    st.integers(-1, 2),
    st.sampled_from([b"", b"x"]),
)
OTHERS = st.builds(encode_finish_partition, st.integers(1, 2))


def one_by_one(data: bytes) -> list[object]:
    """The pushes of the frames, up to the first invalid frame."""
    view, came = memoryview(data), []
    while view:
        size = frame_size(view)
        try:
            push = parse(view[:size])
        except ProtocolError as error:
            return [*came, str(error)]
        came.append(plain(push) if isinstance(push, PushBuffer) else push)
        view = view[size:]
    return came


def by_rows(data: bytes, pushes_max: int) -> list[object]:
    view, came = memoryview(data), []
    while view:
        row, size = take_row(view, pushes_max, 1 << 20)
        try:
            if row is None:
                size = frame_size(view)
                push = parse(view[:size])
                came.append(plain(push) if isinstance(push, PushBuffer) else push)
            else:
                assert 2 <= len(row) <= pushes_max
                for push in row.pushes():
                    came.append(plain(push))
        except ProtocolError as error:
            return [*came, str(error)]
        view = view[size:]
    return came


def plain(push: PushBuffer) -> PushBuffer:
    return push._replace(payload=memoryview(bytes(push.payload)))


@given(st.lists(st.one_of(PUSHES, PUSHES, WRONG, OTHERS), max_size=20).map(b"".join), st.integers(2, 9))
def test_rows_give_the_same_pushes_and_error(data: bytes, pushes_max: int) -> None:
    assert by_rows(data, pushes_max) == one_by_one(data)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 0, 0, 1]), st.sampled_from([3, 3, 9])), min_size=2))
def test_runs_are_the_pushes_of_each_subpartition(chosen: list[tuple[int, int, int]]) -> None:
    next_of, frames = [0, 0, 0], []
    for subpartition, skip, size in chosen:
        number = next_of[subpartition] = next_of[subpartition] + skip
        next_of[subpartition] += 1
        frames.append(encode_push_buffer(1, subpartition, number, CLEAR_END, size == 9, bytes([number % 256]) * size))
    row, _ = take_row(memoryview(b"".join(frames)), 1000, 1 << 20)
    assert row is not None
    runs = row.runs()
    by_subpartition: dict[int, list[PushBuffer]] = {}
    for push in row.pushes():
        by_subpartition.setdefault(push.subpartition, []).append(push)
    if runs is None:
        assert any(
            [push.sequence for push in pushes] != list(range(pushes[0].sequence, pushes[0].sequence + len(pushes)))
            for pushes in by_subpartition.values()
        )
        return
    assert [run.subpartition for run in runs] == list(by_subpartition)
    for run in runs:
        pushes = by_subpartition[run.subpartition]
        assert run.sequence == pushes[0].sequence
        assert list(run.payloads) == [bytes(push.payload) for push in pushes]
        assert list(run.data_types) == [push.data_type for push in pushes]
        assert [bool(flag) for flag in run.compressed] == [push.compressed for push in pushes]
        assert run.size == sum(len(push.payload) for push in pushes)


def row_of(*frames: bytes, pushes_max: int = 100, bytes_max: int = 1000) -> tuple[PushRow | None, int]:
    return take_row(memoryview(b"".join(frames)), pushes_max, bytes_max)


def test_row_ends_before_event_other_writer_incomplete_frame() -> None:
    push = encode_push_buffer(1, 0, 0, DATA, False, b"data")
    for other in (
        encode_push_buffer(1, 0, 2, EVENT, False, b"data"),
        encode_push_buffer(2, 0, 2, DATA, False, b"data"),
        encode_finish_partition(1),
        push[:-1],
        push[:20],
        b"\0" * 40,
    ):
        row, size = row_of(push, push, other)
        assert row is not None
        assert (len(row), size) == (2, 2 * len(push))
        assert row_of(push, other) == (None, 0)
        assert row_of(other, push) == (None, 0)


def test_row_is_bounded_in_pushes_and_bytes() -> None:
    short, long = (encode_push_buffer(1, 0, 0, DATA, False, payload) for payload in (b"data", b"more data"))
    for frames in ([short] * 10, [short, long] * 5):
        row, size = row_of(*frames, pushes_max=5)
        assert row is not None
        assert (len(row), size) == (5, sum(map(len, frames[:5])))
        row, size = row_of(*frames, bytes_max=100)
        assert row is not None
        assert (len(row), size) == (3, sum(map(len, frames[:3])))


def test_payload_that_looks_like_a_frame_stays_payload() -> None:
    inner = encode_push_buffer(1, 0, 7, DATA, False, b"")
    frames = [encode_push_buffer(1, 0, number, DATA, False, inner) for number in range(3)]
    row, _ = row_of(*frames)
    assert row is not None
    assert [bytes(push.payload) for push in row.pushes()] == [inner] * 3


def test_wrong_size_raises_after_the_earlier_pushes() -> None:
    right = encode_push_buffer(1, 0, 0, DATA, False, b"data")
    wrong = push_header(1, 0, 1, DATA, False, 4) + b"data"
    wrong = wrong[:23] + (5).to_bytes(4, "big") + wrong[27:]
    with pytest.raises(ProtocolError):
        parse_push(memoryview(wrong))
    row, _ = row_of(right, wrong)
    assert row is not None
    assert row.runs() is None
    pushes = row.pushes()
    assert next(pushes).payload == b"data"
    with pytest.raises(ProtocolError, match="a pushed buffer of 5 bytes in a frame of 31"):
        next(pushes)


@given(
    st.integers(0, 2**31 - 50),
    st.lists(st.tuples(st.sampled_from([DATA, CLEAR_END, EVENT]), st.booleans(), st.binary(min_size=1, max_size=20))),
)
def test_frames_made_together_equal_single_frames(sequence: int, pushes: list[tuple[int, bool, bytes]]) -> None:
    columns = [[push[place] for push in pushes] for place in range(3)]
    made = push_frames(7, 3, sequence, columns[0], columns[1], columns[2])
    assert b"".join(made) == b"".join(
        encode_push_buffer(7, 3, number, data_type, compressed, payload)
        for number, (data_type, compressed, payload) in enumerate(pushes, sequence)
    )
    assert made[1::2] == columns[2]
