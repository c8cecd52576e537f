"""The sizes of delivered entries."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from broker.pulsar.subscriptions.delivered import Delivered


def test_it_forgets_what_is_acknowledged() -> None:
    table = Delivered()
    for entry in range(0, 100, 5):
        table.add(entry, 5)
    table.remove(10)
    table.remove_before(50)
    assert (None, 5, None) == (table.messages(10), table.messages(50), table.messages(45))
    assert 10 == len(table)
    assert 50 in table and 49 not in table


def test_entries_that_were_delivered_again_are_forgotten_some_day() -> None:
    table = Delivered()
    table.add(1_000_000, 1)  # stands first for ever
    for entry in range(5000):
        table.add(entry, 1)
        table.remove_before(entry)
    assert len(table) <= 1030


def test_it_keeps_the_newest() -> None:
    table = Delivered(most=3)
    for entry in range(10):
        table.add(entry, 1)
    assert [7, 8, 9] == [entry for entry in range(10) if entry in table]


@given(st.lists(st.integers(1, 3), max_size=12), st.lists(st.integers(0, 25), max_size=15))
def test_what_is_taken_comes_in_runs_and_can_be_put_back(sizes: list[int], asked: list[int]) -> None:
    table = Delivered()
    sizes_by_entry = {sum(sizes[:number]): size for number, size in enumerate(sizes)}
    for entry, size in sizes_by_entry.items():
        table.add(entry, size)
    runs, unknown = table.take(asked)
    taken = [entry for run in runs for entry in run.entries]
    first = list(dict.fromkeys(asked))  # the second time it is not known any more
    assert [entry for entry in first if entry in sizes_by_entry] == taken
    assert sorted(asked) == sorted(taken + unknown)
    for run in runs:
        assert run.first == run.entries[0]
        assert run.end - run.first == sum(sizes_by_entry[entry] for entry in run.entries)
    for run, following in pairwise(runs):
        assert run.end != following.first
    assert all(entry not in table for entry in taken)
    table.put_back(runs)
    assert sizes_by_entry == {entry: table.messages(entry) for entry in sizes_by_entry}
