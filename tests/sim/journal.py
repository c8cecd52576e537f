"""A journal in memory. ``JournalTable`` outlives the broker; a ``MemoryJournal`` is the view of one owner with its epoch, so that
several of them can be opened on one table, of which only the newest may append.

Outcomes are drawn by whoever makes the table: ``outcomes`` is asked before each append. The simulator draws them from its seed.

Tests: tests/contract/test_journal.py.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from broker.errors import Fenced, StorageError, UnknownOutcome
from broker.metadata.journal import JournalRow, check_numbers, is_repetition


class Outcome(Enum):
    """What becomes of an append."""

    STORED = 0
    FAILED = 1  # not stored; StorageError
    UNKNOWN_STORED = 2  # UnknownOutcome, and it is stored
    UNKNOWN_LOST = 3  # UnknownOutcome, and it is not
    UNKNOWN_LATE = (
        4  # UnknownOutcome, and it is stored before the next call of any owner, if that owner still has the epoch
    )


class JournalTable:
    def __init__(self, outcomes: Callable[[], Outcome] = lambda: Outcome.STORED) -> None:
        self.rows: dict[int, JournalRow] = {}
        self.number = 0
        self.epoch = 0
        self.outcomes = outcomes
        self._late: Sequence[JournalRow] = ()

    def take_over(self) -> "MemoryJournal":
        """The journal of the next owner. Those of all before are fenced."""
        self.settle()
        self.epoch += 1
        return MemoryJournal(self, self.epoch)

    def settle(self) -> None:
        """What was on its way arrives."""
        late, self._late = self._late, ()
        if late:
            self.store(late)

    def store(self, rows: Sequence[JournalRow]) -> None:
        for row in rows:
            self.rows[row.number] = row
        self.number = rows[-1].number

    def delay(self, rows: Sequence[JournalRow]) -> None:
        self._late = rows


class MemoryJournal:
    """``Journal``. ``on_renewed`` is called after each append, as a flush renews the lease."""

    def __init__(self, table: JournalTable, epoch: int, on_renewed: Callable[[], None] = lambda: None) -> None:
        self.table = table
        self.epoch = epoch
        self.on_renewed = on_renewed
        self._repeat: list[JournalRow] | None = None  # the outcome of these is unknown

    @property
    def is_unsure(self) -> bool:
        """The outcome of an append is unknown."""
        return self._repeat is not None

    def append(self, rows: Sequence[JournalRow]) -> None:
        table = self.table
        check_numbers(rows)
        assert self._repeat in (None, list(rows)), "other rows, while the outcome of some is unknown"
        table.settle()
        self._check_epoch()
        if is_repetition(rows, table.number):
            assert [table.rows.get(row.number) for row in rows] == list(rows), "other rows with the same numbers"
        else:
            self._store(rows)
        self._repeat = None
        self.on_renewed()

    def _store(self, rows: Sequence[JournalRow]) -> None:
        outcome = self.table.outcomes()
        if outcome is Outcome.FAILED:
            raise StorageError("The rows could not be stored.")
        if outcome in (Outcome.STORED, Outcome.UNKNOWN_STORED):
            self.table.store(rows)
        elif outcome is Outcome.UNKNOWN_LATE:
            self.table.delay(list(rows))
        if outcome is not Outcome.STORED:
            self._repeat = list(rows)
            raise UnknownOutcome("The rows may be stored.")

    def read(self, after: int) -> Iterator[JournalRow]:
        self.table.settle()
        return iter([row for number, row in sorted(self.table.rows.items()) if number > after])

    def remove(self, upto: int) -> None:
        self.table.settle()
        self._check_epoch()
        for number in [number for number in self.table.rows if number <= upto]:
            del self.table.rows[number]

    def last(self) -> int:
        self.table.settle()
        return self.table.number

    def _check_epoch(self) -> None:
        if self.table.epoch != self.epoch:
            raise Fenced(f"The owner with epoch {self.table.epoch} has replaced this one, whose epoch is {self.epoch}.")
