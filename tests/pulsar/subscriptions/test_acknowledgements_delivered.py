"""The sizes of delivered entries."""

import sys
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from broker.pulsar.subscriptions.acknowledgements import Delivered


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(("add", "remove", "before"))), max_size=100))
def test_what_was_not_acknowledged_is_known(events: list[tuple[int, str]]) -> None:
    table, model = Delivered(), dict[int, int]()
    for entry, event in events:
        if event == "add":
            table.add(entry, entry + 1)
            model[entry] = entry + 1
        elif event == "remove":
            table.remove(entry)
            model.pop(entry, None)
        else:
            table.remove_before(entry)
            # An entry that was delivered again may stay longer; nobody asks for it.
            model = {known: messages for known, messages in model.items() if known >= entry}
        assert model == {known: table.messages(known) for known in model}


def test_a_table_that_was_long_is_small_again() -> None:
    table = Delivered()
    for entry in range(20_000):
        table.add(entry, 1)
    table.remove_before(19_990)
    assert 10 == len(table)
    # In a large table each look at the first key would pass over the places of deleted keys.
    assert sys.getsizeof(table._messages) < 1000


def test_it_forgets_what_is_acknowledged() -> None:
    table = Delivered()
    for entry in range(0, 100, 5):
        table.add(entry, 5)
    table.remove(10)
    table.remove_before(50)
    assert (None, 5, None) == (table.messages(10), table.messages(50), table.messages(45))
    assert 10 == len(table)
    assert 50 in table and 49 not in table


def test_redelivered_entries_are_eventually_forgotten() -> None:
    table = Delivered()
    table.add(1_000_000, 1)  # this entry always stands first
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
def test_taken_offsets_come_in_runs_and_can_return(sizes: list[int], asked: list[int]) -> None:
    table = Delivered()
    sizes_by_entry = {sum(sizes[:number]): size for number, size in enumerate(sizes)}
    for entry, size in sizes_by_entry.items():
        table.add(entry, size)
    runs, unknown = table.take(asked)
    taken = [entry for run in runs for entry in run.entries]
    first = list(dict.fromkeys(asked))  # an entry is unknown when it is taken again
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
