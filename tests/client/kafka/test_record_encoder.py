"""Encoded batches, read back by the format's own reader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.kafka import record_encoder
from broker.client.kafka.record_encoder import Records, encode, encode_headers
from protocol.kafka.records.batch import check_crc, read_header
from protocol.kafka.records.records import records

Header = tuple[bytes, bytes | None]
Row = tuple[bytes | None, bytes | None, list[Header], int]

nullable = st.none() | st.binary(max_size=40)
header_lists = st.lists(st.tuples(st.text(max_size=5).map(str.encode), nullable), max_size=3)
rows = st.lists(st.tuples(nullable, nullable, header_lists, st.integers(0, 1 << 42)), min_size=1, max_size=30)


def read(batches: list[tuple[bytearray, int]]) -> list[Row]:
    decoded: list[Row] = []
    for data, count in batches:
        header = read_header(data)
        check_crc(data, 0, header)
        inside = list(records(data))
        assert count == len(inside) == header.record_count
        assert header.max_timestamp == max(record.timestamp for record in inside)
        assert list(range(count)) == [record.offset for record in inside]
        decoded += [
            (record.key, record.value, [(name.encode(), value) for name, value in record.headers], record.timestamp)
            for record in inside
        ]
    return decoded


@given(rows, st.integers(100, 2000), st.sampled_from([0, 1, 4]))
def test_encoded_records_are_read_back(given_rows: list[Row], most: int, codec: int) -> None:
    given_records = Records(
        [row[1] for row in given_rows],
        [row[0] for row in given_rows],
        [encode_headers(row[2]) for row in given_rows],
        [row[3] for row in given_rows],
    )
    batches = list(encode(given_records, most, now_ms=5, codec=codec))
    assert given_rows == read(batches)
    assert all(len(data) <= most or count == 1 for data, count in batches)


@given(st.lists(st.binary(max_size=2000), max_size=30), st.integers(100, 5000))
def test_values_alone_take_a_shorter_way(values: list[bytes], most: int) -> None:
    batches = list(encode(Records(values), most, now_ms=7))
    assert [(None, value, [], 7) for value in values] == read(batches)


@given(st.lists(nullable, min_size=1, max_size=5), st.booleans())
def test_missing_columns_are_nulls_and_now(values: list[bytes | None], keyed: bool) -> None:
    keys: list[bytes | None] | None = [b"k"] * len(values) if keyed else None
    assert [(keys and keys[0], value, [], 9) for value in values] == read(
        list(encode(Records(values, keys), 10_000, now_ms=9))
    )


def test_batch_has_a_largest_number_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_encoder, "_BATCH_RECORDS_MAX", 100)
    batches = list(encode(Records([b""] * 1000), 1_000_000, now_ms=1))
    assert max(count for _, count in batches) <= 100
    assert 1000 == sum(count for _, count in batches)


def test_offsets_beyond_the_prepared_ones() -> None:
    (batch,) = encode(Records([b"x"] * 5000), 1_000_000, now_ms=1)
    assert 5000 == len(read([batch]))


def test_incompressible_batch_is_not_compressed() -> None:
    ((data, _),) = encode(Records([b"x"]), 1000, now_ms=1, codec=1)
    assert 0 == read_header(data).compression
    ((data, _),) = encode(Records([b"x" * 1000]), 10_000, now_ms=1, codec=1)
    assert 1 == read_header(data).compression


def test_no_records_give_no_batch() -> None:
    assert [] == list(encode(Records([]), 1000, now_ms=1))


def test_rows_can_be_taken() -> None:
    three = Records([b"0", b"1", b"2"], [b"a", b"b", b"c"], None, [1, 2, 3])
    taken = three.take([2, 0])
    assert ([b"2", b"0"], [b"c", b"a"], None, [3, 1]) == (taken.values, taken.keys, taken.headers, taken.times)
