"""The data directory: taken by one broker, understood or refused, and what lies about in it."""

import errno
import shutil
from pathlib import Path

import pytest

from tests.storage.helpers import Storage, append, append_many, offsets, read_records, values


def test_clean_stop_mark_exists_only_after_clean_stop(storage: Storage) -> None:
    mark = Path(storage.directory) / ".kafka_cleanshutdown"
    append(storage.create(), b"x")
    assert not mark.exists()
    storage.stop()
    assert mark.exists()
    storage.open()
    assert not mark.exists()
    storage.crash()
    assert not mark.exists()


def test_there_is_no_mark_when_something_was_wrong(storage: Storage) -> None:
    append(storage.create(), b"x")
    storage.log().state.go_offline("for a test")
    storage.stop()
    assert not (Path(storage.directory) / ".kafka_cleanshutdown").exists()
    storage.open()


def test_stop_that_fails_for_one_log_continues_others(storage: Storage) -> None:
    for name in ("a", "b"):
        append_many(storage.create(name), 5)
    storage.disk.fail["sync", "a-0"] = errno.EIO
    storage.stop()
    storage.disk.fail.clear()
    storage.open()
    assert storage.log("b").recovery_point == 5
    assert values(storage.log("a")) == values(storage.log("b"))


def test_closing_twice_is_fine(storage: Storage) -> None:
    storage.manager.close()
    storage.manager.close()


@pytest.mark.parametrize(
    "name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"]
)
@pytest.mark.parametrize("junk", [b"", b"junk", b"0\n5\n", b"\xff\xfe\0"])
def test_a_damaged_checkpoint_costs_time_and_no_records(storage: Storage, name: str, junk: bytes) -> None:
    log = storage.create(segment_bytes=300)
    append_many(log, 20)
    log.trimming.delete_records(10)
    storage.stop()
    (Path(storage.directory) / name).write_bytes(junk)
    storage.open()
    found = offsets(read_records(storage.log()))
    assert found == list(range(found[0], 20))
    assert found[0] <= 10
    append(storage.log(), b"x")
    storage.restart()


def test_directory_of_another_topic_is_not_served(storage: Storage) -> None:
    append(storage.create(), b"x")
    storage.create("u")
    storage.stop()
    shutil.copy(storage.path("u") / "partition.metadata", storage.path() / "partition.metadata")
    storage.open()
    assert "another id" in str(storage.log().offline)


def test_a_lost_topic_id_is_written_again(storage: Storage) -> None:
    append(storage.create(), b"x")
    storage.stop()
    before = (storage.path() / "partition.metadata").read_text()
    (storage.path() / "partition.metadata").write_text("")
    storage.open()
    assert storage.log().offline is None
    assert (storage.path() / "partition.metadata").read_text() == before


def test_start_after_clean_stop_changes_no_partition_file(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    append_many(storage.create(), 20, size=1000)
    storage.stop()
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in storage.path().iterdir()}
    storage.open().stop()
    assert before == {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in storage.path().iterdir()}
