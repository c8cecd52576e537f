"""The interface of the journal: numbered rows that make changes of local files durable, beside the catalogue.

A broker whose disk is only a cache appends a row for each flush. Whoever takes over reads the rows in order and has the files
again. ``index`` and ``data`` are bytes of the caller's format. ``postgres_journal.py`` is the implementation; the simulator has
another (``tests/sim/journal.py``). It is here and not in the storage, because its rows are in the catalogue's database and are
fenced by the same owner's epoch.

Rows are appended by one thread at a time. Any thread may read and remove.

Tests: tests/contract/test_journal.py.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import attrs


@attrs.frozen
class JournalRow:
    """``number``: consecutive, from 1. The bytes of a flush are inline (``data``) or in an object (``object``, its key); both are
    None if the flush has no bytes."""

    number: int
    index: bytes
    data: bytes | None
    object: str | None


class Journal(Protocol):
    def append(self, rows: Sequence[JournalRow]) -> None:
        """Store rows in order, all or none, and renew the owner's lease. When it returns, they survive the loss of the machine.

        The first number is that of the last row and 1; anything else is an AssertionError. Rows that are stored already, because
        they were appended before with the outcome unknown, count as stored; their contents have to be the same.

        Raises Fenced: another broker owns the state now, nothing of these is stored, and it never will be. Raises StorageError:
        nothing is stored now, and nothing will be. Raises UnknownOutcome: they may be stored, now or in a moment; nothing else
        may be appended before the same rows were appended again.
        """

    def read(self, after: int) -> Iterator[JournalRow]:
        """The rows with a higher number, in order, those appended before the call at least. Some rows are in memory at a time.
        Raises StorageError, also in the middle."""

    def remove(self, upto: int) -> None:
        """Rows up to this number are not needed any more. Raises Fenced or StorageError; then all, some or none are removed."""

    def last(self) -> int:
        """The number of the last row that was ever appended, removed or not. 0: there was none. Raises StorageError."""


def check_numbers(rows: Sequence[JournalRow]) -> None:
    """AssertionError if there is no row, or the numbers are not consecutive from 1 or more."""
    assert rows, "no rows"
    first = rows[0].number
    assert first >= 1, first
    assert [row.number for row in rows] == list(range(first, first + len(rows))), "numbers are not consecutive"


def is_repetition(rows: Sequence[JournalRow], last: int) -> bool:
    """Whether rows have been stored already, as far as their numbers say so, where ``last`` is the last one that is.

    False: they are next. AssertionError: they are neither.
    """
    if rows[-1].number <= last:
        return True
    assert rows[0].number == last + 1, f"row {rows[0].number} after {last}"
    return False
