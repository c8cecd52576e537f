"""delete_records, and taking files away under readers."""

import errno
import threading

import pytest

from broker.errors import Refusal, StorageError
from broker.storage.refusals import OffsetOutOfRange
from tests.storage.helpers import Storage, append_many, offsets, read_records


def test_records_before_offset_are_deleted_at_once_durably(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    assert log.trimming.delete_records(5) == 5
    assert offsets(read_records(log)) == list(range(5, 10))
    assert log.trimming.delete_records(2) == 5
    storage.crash()
    assert storage.log().log_start_offset == 5


def test_minus_one_is_everything(storage: Storage) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 10)
    assert log.trimming.delete_records(-1) == 10
    assert log.read(10, 100).size == 0
    append_many(log, 1)
    assert offsets(read_records(log)) == [10]


@pytest.mark.parametrize("before", [11, -2])
def test_offsets_outside_the_log_are_refused(storage: Storage, before: int) -> None:
    log = storage.create()
    append_many(log, 10)
    with pytest.raises(Refusal) as error:
        log.trimming.delete_records(before)
    assert type(error.value) is OffsetOutOfRange


def test_log_start_that_is_not_durable_is_unanswered(storage: Storage) -> None:
    log = storage.create()
    append_many(log, 10)
    storage.disk.fail["write", "log-start"] = errno.ENOSPC
    for _ in range(2):
        with pytest.raises(StorageError):
            log.trimming.delete_records(5)
    storage.disk.fail.clear()
    assert log.trimming.delete_records(4) == 5
    storage.crash()
    assert storage.log().log_start_offset == 5


def test_readers_go_on_while_segments_are_taken_away(storage: Storage) -> None:
    log = storage.create(segment_bytes=300, file_delete_delay_ms=0)
    append_many(log, 200)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while log.log_start_offset < 190:
                try:
                    found = offsets(read_records(log, 500))
                except Refusal:
                    continue  # deleted under the reader
                assert found == list(range(found[0], 200))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for before in range(0, 196, 5):
        log.trimming.delete_records(before)
        storage.housekeep()
    for thread in threads:
        thread.join()
    assert errors == []
    assert log.offline is None
