"""Entries as the record batches that take their place."""

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.runtime.threads import Lock
from broker.storage.log.inspection import as_records, taken_apart
from protocol.kafka.records.batch import ENTRY, check_crc, read_header, set_log_append_time, stamp
from protocol.kafka.records.entry import build_entry
from protocol.kafka.records.records import Record, build_batch, records
from protocol.pulsar.pulsar_pb2 import CompressionType
from tests.pulsar.entries.messages import batch_of, compressed_batch_of, message
from tests.storage.helpers import NOW_MS

BASE = 40


def entry(stored: bytes, messages: int = 1) -> memoryview:
    batch = build_entry(stored, messages, NOW_MS)
    stamp(batch, 0, BASE, 3)
    return memoryview(batch)


def translated(batch: memoryview) -> list[Record]:
    header = read_header(batch)
    view = as_records(batch, header, Lock())
    assert view is not None
    new = read_header(view)
    check_crc(view, 0, new)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch, False) == (
        new.base_offset,
        new.last_offset,
        new.partition_leader_epoch,
        new.is_entry,
    )
    return list(records(view))


def test_each_message_is_a_record_at_its_offset() -> None:
    found = translated(entry(batch_of(b"a", b"b", b"c", keys=["x", None, "y"]), 3))
    assert [(40, b"x", b"a"), (41, None, b"b"), (42, b"y", b"c")] == [(one.offset, one.key, one.value) for one in found]


def test_log_append_time_of_batch_applies_to_records() -> None:
    batch = entry(batch_of(b"a", b"b", event_time=5), 2)
    set_log_append_time(batch, 0, read_header(batch), 777)
    assert [777, 777] == [record.timestamp for record in translated(batch)]


@given(value=st.binary(max_size=60))
def test_what_is_no_message_is_nobody_s_entry(value: bytes) -> None:
    batch = entry(value)
    view = as_records(batch, read_header(batch), Lock())
    assert view is None or len(list(records(view))) == 1


def test_batch_that_only_looks_like_entry_stays_unchanged() -> None:
    batch = memoryview(build_batch([(b"k", b"v", [("h", b"v")], 0)] * 3, attributes=ENTRY))
    assert as_records(batch, read_header(batch), Lock()) is None
    assert taken_apart(batch, read_header(batch), Lock()) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"encryption_keys": [{"key": "k", "value": b"v"}]},
        {"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 2, "total_chunk_msg_size": 10},
        {"compression": CompressionType.ZSTD, "uncompressed_size": 1000},
        {"compression": 99},
    ],
)
def test_unreadable_entry_stays_whole_where_records_are_removed(fields: dict[str, Any]) -> None:
    batch = entry(message(b"payload", partition_key="k", **fields))
    assert [b"payload"] == [record.value for record in translated(batch)]
    assert taken_apart(batch, read_header(batch), Lock()) is None


def test_what_can_be_read_is_taken_apart() -> None:
    batch = entry(compressed_batch_of(CompressionType.LZ4, b"a", b"b"), 2)
    header = read_header(batch)
    view, same = taken_apart(batch, header, Lock()), as_records(batch, header, Lock())
    assert view is not None
    assert view == same


@pytest.mark.parametrize(
    ("stored", "messages", "waits"),
    [
        (message(b"x"), 1, False),
        (message(b"x" * (1 << 21)), 1, True),
        (compressed_batch_of(CompressionType.ZSTD, bytes(1 << 21)), 1, True),
        (batch_of(*[b""] * 20_000), 20_000, True),
    ],
)
def test_large_entries_are_taken_apart_one_at_time(stored: bytes, messages: int, waits: bool) -> None:
    batch = entry(stored, messages)
    lock = Lock()
    done = threading.Event()

    def translate() -> None:
        as_records(batch, read_header(batch), lock)
        done.set()

    with lock:
        thread = threading.Thread(target=translate)
        thread.start()
        assert done.wait(0.2 if waits else 30) != waits
    thread.join()
    assert done.is_set()


def test_payload_with_false_size_is_not_decompressed() -> None:
    bomb = message(b"\0" * 100, compression=CompressionType.ZSTD, uncompressed_size=2**31)
    (record,) = translated(entry(bomb))
    assert b"\0" * 100 == record.value
