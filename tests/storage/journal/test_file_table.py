"""What a flush ships of a file, and which rows files need."""

from broker.storage.journal.file_table import FileState, FileTable, oldest_row
from broker.storage.journal.operations import Create, Remove, Rename, Truncate, Write


def test_a_range_covers_all_that_was_written() -> None:
    state = FileState("a", size=100)
    state.wrote(100, 110)
    state.wrote(50, 60)
    assert ([], 50, 110) == state.take(1, 1000)
    assert ([], 0, 0) == state.take(2, 1000)


def test_a_hole_is_shipped_as_zeros() -> None:
    state = FileState("a", size=10)
    state.wrote(20, 30)
    assert ([], 10, 30) == state.take(1, 1000)


def test_a_cut_comes_before_what_is_written_after_it() -> None:
    state = FileState("a", size=100)
    state.wrote(100, 150)
    state.truncated(150, 80)
    state.truncated(80, 120)  # longer: zeros
    state.wrote(120, 130)
    assert ([Truncate("a", 80)], 80, 130) == state.take(1, 1000)
    assert 130 == state.size


def test_a_cut_of_what_was_never_shipped_is_not_shipped() -> None:
    state = FileState("a", size=10)
    state.wrote(10, 20)
    state.truncated(20, 15)
    assert ([], 10, 15) == state.take(1, 1000)


def test_name_changes_are_taken_once_and_in_order() -> None:
    table = FileTable()
    table.created("t-0/a")
    table.created("t-0/a")
    table.renamed("t-0/a", "t-0/b")
    table.renamed("t-0", "t-1")
    table.removed("t-1/b")
    table.removed("t-1/b")
    expected = [Create("t-0/a"), Rename("t-0/a", "t-0/b"), Rename("t-0", "t-1"), Remove("t-1/b")]
    assert (expected, []) == (table.take_names(1), table.take_names(2))
    assert [] == list(table)


def test_a_replaced_file_is_shipped_no_more() -> None:
    table = FileTable()
    old, new = table.created("a"), table.created("a.tmp")
    old.wrote(0, 10)
    table.renamed("a.tmp", "a")
    assert ("a", None) == (new.path, old.path)
    assert ([], 0, 0) == old.take(1, 1000)


def test_rows_are_needed_from_the_oldest_on() -> None:
    table = FileTable()
    assert 8 == oldest_row(table, table.dropped, 7)
    for number, name in enumerate("ab", 3):
        table.created(name).wrote(0, 10)
        table.take_names(number)
    assert 3 == oldest_row(table, table.dropped, 7)
    table.removed("a")
    assert 3 == oldest_row(table, table.dropped, 7)  # until the journal knows that it is gone
    table.take_names(8)
    assert 4 == oldest_row(table, table.dropped, 8)


def test_file_needs_its_rows_until_it_was_carried_over_as_a_whole() -> None:
    table = FileTable()
    table.replay(3, Write("a", 0, 10))
    (state,) = table
    table.carry(state)
    assert ([], 0, 6) == state.take(7, 6)
    assert 3 == oldest_row(table, table.dropped, 7)
    assert ([], 6, 10) == state.take(8, 6)
    assert 7 == oldest_row(table, table.dropped, 8)


def test_an_empty_file_is_carried_over_by_its_name() -> None:
    table = FileTable()
    table.replay(3, Create("a"))
    (state,) = table
    table.carry(state)
    assert [Create("a")] == table.take_names(5)
    assert 5 == oldest_row(table, table.dropped, 5)
