"""Properties of the SQLite catalogue alone: damage, versions, threads, errors. The rest: tests/contract/test_catalogue.py."""

import threading
import uuid
from pathlib import Path

import pytest

from broker.errors import ConfigError, StorageError
from broker.metadata.catalogue import TopicRow, TransactionRow
from broker.metadata.sqlite import SqliteCatalogue


def test_damaged_file_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"this is no database" * 1000)
    with pytest.raises(ConfigError, match=r"is damaged .*: restore it from a backup"):
        SqliteCatalogue(f"{tmp_path}/c")


def test_damage_inside_is_found_at_the_start(tmp_path: Path) -> None:
    catalogue = SqliteCatalogue(f"{tmp_path}/c")
    for number in range(500):
        catalogue.put_topic(TopicRow(f"topic-{number}", uuid.UUID(int=number), 1, {"x": "y" * 50}))
    catalogue.close()
    content = bytearray((tmp_path / "c").read_bytes())
    for position in range(3 * 4096, len(content) - 4096, 4096):
        content[position : position + 200] = b"\xa5" * 200
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(ConfigError):
        SqliteCatalogue(f"{tmp_path}/c")


def test_addition_to_large_transaction_writes_only_the_addition(tmp_path: Path) -> None:
    catalogue = SqliteCatalogue(f"{tmp_path}/c")
    partitions = tuple(("topic", number) for number in range(20_000))
    catalogue.save_transactions([TransactionRow("x", 7, 1, -1, 60_000, "Ongoing", partitions, (), 1, 1, -1, -1)])
    before = (tmp_path / "c-wal").stat().st_size
    for number in range(20):
        catalogue.add_to_transaction("x", [("other", number)], [])
    assert (tmp_path / "c-wal").stat().st_size - before <= 20 * 2 * (4096 + 24)  # some pages each
    catalogue.close()


def test_file_of_a_newer_broker_is_refused(tmp_path: Path) -> None:
    catalogue = SqliteCatalogue(f"{tmp_path}/c")
    catalogue._database._connection.execute("PRAGMA user_version=99")
    catalogue.close()
    with pytest.raises(ConfigError, match="start the newer broker"):
        SqliteCatalogue(f"{tmp_path}/c")


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        SqliteCatalogue(f"{tmp_path}/none/c")


def test_new_file_with_credentials_is_private(tmp_path: Path) -> None:
    catalogue = SqliteCatalogue(f"{tmp_path}/c")
    catalogue.set_meta("a", "1")
    assert {one.name: one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == dict.fromkeys(
        ("c", "c-wal", "c-shm"), 384
    )
    catalogue.close()
    (tmp_path / "c").chmod(0o640)
    SqliteCatalogue(f"{tmp_path}/c").close()
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o640  # the operator has allowed it


def test_commits_are_fsynced(tmp_path: Path) -> None:
    catalogue = SqliteCatalogue(f"{tmp_path}/c")
    assert catalogue._database.read("PRAGMA synchronous") == [(2,)]
    assert catalogue._database.read("PRAGMA journal_mode") == [("wal",)]
    catalogue.close()


def test_committed_changes_survive_without_close(tmp_path: Path) -> None:
    first = SqliteCatalogue(f"{tmp_path}/c")
    first.set_meta("a", "1")
    second = SqliteCatalogue(f"{tmp_path}/c")
    assert second.meta("a") == "1"
    first.close()
    second.close()


def test_change_that_fails_half_way_changes_nothing(tmp_path: Path) -> None:
    catalogue = SqliteCatalogue(f"{tmp_path}/c")
    rows = [("t", 0, 5, 0, "", 0), ("t", 1, None, 0, "", 0)]
    with pytest.raises(StorageError):
        catalogue.commit_offsets("g", rows)  # type: ignore[arg-type]  # the second one breaks a rule of the table
    assert list(catalogue.load_offsets()) == []
    catalogue.commit_offsets("g", rows[:1])  # type: ignore[arg-type]
    assert len(list(catalogue.load_offsets())) == 1
    catalogue.close()


def test_use_after_close_is_a_storage_error(tmp_path: Path) -> None:
    catalogue = SqliteCatalogue(f"{tmp_path}/c")
    catalogue.close()
    with pytest.raises(StorageError):
        catalogue.topics()
    with pytest.raises(StorageError):
        catalogue.set_meta("a", "b")


def test_many_threads_write_and_read(tmp_path: Path) -> None:
    catalogue = SqliteCatalogue(f"{tmp_path}/c")
    errors: list[BaseException] = []
    ids: list[int] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                catalogue.commit_offsets(f"g{number}", [("t", turn, turn, 0, None, 0)])
                ids.append(catalogue.allocate_producer_ids(1))
                assert catalogue.meta("none") is None
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(list(catalogue.load_offsets())) == 160
    assert sorted(ids) == list(range(160))
    catalogue.close()
