"""What was handed in while the last fsync ran is one transaction; each is told, in order, what became of its own."""

from pathlib import Path
from typing import Any

import pytest

from broker.errors import StorageError
from broker.kafka.groups.catalogue_writer import CatalogueWriter
from broker.kafka.groups.offsets import CommittedOffset, Offsets
from broker.metadata.catalogue import Catalogue, SqliteCatalogue


class Counting(SqliteCatalogue):
    """Counts its transactions, and refuses groups of a certain name."""

    transactions = 0

    def _write(self, change: Any) -> Any:
        self.transactions += 1
        return super()._write(lambda connection: change(Picky(connection)))


class Picky:
    def __init__(self, connection: Any) -> None:
        self.execute = connection.execute
        self._executemany = connection.executemany

    def executemany(self, sql: str, rows: list[tuple[object, ...]]) -> None:
        if any(row[0] == "bad" for row in rows):
            raise StorageError("not this one")
        self._executemany(sql, rows)


@pytest.fixture
def catalogue(tmp_path: Path) -> Counting:
    return Counting(str(tmp_path / "catalogue.sqlite"))


def at(offset: int, partition: int = 0) -> Offsets:
    return {("t", partition): CommittedOffset(offset, -1, "", 0)}


def stored(catalogue: Catalogue) -> dict[tuple[str, int], int]:
    return {(one.group, one.partition): one.offset for one in catalogue.load_offsets()}


def test_all_that_waits_is_one_transaction(catalogue: Counting) -> None:
    writer, told = CatalogueWriter(catalogue), []
    for number in range(100):
        writer.commit(f"g{number % 10}", at(number), told.append)
    writer.change(lambda inside: inside.save_group("g", b"blob"), told.append)
    assert writer.step(0)
    assert catalogue.transactions == 1
    assert told == [None] * 101
    assert stored(catalogue) == {(f"g{number}", 0): 90 + number for number in range(10)}
    assert list(catalogue.load_groups()) == [("g", b"blob")]


def test_each_is_told_in_the_order_in_which_it_came_except_within_a_group(catalogue: Counting) -> None:
    writer, told = CatalogueWriter(catalogue), []
    writer.commit("a", at(1), lambda failure: told.append("a 1"))
    writer.commit("b", at(1), lambda failure: told.append("b 1"))
    writer.commit("a", at(2), lambda failure: told.append("a 2"))
    writer.change(lambda inside: inside.delete_offsets("a", None), lambda failure: told.append("gone"))
    writer.commit("a", at(3, 1), lambda failure: told.append("a 3"))
    writer.step(0)
    assert told == ["a 1", "a 2", "b 1", "gone", "a 3"]
    assert stored(catalogue) == {("a", 1): 3, ("b", 0): 1}


def test_one_that_fails_takes_no_other_with_it(catalogue: Counting) -> None:
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
    assert catalogue.transactions == 5


def test_what_waits_alone_is_written_by_itself(catalogue: Counting) -> None:
    writer, told = CatalogueWriter(catalogue), []
    writer.commit("bad", at(1), lambda failure: told.append(str(failure)))
    writer.step(0)
    assert (told, catalogue.transactions) == (["not this one"], 1)
    assert not writer.step(0)
