"""Compaction of logs that Pulsar's producers write to: the last message of each key stays, whoever has written it."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.runtime.threads import Lock
from broker.storage.log.inspection import as_records
from broker.storage.log.log import Log
from protocol.kafka.records.batch import batches
from protocol.kafka.records.records import records
from tests.pulsar.entries.messages import append_entry, batch_of, message
from tests.storage.helpers import NOW_MS, Storage, append, read_bytes
from tests.storage.upkeep.test_cleaner import compacted


def clean(storage: Storage) -> None:
    storage.housekeep()
    storage.housekeep()


def pairs(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of all that Kafka's consumers see."""
    found = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        data = memoryview(read_bytes(log, offset, 500))
        if not len(data):
            break
        for position, header in batches(data):
            batch = data[position : position + header.size]
            view = as_records(batch, header, Lock()) if header.is_entry else None
            found += [(one.offset, one.key, one.value) for one in records(batch if view is None else view)]
            offset = header.next_offset
    return found


def marked(log: Log) -> list[int]:
    """Offsets of the batches that are entries."""
    return [header.base_offset for _, header in batches(read_bytes(log, log.log_start_offset)) if header.is_entry]


def end_of_closed(log: Log) -> int:
    return log.view.bases[-1]


def fill(log: Log, number: int = 20) -> None:
    for _ in range(number):
        append(log, b"filler", keys=[b"filler"])


def test_last_message_of_each_key_stays_at_offset(storage: Storage) -> None:
    log = compacted(storage)
    append_entry(log, batch_of(b"a0", b"b1", b"a2", keys=["a", "b", "a"]), 3)
    append_entry(log, message(b"c3", partition_key="c"))
    append(log, b"b4", keys=[b"b"])
    append_entry(log, batch_of(b"d5", b"e6", keys=["d", "e"]), 2)
    fill(log)
    clean(storage)
    kept = [one for one in pairs(log) if one[1] != b"filler"]
    assert [(2, b"a", b"a2"), (3, b"c", b"c3"), (4, b"b", b"b4"), (5, b"d", b"d5"), (6, b"e", b"e6")] == kept
    # Entries that keep all their messages are as they were.
    assert [3, 5] == marked(log)
    storage.crash()
    assert kept == [one for one in pairs(storage.log()) if one[1] != b"filler"]
    assert storage.log().has_entries


def test_a_message_without_a_value_removes_its_key(storage: Storage) -> None:
    log = compacted(storage, delete_retention_ms=1000)
    append(log, b"a0", keys=[b"a"])
    append_entry(log, message(b"", partition_key="a", null_value=True))
    fill(log)
    clean(storage)
    assert [(1, b"a", None)] == [one for one in pairs(log) if one[1] == b"a"]
    storage.clock.sleep_ms(2000)
    fill(log)
    clean(storage)
    assert [] == [one for one in pairs(log) if one[1] == b"a"]


def test_messages_without_a_key_go_as_records_do(storage: Storage) -> None:
    log = compacted(storage)
    append_entry(log, batch_of(b"0", b"1", keys=[None, "k"]), 2)
    append_entry(log, message(b"2"))
    fill(log)
    clean(storage)
    assert [(1, b"k", b"1")] == [one for one in pairs(log) if one[1] != b"filler"]


@pytest.mark.parametrize(
    "fields",
    [
        {"encryption_keys": [{"key": "k", "value": b"v"}]},
        {"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 2, "total_chunk_msg_size": 10},
        {"compression": 4, "uncompressed_size": 1000},
    ],
)
def test_what_cannot_be_taken_apart_stays_whole(storage: Storage, fields: dict[str, Any]) -> None:
    log = compacted(storage)
    append_entry(log, message(b"whole", partition_key="k", **fields))
    append(log, b"later", keys=[b"k"])
    fill(log)
    clean(storage)
    assert [(0, b"k", b"whole"), (1, b"k", b"later")] == [one for one in pairs(log) if one[1] != b"filler"]
    assert [0] == marked(log)


keys = st.sampled_from(["a", "b", "c", None])
messages = st.lists(st.tuples(keys, st.sampled_from([b"", b"v", b"x" * 200, None])), min_size=1, max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(writes=st.lists(st.tuples(st.booleans(), messages), max_size=15))
def test_mixed_log_is_compacted_like_one_of_records(
    storage: Storage, writes: list[tuple[bool, list[tuple[str | None, bytes | None]]]]
) -> None:
    if storage.manager.get("t", 0):
        storage.manager.delete_topic("t")
    log = compacted(storage, segment_bytes=2000)
    for is_entry, rows in writes:
        keyed = [(key, value) for key, value in rows if key is not None or is_entry]
        if not keyed:
            continue
        if is_entry:
            present = [(key, value or b"") for key, value in keyed]
            append_entry(log, batch_of(*[v for _, v in present], keys=[k for k, _ in present]), len(present))
        else:
            append(log, *[value for _, value in keyed], keys=[str(key).encode() for key, _ in keyed])
    fill(log)
    before = pairs(log)
    end = end_of_closed(log)
    clean(storage)
    latest = {key: offset for offset, key, _ in before if offset < end}
    expected = [one for one in before if one[0] >= end or (one[1] is not None and latest[one[1]] == one[0])]
    assert expected == pairs(log)
    assert NOW_MS == log.around.clock.time_ms()
