"""What the tests of share consumers send, and how they wait for it."""

from broker.client import ShareConsumer, ShareRecord

LIMIT_S = 60.0


def polled(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    """At least so many."""
    found: list[ShareRecord] = []
    while len(found) < count:
        more = consumer.poll(LIMIT_S)
        assert more, f"{len(found)} of {count} came"
        found += more
    return found


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]
