"""The contract of every Journal: numbered rows, in order, all or none, by the newest owner only."""

from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from broker.errors import Fenced, StorageError
from broker.metadata.journal import Journal, JournalRow
from tests.contract.implementations import JOURNALS, Journals
from tests.sim.journal import JournalTable, MemoryJournal, Outcome


@pytest.fixture(params=JOURNALS)
def journals(request: pytest.FixtureRequest) -> Iterator[Journals]:
    yield from JOURNALS[request.param]()


@pytest.fixture
def journal(journals: Journals) -> Journal:
    return journals.take_over()


def rows(*numbers: int, data: bytes = b"data") -> list[JournalRow]:
    return [JournalRow(number, b"index %d" % number, data, None) for number in numbers]


def read(journal: Journal, after: int = 0) -> list[JournalRow]:
    return list(journal.read(after))


def test_a_new_journal_has_no_rows(journal: Journal) -> None:
    assert ([], 0) == (read(journal), journal.last())


def test_rows_are_read_as_they_were_appended(journal: Journal) -> None:
    stored = [
        JournalRow(1, b"", None, None),
        JournalRow(2, b"\0\xff", b"", None),
        JournalRow(3, b"index", None, "objects/ä/3"),
        JournalRow(4, b"index", bytes(range(256)) * 256, None),
    ]
    for row in stored:
        journal.append([row])
    assert (stored, 4) == (read(journal), journal.last())


def test_several_rows_are_appended_in_one_piece(journal: Journal) -> None:
    mixed = [
        JournalRow(1, b"a", b"inline", None),
        JournalRow(2, b"b", None, "an/object"),
        JournalRow(3, b"c", None, None),
    ]
    journal.append(mixed)
    assert (mixed, 3) == (read(journal), journal.last())


@pytest.mark.parametrize("data", [None, b"", b"x"])
@pytest.mark.parametrize("key", [None, "a/key"])
def test_rows_of_one_kind_are_appended_in_one_piece(journal: Journal, data: bytes | None, key: str | None) -> None:
    alike = [JournalRow(number, b"index", data, key) for number in (1, 2, 3)]
    journal.append(alike)
    assert alike == read(journal)


def test_reading_begins_after_the_number(journal: Journal) -> None:
    journal.append(rows(1, 2, 3))
    assert (rows(2, 3), rows(3), [], []) == (read(journal, 1), read(journal, 2), read(journal, 3), read(journal, 9))


def test_many_rows_are_read_piece_by_piece_in_order(journal: Journal) -> None:
    for first in range(1, 1001, 250):
        journal.append(rows(*range(first, first + 250), data=b"x" * 1000))
    reading = journal.read(10)
    first = [row.number for row in islice(reading, 5)]
    rest = [row.number for row in reading]
    assert list(range(11, 1001)) == first + rest


def test_reading_sees_the_rows_that_were_there_while_others_are_appended(journal: Journal) -> None:
    journal.append(rows(*range(1, 301)))
    reading = journal.read(0)
    seen = [next(reading).number]
    journal.append(rows(301))
    seen += [row.number for row in reading]
    assert list(range(1, 301)) == seen[:300]


def test_several_readers_do_not_disturb_each_other(journal: Journal) -> None:
    journal.append(rows(*range(1, 301)))
    one, other = journal.read(0), journal.read(100)
    pairs = [(a.number, b.number) for a, b in zip(one, other, strict=False)]
    assert [(number, number + 100) for number in range(1, 201)] == pairs


@pytest.mark.parametrize("numbers", [(), (2,), (3, 4), (1, 3), (1, 1), (0,), (0, 1), (2, 1)])
def test_numbers_that_skip_are_refused(journal: Journal, numbers: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        journal.append(rows(*numbers))
    assert ([], 0) == (read(journal), journal.last())


@pytest.mark.parametrize("numbers", [(4,), (4, 5), (3, 5), (2, 3), (1, 2, 3)])
def test_numbers_that_do_not_follow_the_last_are_refused(journal: Journal, numbers: tuple[int, ...]) -> None:
    journal.append(rows(1, 2))
    with pytest.raises(AssertionError):
        journal.append(rows(*numbers))
    assert (rows(1, 2), 2) == (read(journal), journal.last())


def test_rows_that_are_appended_again_count_once(journal: Journal) -> None:
    journal.append(rows(1, 2))
    journal.append(rows(3))
    journal.append(rows(3))
    journal.append(rows(1, 2))
    journal.append(rows(4))
    assert (rows(1, 2, 3, 4), 4) == (read(journal), journal.last())


def test_other_rows_under_the_numbers_of_stored_ones_are_refused(journal: Journal) -> None:
    journal.append(rows(1))
    with pytest.raises(AssertionError):
        journal.append(rows(1, data=b"other"))
    assert rows(1) == read(journal)


def test_an_owner_that_was_replaced_is_fenced_and_stores_nothing(journals: Journals) -> None:
    old = journals.take_over()
    old.append(rows(1))
    new = journals.take_over()
    with pytest.raises(Fenced):
        old.append(rows(2))
    assert (rows(1), 1) == (read(new), new.last())


def test_an_owner_that_was_replaced_stays_fenced(journals: Journals) -> None:
    old, new = journals.take_over(), journals.take_over()
    new.append(rows(1))
    for again in (rows(1), rows(2)):
        with pytest.raises(Fenced):
            old.append(again)
    assert rows(1) == read(new)


def test_an_owner_that_was_replaced_removes_nothing(journals: Journals) -> None:
    old = journals.take_over()
    old.append(rows(1, 2))
    new = journals.take_over()
    with pytest.raises(Fenced):
        old.remove(1)
    assert rows(1, 2) == read(new)


def test_the_next_owner_reads_the_rows_and_goes_on_with_the_numbers(journals: Journals) -> None:
    journals.take_over().append(rows(1, 2))
    new = journals.take_over()
    new.append(rows(3))
    assert (rows(1, 2, 3), 3) == (read(new), new.last())


def test_removed_rows_are_not_read_and_their_numbers_not_used_again(journal: Journal) -> None:
    journal.append(rows(1, 2, 3))
    journal.remove(2)
    assert (rows(3), 3) == (read(journal), journal.last())
    journal.append(rows(4))
    assert (rows(3, 4), 4) == (read(journal), journal.last())


def test_when_all_rows_are_removed_the_numbers_go_on(journals: Journals) -> None:
    journals.take_over().append(rows(1, 2, 3))
    journal = journals.take_over()
    journal.remove(3)
    assert ([], 3) == (read(journal), journal.last())
    with pytest.raises(AssertionError):
        journal.append(rows(1, 2, 3, 4))
    journal.append(rows(4))
    assert rows(4) == read(journal)


def test_removing_what_is_not_there_is_no_error(journal: Journal) -> None:
    journal.remove(10)
    journal.append(rows(1, 2))
    journal.remove(1)
    journal.remove(1)
    journal.remove(0)
    assert rows(2) == read(journal)


def check_against_a_model(journals: Journals, examples: int) -> None:
    """Random calls of two owners, of which the one before the last is always fenced."""

    class Machine(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            self.journal = journals.take_over()
            self.before: Journal | None = None
            self.journal.remove(self.journal.last())
            self.number = self.journal.last()
            self.stored: list[JournalRow] = []
            self.last_piece: list[JournalRow] = []

        @rule(
            contents=st.lists(
                st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=40)), min_size=1, max_size=5
            )
        )
        def append(self, contents: list[tuple[bytes, bytes | None]]) -> None:
            piece = [
                JournalRow(self.number + 1 + n, index, data, None if data is not None else f"key/{n}")
                for n, (index, data) in enumerate(contents)
            ]
            self.journal.append(piece)
            self.number += len(piece)
            self.stored += piece
            self.last_piece = piece

        @precondition(lambda self: self.last_piece and self.last_piece[0] in self.stored)
        @rule()
        def append_again(self) -> None:
            self.journal.append(self.last_piece)

        @rule(gap=st.integers(1, 3))
        def skip(self, gap: int) -> None:
            with pytest.raises(AssertionError):
                self.journal.append(rows(self.number + 1 + gap))

        @rule()
        def take_over(self) -> None:
            self.before, self.journal = self.journal, journals.take_over()

        @precondition(lambda self: self.before is not None)
        @rule()
        def the_one_before_tries(self) -> None:
            assert self.before is not None
            with pytest.raises(Fenced):
                self.before.append(rows(self.number + 1))

        @rule(back=st.integers(0, 5))
        def remove(self, back: int) -> None:
            upto = self.number - back
            self.journal.remove(upto)
            self.stored = [row for row in self.stored if row.number > upto]

        @rule(back=st.integers(0, 5))
        def read(self, back: int) -> None:
            after = self.number - back
            assert [row for row in self.stored if row.number > after] == read(self.journal, after)
            assert (self.stored, self.number) == (read(self.journal), self.journal.last())

    run_state_machine_as_test(Machine, settings=settings(max_examples=examples, stateful_step_count=20))


def test_random_calls_do_as_a_model_does(journals: Journals) -> None:
    check_against_a_model(journals, examples=15)


# The journal in memory has outcomes that its maker draws.


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN_STORED, Outcome.UNKNOWN_LOST, Outcome.UNKNOWN_LATE])
def test_rows_with_an_unknown_outcome_are_appended_again_and_count_once(outcome: Outcome) -> None:
    outcomes = iter([outcome, Outcome.STORED, Outcome.STORED])
    journal = JournalTable(lambda: next(outcomes)).take_over()
    with pytest.raises(StorageError):
        journal.append(rows(1))
    journal.append(rows(1))
    journal.append(rows(2))
    assert rows(1, 2) == read(journal)


def test_nothing_else_is_appended_while_an_outcome_is_unknown() -> None:
    outcomes = iter([Outcome.UNKNOWN_LATE])
    journal = JournalTable(lambda: next(outcomes)).take_over()
    with pytest.raises(StorageError):
        journal.append(rows(1))
    with pytest.raises(AssertionError, match="unknown"):
        journal.append(rows(2))


def test_rows_that_failed_are_not_there() -> None:
    outcomes = iter([Outcome.FAILED, Outcome.STORED])
    journal = JournalTable(lambda: next(outcomes)).take_over()
    with pytest.raises(StorageError):
        journal.append(rows(1))
    assert [] == read(journal)
    journal.append(rows(1, data=b"other"))
    assert rows(1, data=b"other") == read(journal)


def test_an_append_renews_the_lease() -> None:
    renewed: list[int] = []
    MemoryJournal(JournalTable(), 0, lambda: renewed.append(1)).append(rows(1))
    assert [1] == renewed
