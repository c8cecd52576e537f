"""What dispatchers and subscriptions exchange."""

from broker.pulsar.entry import Entry


def test_an_entry_ends_with_its_last_message() -> None:
    assert 12 == Entry(offset=10, messages=3, size=1, data=b"x").last
