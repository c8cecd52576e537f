from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.kafka.columns.record_walk import RecordFinder, Section, Spans, Varints, even_records, walk
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import HEADER_SIZE
from protocol.kafka.records.records import build_batch


def body_of(sizes: list[int]) -> bytes:
    """The records of a batch with values of these sizes."""
    return bytes(build_batch([(None, bytes([i % 251]) * size, [], 0) for i, size in enumerate(sizes)])[HEADER_SIZE:])


def fast_spans(data: bytes, *sections: tuple[int, int, int]) -> tuple[list[int], list[int]] | None:
    spans = even_records(np.frombuffer(data, np.uint8), sections)
    return None if spans is None else (spans[0].tolist(), spans[1].tolist())


def walked(data: bytes, *sections: Section) -> tuple[list[int], list[int]]:
    starts: list[int] = []
    for section in sections:
        walk(data, section, starts)
    positions = np.array(starts)
    varints = Varints(data)
    lengths, sizes = varints.read(positions, varints.words(positions))
    return (positions + sizes).tolist(), (positions + sizes + lengths).tolist()


@pytest.mark.parametrize("size", [0, 1, 50, 58, 100, 1000, 9000])
def test_equal_size_records_with_growing_offsets_are_found(size: int) -> None:
    data = body_of([size] * 9000)
    assert walked(data, Section(0, len(data), 9000)) == fast_spans(data, (0, len(data), 9000))


def test_records_of_several_batches_are_found() -> None:
    first, second = body_of([10] * 300), body_of([20] * 400)
    data = first + b"between" + second
    sections = Section(0, len(first), 300), Section(len(first) + 7, len(data), 400)
    assert walked(data, *sections) == fast_spans(data, *sections)


def test_lengths_that_differ_in_their_second_byte_differ() -> None:
    data = body_of([100] * 300 + [164] * 300)
    assert data[64 * 109] == data[-174]  # where the 65th and the last record begin
    assert walked(data, Section(0, len(data), 600)) == fast_spans(data, (0, len(data), 600))


def test_many_short_runs_cost_a_bounded_comparison() -> None:
    compared: list[int] = []

    class Counting(np.ndarray[Any, np.dtype[np.uint8]]):
        def reshape(self, *shape: Any, **order: Any) -> Any:
            compared.append(shape[0])
            return super().reshape(*shape, **order)

    data = body_of([number // 64 % 2 for number in range(64 * 1024)])
    spans = even_records(np.frombuffer(data, np.uint8).view(Counting), [(0, len(data), 64 * 1024)])
    assert spans is not None
    assert walked(data, Section(0, len(data), 64 * 1024)) == (spans[0].tolist(), spans[1].tolist())
    assert sum(compared) < 80 * 64 * 1024


def test_few_or_uneven_records_are_left_to_others() -> None:
    few, uneven = body_of([10] * 255), body_of([10, 11] * 200)
    assert fast_spans(few, (0, len(few), 255)) is None
    assert fast_spans(uneven, (0, len(uneven), 400)) is None


@pytest.mark.parametrize("more", [-1, 1])
def test_other_number_of_records_is_left_to_others(more: int) -> None:
    data = body_of([10] * 300)
    assert fast_spans(data, (0, len(data), 300 + more)) is None


@pytest.mark.parametrize(
    "start", [b"", b"\x80" * 9, b"\x01", b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\x0f", b"\x00" * 9]
)
def test_data_without_a_length_is_left_to_others(start: bytes) -> None:
    assert fast_spans(start, (0, len(start), 300)) is None


@given(
    st.lists(st.tuples(st.integers(0, 70), st.integers(1, 400)), min_size=1, max_size=5),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=2),
)
def test_fast_way_and_walk_agree(runs: list[tuple[int, int]], changes: list[tuple[float, int]]) -> None:
    """``runs``: (size of a value, number of records). ``changes``: (where in the batch, another byte)."""
    sizes = [size for size, count in runs for _ in range(count)]
    data = bytearray(body_of(sizes))
    for where, byte in changes:
        data[int(where * len(data))] = byte
    section = Section(0, len(data), len(sizes))
    fast = fast_spans(bytes(data), section)
    try:
        expected = walked(bytes(data), section)
    except ProtocolError:
        assert fast is None
        return
    assert fast in (None, expected)
    if min(end - body for body, end in zip(*expected, strict=True)) < 6:
        with pytest.raises(ProtocolError):
            RecordFinder().spans(data, Varints(data), [section])
        return
    assert expected == lists(RecordFinder().spans(data, Varints(data), [section]))


def lists(spans: Spans) -> tuple[list[int], list[int]]:
    return spans.bodies.tolist(), spans.ends.tolist()
