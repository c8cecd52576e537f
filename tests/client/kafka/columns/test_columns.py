import struct
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.client import Broker
from broker.client.kafka import Cluster
from broker.client.kafka.columns import record_walk
from broker.client.kafka.columns.columns import COLUMNS, Decoder, schema
from broker.client.kafka.errors import CorruptRecordError
from protocol.errors import ProtocolError
from protocol.frames import crc32c
from protocol.kafka.records.batch import CRC_START, HEADER_SIZE, LOG_APPEND_TIME, TRANSACTIONAL, batches
from protocol.kafka.records.records import build_batch, build_marker, enclose, records
from tests.loops import loop_over

ALL = (*COLUMNS, "headers")
Row = dict[str, Any]

FIELD = (
    st.none() | st.binary(max_size=9) | st.sampled_from([bytes(63), bytes(64), b"\x00\x80\x01\x00" * 9, b"x" * 8200])
)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
RECORD = st.tuples(
    FIELD, FIELD, HEADERS | st.just([]), st.integers(-1, 2**42) | st.just(2**62)
)  # too late for microseconds
PLAIN_RECORD = st.tuples(st.just(None), st.binary(max_size=90), st.just([]), st.integers(5, 300))


@st.composite
def even_records_of(draw: st.DrawFn) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int]]:
    """Enough records of one length for the fast way. Key, headers and value share the length in several ways."""
    size = draw(st.sampled_from([9, 50, 58, 70, 140]))
    kinds = []
    for key_size, with_header, byte in draw(
        st.lists(st.tuples(st.integers(-1, size), st.booleans(), st.sampled_from([0, 1, 0x80])), min_size=1, max_size=3)
    ):
        key = None if key_size < 0 else bytes([byte]) * key_size
        left = size - max(0, key_size) - 4 * with_header
        kinds.append((key, None if left < 0 else bytes([byte]) * left, [("h", b"v")] if with_header else []))
    count, step = draw(st.integers(256, 330)), draw(st.integers(-1, 1))
    return [(*kinds[i % len(kinds)], 1000 + step * (i % 60)) for i in range(count)]


@st.composite
def batch_of(draw: st.DrawFn, base_offset: int) -> bytes:
    given = draw(
        st.one_of(st.lists(RECORD, max_size=6), st.lists(PLAIN_RECORD, min_size=30, max_size=80), even_records_of())
    )
    steps = draw(st.just([1]) | st.lists(st.integers(1, 3), min_size=1, max_size=80))
    offsets = list(accumulate((steps[i % len(steps)] for i in range(1, len(given))), initial=base_offset))[: len(given)]
    return bytes(
        build_batch(
            given,
            base_offset=base_offset,
            offsets=offsets,
            last_offset_delta=max([0, *(offset - base_offset for offset in offsets)]) + draw(st.integers(0, 2)),
            compression=draw(st.integers(0, 4)),
            attributes=draw(st.sampled_from([0, LOG_APPEND_TIME])),
            max_timestamp=draw(st.sampled_from([None, 77])),
        )
    )


@st.composite
def several_batches(draw: st.DrawFn) -> bytes:
    data = b""
    base_offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 5))):
        data += draw(batch_of(base_offset))
        *_, (_, header) = batches(data)
        base_offset = header.next_offset + draw(st.integers(0, 2))
    return data


def microseconds(time_ms: int) -> int | None:
    return time_ms * 1000 if abs(time_ms * 1000) < 2**63 else None


def expected_rows(data: bytes) -> list[Row]:
    """The records of ``data``, read one after the other by the other codec."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "t",
            "partition": 7,
            "offset": record.offset,
            "timestamp": microseconds(record.timestamp),
            "timestampType": int(header.is_log_append_time),
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for pos, header in batches(data)
        for record in records(data, pos)
    ]


def rows(record_batches: Iterable[pa.RecordBatch]) -> list[Row]:
    result: list[Row] = []
    for batch in record_batches:
        batch.validate(full=True)
        assert batch.schema == schema(batch.schema.names)
        if "timestamp" in batch.schema.names:
            place = batch.schema.get_field_index("timestamp")
            batch = batch.set_column(place, "timestamp", batch.column(place).cast(pa.int64()))
        result += batch.to_pylist()
    return result


def decoder(
    start: int, end: int | None = None, columns: Sequence[str] = ALL, max_batch_bytes: int = 1 << 20
) -> Decoder:
    return Decoder("t", 7, start, end, columns=columns, max_batch_bytes=max_batch_bytes)


@given(several_batches(), st.sampled_from([1, 5000, 1 << 20, 1 << 20]))
def test_columns_have_the_values_of_the_records(data: bytes, max_batch_bytes: int) -> None:
    wanted = decoder(0, max_batch_bytes=max_batch_bytes)
    assert expected_rows(data) == rows(wanted.decode(data))
    *_, (_, header) = batches(data)
    assert header.next_offset == wanted.next_offset


@given(several_batches(), st.data())
def test_only_offsets_from_start_to_end_are_returned(data: bytes, choice: st.DataObject) -> None:
    (_, first), *_ = batches(data)
    *_, (_, last) = batches(data)
    start = choice.draw(st.integers(max(0, first.base_offset - 1), last.next_offset))
    end = choice.draw(st.integers(start, last.next_offset + 1))
    wanted = decoder(start, end)
    assert [row for row in expected_rows(data) if start <= row["offset"] < end] == rows(wanted.decode(data))
    assert wanted.next_offset == min(end, max(start, last.next_offset))
    assert wanted.done == (wanted.next_offset == end)


@given(several_batches(), st.data())
def test_torn_batch_is_left_to_next_fetch(data: bytes, choice: st.DataObject) -> None:
    wanted = decoder(0)
    actual: list[Row] = []
    ends = [pos + header.size for pos, header in batches(data)]
    done = 0
    while done < len(data):
        # A fetch starts with a whole batch and may be cut anywhere behind it.
        first_end = next(end for end in ends if end > done)
        cut = choice.draw(st.integers(first_end, len(data)))
        actual += rows(wanted.decode(data[done:cut]))
        done = max(end for end in ends if end <= cut)
    assert expected_rows(data) == actual


@given(several_batches())
def test_records_before_the_position_are_skipped(data: bytes) -> None:
    wanted = decoder(0)
    actual = rows(wanted.decode(data))
    assert [] == wanted.decode(data)
    assert expected_rows(data) == actual


@given(several_batches(), st.lists(st.sampled_from(ALL), unique=True))
def test_columns_come_in_the_requested_order(data: bytes, columns: list[str]) -> None:
    expected = [{name: row[name] for name in columns} for row in expected_rows(data)]
    decoded = decoder(0, columns=columns).decode(data)
    assert {tuple(columns)} >= {tuple(batch.schema.names) for batch in decoded}
    assert (expected if columns else []) == rows(decoded)


def test_buffer_may_be_reused_after_decoding() -> None:
    data = bytearray(build_batch([(b"k", b"v", [("h", b"x")], 0)] * 40))
    decoded = decoder(0).decode(data)
    expected = expected_rows(bytes(data))
    data[HEADER_SIZE:] = bytes(len(data) - HEADER_SIZE)
    data += b"can grow: nothing refers to it"
    assert expected == rows(decoded)


# -- large and small ----------------------------------------------------------------------------------------------


def test_record_batches_have_about_the_wanted_size() -> None:
    data = b"".join(build_batch([(None, bytes(100), [], 0)] * 50, base_offset=50 * i) for i in range(40))
    decoded = decoder(0, max_batch_bytes=20_000).decode(data)
    assert [150] * 13 + [50] == [batch.num_rows for batch in decoded]


@pytest.mark.parametrize("codec", range(5))
def test_large_batch_comes_in_pieces(codec: int) -> None:
    data = bytes(build_batch([(b"%d" % i, bytes(i % 150), [], i) for i in range(3000)], compression=codec))
    decoded = decoder(0, max_batch_bytes=20_000).decode(data)
    assert max(batch.nbytes for batch in decoded) < 100_000
    assert expected_rows(data) == rows(decoded)


def test_compressed_data_comes_piece_by_piece() -> None:
    data = b"".join(
        build_batch([(None, bytes(4000), [], 0)] * 1000, base_offset=1000 * i, compression=4) for i in range(8)
    )
    before, most = pa.total_allocated_bytes(), 0
    for batch in decoder(0, columns=["value"]).batches(data):
        most = max(most, pa.total_allocated_bytes() - before)
        del batch
    assert most < 8_000_000  # of 32 MB


@loop_over("size", [1, 20, 49, 50, 57, 58, 100, 3000, 9000])
@loop_over("filling", [b"\x00", b"\x80", b"\x00\x90\x12\x00", b"\x00\x0c\x00", b"text"])
def test_records_of_any_content_are_found(size: int, filling: bytes) -> None:
    value = (filling * size)[:size]
    data = bytes(build_batch([(None, value, [], i * 100) for i in range(300)]))
    data += build_batch([(None, value[: i % (size + 1)], [], 0) for i in range(300)], base_offset=300)
    assert expected_rows(data) == rows(decoder(0).decode(data))


def test_value_like_a_record_is_not_a_record() -> None:
    # A record without a guess, because its length has three bytes, and a guess without a record: the numbers are equal.
    values = [b"x"] * 62 + [b"y" * 9000, b"ab\x00\x90\x01\x00cd"]
    data = bytes(build_batch([(None, value, [], 0) for value in values]))
    assert expected_rows(data) == rows(decoder(0).decode(data))


def test_few_wrong_guesses_do_not_cause_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"x" * (1 + i % 50) + (b"ab\x00\x0c\x00cd" if i % 40 == 39 else b"") for i in range(200)]
    batch = [(None, value, [], 0) for value in values]
    data = bytes(build_batch(batch) + build_batch(batch, base_offset=200))
    monkeypatch.delattr(record_walk, "walk")
    assert expected_rows(data) == rows(decoder(0).decode(data))


def test_record_may_have_very_many_headers() -> None:
    many = [(f"h{i}", None if i % 7 == 0 else b"x" * (i % 90)) for i in range(20_000)]
    data = bytes(build_batch([(None, b"v", many, 0), (None, b"w", [], 0)] + [(None, b"u", many[:3], 0)] * 20))
    assert expected_rows(data) == rows(decoder(0).decode(data))


def test_header_name_of_invalid_utf_8_is_repaired() -> None:
    data = build_batch([(None, b"v", [("a\udcff", b"1"), ("b", b"2")], 0)])
    assert [{"key": "a\ufffd", "value": b"1"}, {"key": "b", "value": b"2"}] == rows(decoder(0).decode(data))[0][
        "headers"
    ]


def test_times_are_in_utc() -> None:
    (batch,) = decoder(0).decode(build_batch([(None, b"", [], 1_000)]))
    assert [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)] == batch.column("timestamp").to_pylist()


# -- records left out ---------------------------------------------------------------------------------------------


def transactional(base_offset: int, producer_id: int, values: Sequence[bytes]) -> bytearray:
    records_ = [(None, value, (), 0) for value in values]
    return build_batch(
        records_, base_offset=base_offset, producer_id=producer_id, producer_epoch=0, attributes=TRANSACTIONAL
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytearray:
    data = build_marker(producer_id, 0, commit=commit, coordinator_epoch=0, timestamp_ms=0)
    struct.pack_into(">q", data, 0, offset)
    return data


def test_aborted_transactions_and_markers_are_left_out() -> None:
    data = b"".join(
        [
            transactional(0, 1, [b"aborted"]),
            transactional(1, 2, [b"committed"]),
            marker(2, 1, commit=False),
            transactional(3, 1, [b"committed later"]),
            marker(4, 2, commit=True),
            marker(5, 1, commit=True),
            transactional(6, 2, [b"aborted too", b"and this"]),
            build_batch(
                [(None, b"no transaction", [], 0)], base_offset=8, producer_id=2, producer_epoch=0, base_sequence=0
            ),
            marker(9, 2, commit=False),
        ]
    )
    committed = decoder(0)
    actual = rows(committed.decode(data, [(2, 6), (1, 0)]))
    assert [b"committed", b"committed later", b"no transaction"] == [row["value"] for row in actual]
    assert 10 == committed.next_offset
    uncommitted = [b"aborted", b"committed", b"committed later", b"aborted too", b"and this", b"no transaction"]
    assert uncommitted == [row["value"] for row in rows(decoder(0).decode(data, None))]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["data", "commit", "abort"])), max_size=20), st.integers(0, 4)
)
def test_transactions_are_read_as_they_ended(events: list[tuple[int, str]], codec: int) -> None:
    data, aborted = b"", []
    open_since: dict[int, int] = {}
    values: dict[int, list[int]] = {}
    committed: list[int] = []
    for offset, (producer_id, event) in enumerate(events):
        if event == "data":
            open_since.setdefault(producer_id, offset)
            values.setdefault(producer_id, []).append(offset)
            data += build_batch(
                [(None, b"%d" % offset, [], 0)],
                base_offset=offset,
                producer_id=producer_id,
                attributes=TRANSACTIONAL,
                compression=codec,
            )
        else:
            data += marker(offset, producer_id, commit=event == "commit")
            ended = values.pop(producer_id, [])
            since = open_since.pop(producer_id, None)
            if event == "commit":
                committed += ended
            elif since is not None:
                aborted.append((producer_id, since))
    committed += [offset for left in values.values() for offset in left]  # the broker would not send these yet
    assert sorted(committed) == [int(row["value"]) for row in rows(decoder(0).decode(data, aborted))]


def test_compacted_batch_without_records_is_skipped() -> None:
    empty = build_batch([], base_offset=5, last_offset_delta=3)
    wanted = decoder(0)
    assert [] == wanted.decode(empty)
    assert 9 == wanted.next_offset


def test_empty_fetch_gives_no_records() -> None:
    wanted = decoder(3)
    assert [] == wanted.decode(b"")
    assert 3 == wanted.next_offset


# -- corrupt data -------------------------------------------------------------------------------------------------


def message_of(data: bytes) -> str:
    wanted = decoder(0)
    with pytest.raises(CorruptRecordError) as caught:
        wanted.decode(data)
    assert 0 == wanted.next_offset
    return str(caught.value)


def test_wrong_checksum_is_detected() -> None:
    data = build_batch([(None, b"first", [], 0)]) + build_batch([(None, b"value", [], 0)], base_offset=1)
    data[-3] ^= 1
    expected = "t-7, in what was fetched from offset 0 on: a record batch that does not match its checksum."
    assert expected == message_of(data)


def test_old_message_sets_are_refused_by_name() -> None:
    message = struct.pack(">qiIbbq", 0, 30, 0, 1, 0, 0) + bytes(40)
    assert "messages of format v1 are not supported, only record batches (v2)." in message_of(message)


def test_fetch_without_whole_batch_is_an_error() -> None:
    data = build_batch([(None, bytes(100), [], 0)])
    assert "50 bytes are too few for a record batch." in message_of(data[:50])
    assert "a record batch of 170 bytes where 160 are left." in message_of(data[:160])


def test_overlapping_batches_are_an_error() -> None:
    batch = build_batch([(None, b"", [], 0)] * 3)
    later = build_batch([(None, b"", [], 0)] * 3, base_offset=1)
    assert "overlap" in message_of(batch + later)


def resealed(data: bytearray) -> bytearray:
    """With a valid checksum again, so that only reading the records can detect the change."""
    data[17:21] = crc32c(memoryview(data)[CRC_START:]).to_bytes(4, "big")
    return data


def read_one_by_one(data: bytes) -> list[Row] | None:
    try:
        expected = expected_rows(data)
        for _, header in batches(data):
            if not 0 < header.record_count <= header.last_offset_delta + 1 or header.base_offset < 0:
                return None
    except ProtocolError:
        return None
    return expected


@settings(max_examples=400)
@given(batch_of(3), st.data())
def test_changed_bytes_give_right_columns_or_an_error(data: bytes, choice: st.DataObject) -> None:
    changed = bytearray(data)
    places = st.integers(HEADER_SIZE, len(data) - 1) | st.integers(21, len(data) - 1)
    if len(data) == HEADER_SIZE:
        places = st.integers(21, HEADER_SIZE - 1)
    for _ in range(choice.draw(st.integers(1, 4))):
        changed[choice.draw(places)] = choice.draw(st.integers(0, 255) | st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    resealed(changed)
    try:
        actual = rows(decoder(0).decode(changed))
    except CorruptRecordError:
        return
    expected = read_one_by_one(bytes(changed))
    if expected is not None and not any(h.is_control for _, h in batches(changed)):
        assert [(r["key"], r["value"], r["offset"]) for r in expected] == [
            (r["key"], r["value"], r["offset"]) for r in actual
        ]


@given(batch_of(3), st.data())
def test_intact_batch_beside_corrupt_batch_is_not_corrupt(data: bytes, choice: st.DataObject) -> None:
    torn = resealed(bytearray(data))[: choice.draw(st.integers(0, len(data) - 1))]
    before = bytes(build_batch([(None, b"before", [], 0)]))
    assert expected_rows(before) == rows(decoder(0).decode(before + torn))


BODIES = {
    "a record that is longer than the batch": b"\x7e\x00\x00\x00\x01\x01\x00",
    "a record that is too short to be one": b"\x02\x00",
    "a length of six bytes": b"\xff\xff\xff\xff\xff\x01\x00\x00\x00\x00",
    "a length below zero": b"\x01\x00\x00\x00\x01\x01\x00",
    "a key that is longer than its record": b"\x0c\x00\x00\x00\x14\x01\x00",
    "a value that leaves no room for headers": b"\x0c\x00\x00\x00\x01\x02\x00",
    "a value of two gigabytes": b"\x14\x00\x00\x00\x01\xfe\xff\xff\xff\x0f\x00",
    "a varint without an end": b"\x0e\x00\xff\xff\xff\xff\xff\xff",
    "more headers than bytes": b"\x0c\x00\x00\x00\x01\x01\x7e",
    "headers below zero": b"\x0c\x00\x00\x00\x01\x01\x01",
    "a header without a name": b"\x10\x00\x00\x00\x01\x01\x02\x01\x01",
    "a header name that is longer than its record": b"\x10\x00\x00\x00\x01\x01\x02\x20\x01",
    "a header value that is longer than its record": b"\x10\x00\x00\x00\x01\x01\x02\x00\x20",
    "a byte that belongs to nothing": b"\x0e\x00\x00\x00\x01\x01\x00\x00",
    "an offset that is not in the batch": b"\x0e\x00\x00\xfe\x7f\x01\x01\x00",
    "an offset below the batch's": b"\x0c\x00\x00\x01\x01\x01\x00",
}


@loop_over("body", BODIES.values())
@loop_over("good", [0, 40, 400])
def test_invalid_record_is_an_error(body: bytes, good: int) -> None:
    batch = build_batch([(None, b"good", [], 0)] * (good + 1))
    batch[-11 if good < 64 else -12 :] = body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    assert CorruptRecordError.__name__ and message_of(resealed(batch))


@loop_over("codec", [0, 4])
@loop_over("body", BODIES.values())
def test_invalid_record_at_large_batchs_end_is_error(body: bytes, codec: int) -> None:
    """A large batch is divided before its records are read."""
    good = build_batch([(None, bytes(30_000), [], 0)] * 3)[HEADER_SIZE:]
    wanted = decoder(0, max_batch_bytes=50_000)
    for end in (body, b"\x80"):
        with pytest.raises(CorruptRecordError):
            wanted.decode(enclose(good + end, 4, 0, 0, codec))
    assert 0 == wanted.next_offset


@pytest.mark.parametrize("count", [-1, 0, 2, 2**31 - 1])
def test_wrong_number_of_records_is_an_error(count: int) -> None:
    batch = build_batch([(None, b"good", [], 0)])
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">i", batch, 23, max(0, count - 1))
    assert message_of(resealed(batch))


# -- real clients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_of_a_real_producer_are_read(running: Broker, cluster: Cluster, topic: str, codec: str) -> None:
    producer = Producer({"bootstrap.servers": running.bootstrap_servers, "compression.type": codec, "linger.ms": 20})
    for i in range(2000):
        headers: list[tuple[str, str | bytes | None]] = [("h", b"%d" % i), ("n", None)]
        producer.produce(
            topic, b"v" * (i % 300), b"key" * (i % 3) or None, 0, timestamp=1 + i, headers=headers[: i % 3]
        )
    assert 0 == producer.flush(30)
    wanted = Decoder(topic, 0, 0, 2000, columns=ALL)
    actual: list[Row] = []
    with cluster.fetcher(topic, 0, 0, 2000) as fetcher:
        for fetched in fetcher:
            actual += rows(wanted.decode(fetched.data, fetched.aborted))
    assert actual == [
        {
            "key": b"key" * (i % 3) or None,
            "value": b"v" * (i % 300),
            "topic": topic,
            "partition": 0,
            "offset": i,
            "timestamp": (1 + i) * 1000,
            "timestampType": 0,
            "headers": [{"key": "h", "value": b"%d" % i}, {"key": "n", "value": None}][: i % 3] or None,
        }
        for i in range(2000)
    ]
