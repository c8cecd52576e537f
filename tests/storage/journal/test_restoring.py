"""Replaying a journal that is damaged, or names what it must not."""

from pathlib import Path

import pytest

from broker.errors import StorageError
from broker.metadata.journal import JournalRow
from broker.runtime.disk import SystemDisk
from broker.storage.journal.operations import Create, Index, Operation, Rename, Truncate, Write, encode
from protocol.frames import crc32c
from tests.storage.journal.helpers import Machines


def row(operations: list[Operation], data: bytes = b"", *, number: int = 1, key: str | None = None) -> JournalRow:
    index = encode(Index(operations, len(data), crc32c(data)))
    return JournalRow(number, index, None if key else data, key)


def machines_with(tmp_path: Path, *rows: JournalRow) -> Machines:
    machines = Machines(tmp_path)
    machines.table.store(rows)
    return machines


def test_changed_bytes_are_refused(tmp_path: Path) -> None:
    whole = row([Write("t-0/a", 0, 3)], b"abc")
    machines = machines_with(tmp_path, JournalRow(1, whole.index, b"abd", None))
    with pytest.raises(StorageError, match="journal row 1 is damaged"):
        machines.next()


@pytest.mark.parametrize("stored", [None, b"ab", b"abd"])
def test_missing_or_changed_object_is_named(tmp_path: Path, stored: bytes | None) -> None:
    machines = machines_with(tmp_path, row([Write("t-0/a", 0, 3)], b"abc", key="journal/1/1"))
    if stored is not None:
        machines.objects.put("journal/1/1", [stored], len(stored))
    with pytest.raises(StorageError, match="journal/1/1"):
        machines.next()


@pytest.mark.parametrize("path", ["../a", "a/../../b", "/etc/passwd", "", "a//b", "./a", "a\0b"])
def test_paths_outside_of_the_directory_are_refused(tmp_path: Path, path: str) -> None:
    machines = machines_with(tmp_path / "machines", row([Create(path)]))
    with pytest.raises(StorageError, match="outside"):
        machines.next()


def test_what_is_unknown_is_not_cut_or_made(tmp_path: Path) -> None:
    machines = machines_with(tmp_path, row([Truncate("t-0/gone", 5), Create("t-0/a"), Truncate("t-0/a", 5)]))
    machine = machines.next()
    assert {"t-0/a": b""} == machine.files()
    assert SystemDisk().file_size(f"{machine.directory}/t-0/a") == 0


def test_what_was_replaced_by_a_file_that_comes_later_is_gone(tmp_path: Path) -> None:
    """The rows that made ``t-0/new`` were removed when it had been carried over, under the name that it has now."""
    machines = machines_with(
        tmp_path,
        row([Write("t-0/a", 0, 5)], b"older", number=2),
        row([Rename("t-0/new", "t-0/a")], number=3),
        row([Write("t-0/a", 0, 3)], b"new", number=4),
    )
    assert {"t-0/a": b"new"} == machines.next().files()
