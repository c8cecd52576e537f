"""The records that the tests of share consumers send, and how they wait for them."""

from broker.client import ShareConsumer, ShareRecord

LIMIT_S = 60.0


def polled(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    """At least ``count`` records."""
    records: list[ShareRecord] = []
    while len(records) < count:
        more = consumer.poll(LIMIT_S)
        assert more, f"{len(records)} of {count} came"
        records += more
    return records


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]
