"""Entries among the batches of a log: how they are appended, what is durable first, and that a restart finds them."""

import errno

import pytest

from broker.errors import StorageError
from broker.storage.partition_dir import ENTRIES
from broker.storage.upkeep.scrub import Scrub
from protocol.kafka.records.batch import ENTRY, batches, check_crc, read_header
from protocol.kafka.records.records import build_batch
from tests.storage.helpers import NOW_MS, Storage, append, batch, read_bytes


def entry(value: bytes, messages: int = 1, timestamp: int = NOW_MS) -> bytearray:
    return build_batch(
        [(None, value, (), timestamp)], attributes=ENTRY, last_offset_delta=messages - 1, base_sequence=-1
    )


def test_entry_takes_one_offset_for_each_message(storage: Storage) -> None:
    log = storage.create()
    append(log, b"kafka", b"kafka")
    info = log.append(memoryview(entry(b"a", 10)), now_ms=NOW_MS, entries=True)
    assert (2, 11) == (info.base_offset, info.last_offset)
    append(log, b"kafka")
    found = [(header.base_offset, header.last_offset, header.is_entry) for _, header in batches(read_bytes(log, 0))]
    assert [(0, 1, False), (2, 11, True), (12, 12, False)] == found


def test_several_entries_are_appended_at_once(storage: Storage) -> None:
    log = storage.create()
    three = bytearray().join(entry(b"%d" % number, number + 1) for number in range(3))
    assert 5 == log.append(memoryview(three), now_ms=NOW_MS, entries=True).last_offset
    data = read_bytes(log, 0)
    assert [0, 1, 3] == [header.base_offset for _, header in batches(data)]
    for position, header in batches(data):
        check_crc(data, position, header)


@pytest.mark.parametrize("configs", [{}, {"cleanup_policy": "compact"}, {"compression_type": "zstd"}])
def test_entry_is_stored_unchanged_whatever_the_topic_settings(storage: Storage, configs: dict[str, str]) -> None:
    log = storage.create(**configs, max_message_bytes=100)
    sent = entry(b"x" * 1000, 7)
    log.append(memoryview(sent), now_ms=NOW_MS, entries=True)
    assert read_bytes(log, 0) == bytes(sent)


@pytest.mark.parametrize("ahead", [3_600_001, -10_001])
def test_entry_with_disallowed_time_gets_time_of_append(storage: Storage, ahead: int) -> None:
    log = storage.create(message_timestamp_before_max_ms=10_000)
    log.append(memoryview(entry(b"a", 3, NOW_MS + ahead)), now_ms=NOW_MS, entries=True)
    data = read_bytes(log, 0)
    header = read_header(data)
    check_crc(data, 0, header)
    assert (True, NOW_MS) == (header.is_log_append_time, header.max_timestamp)


def test_log_append_time_applies_to_entries(storage: Storage) -> None:
    log = storage.create(message_timestamp_type="LogAppendTime")
    log.append(memoryview(entry(b"a", 1, NOW_MS - 5)), now_ms=NOW_MS, entries=True)
    assert (0, NOW_MS) == log.times.offset_for_timestamp(NOW_MS)


def test_entries_mark_is_durable_before_first_entry(storage: Storage) -> None:
    log = storage.create()
    assert not log.has_entries
    append(log, b"kafka")
    assert not log.has_entries
    storage.disk.synced.clear()
    written = []
    storage.disk.before = lambda what, path: (
        written.append(list(storage.disk.synced)) if what == "write" and path.endswith(".log") else None
    )
    log.append(memoryview(entry(b"a")), now_ms=NOW_MS, entries=True)
    assert [[str(storage.path())]] == written
    assert log.has_entries


def test_failed_entries_mark_appends_nothing(storage: Storage) -> None:
    log = storage.create()
    storage.disk.fail["open", ENTRIES] = errno.ENOSPC
    with pytest.raises(StorageError):
        log.append(memoryview(entry(b"a")), now_ms=NOW_MS, entries=True)
    assert (0, 0, False) == (log.log_end_offset, log.size_bytes(), log.has_entries)
    storage.disk.fail.clear()
    log.append(memoryview(entry(b"a")), now_ms=NOW_MS, entries=True)
    assert (1, True) == (log.log_end_offset, log.has_entries)


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_restart_knows_which_logs_have_entries(storage: Storage, how: str) -> None:
    storage.create("plain")
    append(storage.log("plain"), b"kafka")
    log = storage.create()
    log.append(memoryview(entry(b"a", 5)), now_ms=NOW_MS, entries=True)
    getattr(storage, how)()
    assert (True, False) == (storage.log().has_entries, storage.log("plain").has_entries)
    assert (5, [True]) == (
        storage.log().log_end_offset,
        [header.is_entry for _, header in batches(read_bytes(storage.log(), 0))],
    )


def test_recovery_restores_missing_mark_when_it_meets_entry(storage: Storage) -> None:
    log = storage.create()
    log.append(memoryview(entry(b"a", 5)), now_ms=NOW_MS, entries=True)
    (storage.path() / ENTRIES).unlink()
    storage.crash()
    assert storage.log().has_entries
    assert (storage.path() / ENTRIES).exists()


def test_deleting_topic_with_entries_removes_all_its_files(storage: Storage) -> None:
    log = storage.create(file_delete_delay_ms=0)
    log.append(memoryview(entry(b"a", 5)), now_ms=NOW_MS, entries=True)
    storage.manager.delete_topic("t")
    storage.housekeep()
    assert not any("t-0" in path.name for path in storage.path().parent.iterdir())
    storage.create()
    assert not storage.log().has_entries


def test_a_kafka_producer_cannot_forge_an_entry(storage: Storage) -> None:
    from broker.errors import Refusal

    log = storage.create()
    for forged in (entry(b"a"), bytes(batch(b"a")) + bytes(entry(b"a"))):
        with pytest.raises(Refusal, match="bit 7"):
            log.append(memoryview(bytearray(forged)), now_ms=NOW_MS)
    assert (0, False) == (log.log_end_offset, log.has_entries)


def test_entries_found_by_time_and_offset_after_rebuild(storage: Storage) -> None:
    log = storage.create(index_interval_bytes=1, segment_bytes=2000)
    for number in range(50):
        log.append(memoryview(entry(b"%d" % number * 50, 4, NOW_MS + number)), now_ms=NOW_MS, entries=True)
    for path in storage.path().glob("*index"):
        path.unlink()
    storage.crash()
    log = storage.log()
    assert (4 * 30, NOW_MS + 30) == log.times.offset_for_timestamp(NOW_MS + 30)
    assert (4 * 49, NOW_MS + 49) == log.times.max_timestamp_offset()
    assert 4 * 17 == read_header(read_bytes(log, 4 * 17 + 3)).base_offset


def test_deleting_records_may_end_within_an_entry(storage: Storage) -> None:
    log = storage.create()
    log.append(memoryview(entry(b"a", 10)), now_ms=NOW_MS, entries=True)
    assert 4 == log.trimming.delete_records(4)
    assert 0 == read_header(read_bytes(log, 4)).base_offset
    storage.crash()
    assert (4, 10) == (storage.log().log_start_offset, storage.log().log_end_offset)


def test_torn_entry_is_cut_at_next_start(storage: Storage) -> None:
    log = storage.create()
    log.append(memoryview(entry(b"a", 5)), now_ms=NOW_MS, entries=True)
    append(log, b"kafka")
    log.append(memoryview(entry(b"b" * 1000, 5)), now_ms=NOW_MS, entries=True)
    storage.kill()
    (path,) = storage.path().glob("*.log")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 500)
    storage.open()
    log = storage.log()
    assert (6, True) == (log.log_end_offset, log.has_entries)
    assert 6 == log.append(memoryview(entry(b"again", 2)), now_ms=NOW_MS, entries=True).base_offset


def test_the_scrub_verifies_entries(storage: Storage) -> None:
    log = storage.create()
    for number in range(10):
        log.append(memoryview(entry(b"%d" % number * 100, 3)), now_ms=NOW_MS, entries=True)
        append(log, b"kafka")
    partitions = storage.manager.partitions
    assert [] == Scrub(storage.clock).step(partitions, 1 << 20)
    (path,) = storage.path().glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert [log] == Scrub(storage.clock).step(partitions, 1 << 20)


def test_retention_by_time_uses_publish_time_of_entries(storage: Storage) -> None:
    log = storage.create(retention_ms=1000, segment_bytes=300)
    for number in range(10):
        log.append(memoryview(entry(b"x" * 100, 2, NOW_MS + 100 * number)), now_ms=NOW_MS, entries=True)
    storage.clock.sleep_ms(1450)
    storage.housekeep()
    assert 8 <= log.log_start_offset <= 10
    assert log.log_start_offset == read_header(read_bytes(log, log.log_start_offset)).base_offset
