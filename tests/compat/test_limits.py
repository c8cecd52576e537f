"""Messages from nothing to the largest that a topic takes, and the one that is a byte too large."""

from collections.abc import Callable

import pytest

from protocol.kafka.records.records import build_batch
from tests.compat.clients import each_client, skip_if_missing
from tests.compat.clients.librdkafka import Librdkafka
from tests.compat.clients.record import TIMESTAMP, Client, Record

# The default of message_max_bytes.
LIMIT = 1_048_588


def largest(limit: int) -> Record:
    """The only record of the largest batch that ``limit`` allows; Kafka's limit is on the batch as it is sent."""
    value = b"v" * (limit - 61)
    surplus = len(build_batch([(b"key", value, [], TIMESTAMP)])) - limit
    record = Record(b"key", value[surplus:])
    assert limit == len(build_batch([(*record, TIMESTAMP)]))
    return record


def one_byte_more(record: Record) -> Record:
    return record._replace(value=(record.value or b"") + b"v")


@each_client
def test_message_of_the_largest_size_is_accepted(client: Client, topic: str, servers: str) -> None:
    skip_if_missing(client)
    record = largest(LIMIT)
    client.produce(servers, topic, 0, [record], "none", -1)
    assert {0: [record]} == client.consume(servers, topic, 1)


@each_client
def test_message_one_byte_larger_is_refused(client: Client, topic: str, servers: str) -> None:
    skip_if_missing(client)
    with pytest.raises(Exception, match=client.too_large):
        client.produce(servers, topic, 0, [one_byte_more(largest(LIMIT))], "none", -1)
    fits = [largest(LIMIT)]
    client.produce(servers, topic, 0, fits, "none", -1)
    assert {0: fits} == Librdkafka().consume(servers, topic, 1)


@pytest.mark.parametrize("limit", [1_000, 5_000_000])
@each_client
def test_topic_may_have_its_own_limit(client: Client, limit: int, make_topic: Callable[..., str], servers: str) -> None:
    skip_if_missing(client)
    topic = make_topic(**{"max.message.bytes": str(limit)})
    with pytest.raises(Exception, match=client.too_large):
        client.produce(servers, topic, 0, [one_byte_more(largest(limit))], "none", -1)
    records = [largest(limit), Record(None, b"small")]
    for record in records:
        client.produce(servers, topic, 0, [record], "none", -1)
    # Larger than any client wants to read at a time, and yet it must get on.
    assert {0: records} == client.consume(servers, topic, 2)


@each_client
def test_sizes_around_powers_of_two_are_delivered(client: Client, topic: str, servers: str) -> None:
    skip_if_missing(client)
    sizes = sorted({max(0, 2**power + around) for power in range(0, 17, 2) for around in (-1, 0, 1)})
    records = [Record(b"key", (b"%d " % size * size)[:size]) for size in sizes]
    client.produce(servers, topic, 0, records, "none", 1)
    assert {0: records} == client.consume(servers, topic, len(records))
