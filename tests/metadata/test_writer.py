"""Changes that arrive during the last fsync share a transaction, and each caller is told the outcome of its own change."""

from pathlib import Path
from typing import Any

import pytest

from broker.errors import StorageError
from broker.metadata.catalogue import Catalogue, OffsetRow
from broker.metadata.sqlite import SqliteCatalogue
from broker.metadata.sqlite_database import SqliteDatabase
from broker.metadata.writer import CatalogueWriter


class CountingDatabase(SqliteDatabase):
    """Counts its transactions, and refuses a group named "bad"."""

    transactions = 0

    def write(self, change: Any) -> Any:
        self.transactions += 1
        return super().write(lambda connection: change(RefusingConnection(connection)))


class RefusingConnection:
    def __init__(self, connection: Any) -> None:
        self.execute = connection.execute
        self._executemany = connection.executemany

    def executemany(self, sql: str, rows: list[tuple[object, ...]]) -> None:
        if any(row[0] == "bad" for row in rows):
            raise StorageError("not this one")
        self._executemany(sql, rows)


@pytest.fixture
def database(tmp_path: Path) -> CountingDatabase:
    return CountingDatabase(str(tmp_path / "catalogue.sqlite"))


@pytest.fixture
def catalogue(database: CountingDatabase) -> SqliteCatalogue:
    return SqliteCatalogue("", database)


def at(offset: int, partition: int = 0) -> list[OffsetRow]:
    return [("t", partition, offset, -1, "", 0)]


def stored(catalogue: Catalogue) -> dict[tuple[str, int], int]:
    return {(row.group, row.partition): row.offset for row in catalogue.load_offsets()}


def test_changes_that_wait_together_are_one_transaction(database: CountingDatabase, catalogue: SqliteCatalogue) -> None:
    writer, told = CatalogueWriter(catalogue), []
    for number in range(100):
        writer.commit(f"g{number % 10}", at(number), told.append)
    writer.change(lambda inside: inside.save_group("g", b"blob"), told.append)
    assert writer.step(0)
    assert database.transactions == 1
    assert told == [None] * 101
    assert stored(catalogue) == {(f"g{number}", 0): 90 + number for number in range(10)}
    assert list(catalogue.load_groups()) == [("g", b"blob")]


def test_callbacks_follow_the_order_of_changes_between_groups(catalogue: SqliteCatalogue) -> None:
    writer, told = CatalogueWriter(catalogue), []
    writer.commit("a", at(1), lambda failure: told.append("a 1"))
    writer.commit("b", at(1), lambda failure: told.append("b 1"))
    writer.commit("a", at(2), lambda failure: told.append("a 2"))
    writer.change(lambda inside: inside.delete_offsets("a", None), lambda failure: told.append("deleted"))
    writer.commit("a", at(3, 1), lambda failure: told.append("a 3"))
    writer.step(0)
    assert told == ["a 1", "a 2", "b 1", "deleted", "a 3"]
    assert stored(catalogue) == {("a", 1): 3, ("b", 0): 1}


def test_failed_change_does_not_fail_the_others(database: CountingDatabase, catalogue: SqliteCatalogue) -> None:
    writer, told = CatalogueWriter(catalogue), {}
    for group in ("a", "bad", "c"):
        writer.commit(group, at(1), lambda failure, group=group: told.__setitem__(group, failure))
    writer.change(lambda inside: inside.save_group("g", b"blob"), lambda failure: told.__setitem__("g", failure))
    writer.step(0)
    assert {group: failure is None for group, failure in told.items()} == {
        "a": True,
        "bad": False,
        "c": True,
        "g": True,
    }
    assert stored(catalogue) == {("a", 0): 1, ("c", 0): 1}
    assert database.transactions == 5


def test_single_waiting_change_is_written_alone(database: CountingDatabase, catalogue: SqliteCatalogue) -> None:
    writer, told = CatalogueWriter(catalogue), []
    writer.commit("bad", at(1), lambda failure: told.append(str(failure)))
    writer.step(0)
    assert (told, database.transactions) == (["not this one"], 1)
    assert not writer.step(0)
