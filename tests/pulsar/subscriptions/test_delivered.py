"""The sizes of delivered entries."""

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
