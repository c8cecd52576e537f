"""A split batch: the same records with the same sequence numbers, in valid batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.kafka.sender import split
from protocol.kafka.records.batch import check_crc, read_header, set_producer
from protocol.kafka.records.records import build_batch, records

FIELDS = st.none() | st.binary(max_size=60)
HEADERS = st.lists(st.tuples(st.text(max_size=5), FIELDS), max_size=2)
RECORDS = st.lists(st.tuples(FIELDS, FIELDS, HEADERS, st.integers(0, 2**40)), min_size=2, max_size=30)


@given(
    RECORDS,
    st.integers(0, 4),
    st.integers(0, 3000),
    st.none() | st.tuples(st.integers(0, 2**31 - 1), st.booleans()),
)
def test_pieces_are_the_whole(
    given: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]],
    compression: int,
    most: int,
    producer: tuple[int, bool] | None,
) -> None:
    whole = build_batch(given, compression=compression)
    if producer is not None:
        set_producer(whole, 9, 3, *producer)
    pieces = split(whole, most)
    assert 2 <= len(pieces)
    split_records = []
    sequence = producer[0] if producer is not None else -1
    for data, count in pieces:
        header = read_header(data)
        check_crc(data, 0, header)
        these = list(records(data))
        assert (len(data), count, count - 1) == (header.size, header.record_count, header.last_offset_delta)
        assert list(range(count)) == [record.offset for record in these]
        assert compression == header.compression
        assert max(record.timestamp for record in these) == header.max_timestamp
        if producer is None:
            assert (-1, -1, -1) == (header.producer_id, header.producer_epoch, header.base_sequence)
        else:
            assert (9, 3, sequence) == (header.producer_id, header.producer_epoch, header.base_sequence)
            assert producer[1] == header.is_transactional
            sequence = (sequence + count) % 2**31
        split_records += these
    assert given == [(record.key, record.value, record.headers, record.timestamp) for record in split_records]


@pytest.mark.parametrize("most", [5000, 8000])
def test_uncompressed_pieces_stay_within_the_limit(most: int) -> None:
    whole = build_batch([(b"key", b"x" * 100, [], 0) for _ in range(100)])
    assert most >= max(len(data) for data, _ in split(whole, most))
    assert -(-len(whole) // most) + 1 >= len(split(whole, most))
