"""Entries read from logs that Kafka's producers write to as well: everything that consumers may see, at its own offset, once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.pulsar.entries import log_entries
from broker.pulsar.entries.log_entries import SENDFILE_BYTES, LogEntriesReader
from broker.pulsar.entry import Entry
from broker.runtime.disk import FileRegion
from broker.runtime.threads import Lock
from broker.storage.log.log import Log
from protocol.kafka.records.batch import ENTRY
from protocol.kafka.records.entry import build_entry
from protocol.pulsar.metadata import is_batch, read_metadata
from protocol.pulsar.payload import decompressed, split_batch
from protocol.pulsar.sends import crc_matches, read_stored_part
from tests.pulsar.entries.messages import append_entry, batch_of, message
from tests.storage.helpers import NOW_MS, Storage, append, batch, garbage, lying
from tests.storage.tier.helpers import TieredStorage


def messages_of(entry: Entry) -> list[tuple[int, bytes | None]]:
    """Offset and value of each message of an entry, as a client reads it."""
    data: Any = entry.data
    if isinstance(data, FileRegion):
        data = data.file.pread(data.size, data.offset)
    stored = read_stored_part(data)
    assert crc_matches(data, stored)
    metadata = read_metadata(bytes(data[stored.metadata : stored.payload]))
    payload = decompressed(metadata, data[stored.payload : stored.end])
    if not is_batch(metadata):
        assert entry.messages == 1
        return [(entry.offset, None if metadata.null_value else bytes(payload))]
    parts = list(split_batch(payload, entry.messages))
    return [
        (entry.offset + index, None if part.metadata.null_value else bytes(part.payload))
        for index, part in enumerate(parts)
    ]


def read_all(log: Log, max_entries: int = 100, max_bytes: int = 1 << 20) -> list[Entry]:
    reader, entries, offset = LogEntriesReader(log, Lock()), [], 0
    while True:
        found = reader.read(offset, max_entries, max_bytes)
        assert found.entries or found.searched >= log.last_stable_offset
        if not found.entries:
            return entries
        entries += found.entries
        offset = entries[-1].last + 1


def seen(log: Log, **limits: int) -> list[tuple[int, bytes | None]]:
    return [one for entry in read_all(log, **limits) for one in messages_of(entry)]


@pytest.mark.parametrize("codec", range(5))
def test_kafka_records_become_messages_at_same_offsets(storage: Storage, codec: int) -> None:
    log = storage.create()
    append(log, b"0", None, b"2", compression=codec)
    append_entry(log, batch_of(b"3", b"4"), 2)
    append(log, b"5", compression=codec)
    append_entry(log, message(b"6"))
    expected = [(0, b"0"), (1, None), (2, b"2"), (3, b"3"), (4, b"4"), (5, b"5"), (6, b"6")]
    assert expected == seen(log)
    assert [(0, 3), (3, 2), (5, 1), (6, 1)] == [(entry.offset, entry.messages) for entry in read_all(log)]


def transactional(log: Log, *values: bytes, sequence: int = 0, producer: int = 7) -> None:
    log.append(batch(*values, producer=(producer, 0, sequence), attributes=0x10), now_ms=NOW_MS)


def test_aborted_records_markers_and_open_transactions_are_hidden(storage: Storage) -> None:
    log = storage.create()
    for commit in (True, False, True):
        log.transactions.allow(7, 0)
        append_entry(log, message(b"entry"))
        transactional(log, b"a", b"b", sequence=_next(log))
        append(log, b"other")
        log.transactions.append_marker(7, 0, commit=commit, coordinator_epoch=0, now_ms=NOW_MS)
    log.transactions.allow(7, 0)
    transactional(log, b"open", sequence=_next(log))
    append_entry(log, message(b"behind an open transaction"))
    values = [value for _, value in seen(log)]
    assert [b"entry", b"a", b"b", b"other", b"entry", b"other", b"entry", b"a", b"b", b"other"] == values
    storage.crash()
    assert values == [value for _, value in seen(storage.log())]


def _next(log: Log) -> int:
    return max([one.last_sequence for one in log.transactions.describe_producers()], default=-1) + 1


def test_log_ending_with_marker_has_no_more_entries(storage: Storage) -> None:
    log = storage.create()
    log.transactions.allow(7, 0)
    transactional(log, b"a")
    log.transactions.append_marker(7, 0, commit=True, coordinator_epoch=0, now_ms=NOW_MS)
    found = LogEntriesReader(log, Lock()).read(1, 100, 1 << 20)
    assert ([], 2) == (found.entries, found.searched)


def test_compacted_log_is_read_without_gaps(storage: Storage) -> None:
    log = storage.create(cleanup_policy="compact", segment_bytes=300, min_cleanable_dirty_ratio=0.01)
    for number in range(10):
        append(log, *[b"%d" % number] * 4, keys=[b"a", b"%d" % number, b"b", b"%d" % (number % 3)])
    before = {record.offset: record.value for record in _records(log)}
    storage.housekeep()
    log.rolling.roll(NOW_MS)
    storage.housekeep()
    after = seen(log)
    assert len(after) < len(before)
    assert all(before[offset] == value for offset, value in after)
    assert after == [(record.offset, record.value) for record in _records(log)]


def _records(log: Log) -> Sequence[Any]:
    from tests.storage.helpers import read_records

    return read_records(log)


def test_large_batch_splits_into_separately_readable_entries(storage: Storage) -> None:
    log = storage.create()
    append(log, *[b"%d" % number for number in range(2500)])
    entries = read_all(log)
    assert [(0, 1000), (1000, 1000), (2000, 500)] == [(entry.offset, entry.messages) for entry in entries]
    found = LogEntriesReader(log, Lock()).read(1700, 1, 1 << 20)
    assert 1000 == found.entries[0].offset
    assert [1000] == [entry.offset for entry in LogEntriesReader(log, Lock()).replay([1000])]


def test_unreadable_batch_is_left_out(storage: Storage) -> None:
    log = storage.create()
    append(log, b"before")
    log.append(lying(batch(b"x" * 100, compression=1), lambda body: garbage(body, 1)), now_ms=NOW_MS)
    append(log, b"after")
    assert [(0, b"before"), (2, b"after")] == seen(log)


@pytest.mark.parametrize("size", [10, log_entries.SENDFILE_BYTES * 12])
def test_record_batch_with_only_the_mark_stays_records(storage: Storage, size: int) -> None:
    log = storage.create(max_message_bytes=10 << 20)
    view = memoryview(build_entry(b"", 1, NOW_MS))
    records = batch(b"x" * size, attributes=ENTRY)
    log.append(records, now_ms=NOW_MS, entries=True)
    log.append(view, now_ms=NOW_MS, entries=True)
    append(log, b"after")
    assert [(0, b"x" * size), (1, b""), (2, b"after")] == seen(log)


# -- any log -----------------------------------------------------------------------------------------------------------

values = st.binary(max_size=40) | st.binary(min_size=1, max_size=4).map(lambda value: value * 20_000)
kafka_batches = st.tuples(st.just("kafka"), st.lists(values, min_size=1, max_size=4), st.integers(0, 4))
entries = st.tuples(st.just("entry"), st.lists(values, min_size=1, max_size=4), st.booleans())
transactions = st.tuples(st.just("transaction"), st.lists(values, min_size=1, max_size=3), st.booleans())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    writes=st.lists(kafka_batches | entries | transactions, max_size=12),
    max_entries=st.integers(1, 5),
    max_bytes=st.sampled_from([1, 1000, 100_000, 1 << 20]),
    segment_bytes=st.sampled_from([1_000_000, 400_000]),
    restart=st.booleans(),
)
def test_any_log_is_read_whole(
    storage: Storage,
    writes: list[tuple[str, list[bytes], Any]],
    max_entries: int,
    max_bytes: int,
    segment_bytes: int,
    restart: bool,
) -> None:
    if storage.manager.get("t", 0):
        storage.manager.delete_topic("t")
    log = storage.create(segment_bytes=segment_bytes)
    expected: list[tuple[int, bytes | None]] = []
    for producer, (kind, payloads, how) in enumerate(writes):
        offset = log.log_end_offset
        if kind == "kafka":
            append(log, *payloads, compression=how)
        elif kind == "entry":
            if how and len(payloads) == 1:
                append_entry(log, message(payloads[0]))
            else:
                append_entry(log, batch_of(*payloads), len(payloads))
        else:
            log.transactions.allow(producer, 0)
            transactional(log, *payloads, producer=producer)
            log.transactions.append_marker(producer, 0, commit=how, coordinator_epoch=0, now_ms=NOW_MS)
        if kind != "transaction" or how:
            expected += [(offset + index, payload) for index, payload in enumerate(payloads)]
    if restart:
        storage.crash()
        log = storage.log()
    assert expected == seen(log, max_entries=max_entries, max_bytes=max_bytes)
    for offset in {offset for offset, _ in expected}:
        (first, *_) = LogEntriesReader(log, Lock()).read(offset, 1, 1).entries
        assert first.offset <= offset <= first.last


def test_entries_in_object_store_are_read_into_memory(tmp_path: Path) -> None:
    """Large ones, too: they are kept, and the piece of the cache from which they could be sent may be gone by then."""
    (tmp_path / "data").mkdir()
    storage = TieredStorage(tmp_path / "data", cache_bytes=5000)
    try:
        log = storage.create(segment_bytes=200_000)
        for number in range(5):
            append_entry(log, message(b"%d" % number * SENDFILE_BYTES))
            append(log, b"record %d" % number)
        before = seen(log)
        storage.upload()
        assert log.view.segments[0].log.get().is_remote
        entries = read_all(log)
        end = log.view.bases[1]
        assert not any(isinstance(entry.data, FileRegion) for entry in entries if entry.offset < end)
        assert before == [one for entry in entries for one in messages_of(entry)]
    finally:
        storage.kill()
