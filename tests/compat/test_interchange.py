"""Each client writes records of every shape in every codec, each reads what every one has written."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.kafka.records.batch import BatchHeader, batches
from tests.compat.clients import CLIENTS, each_client, skip_if_missing, writable
from tests.compat.clients.librdkafka import Librdkafka
from tests.compat.clients.record import CODECS, Client, Record
from tests.compat.served import Served

ACKS = {"leader": 1, "all": -1}
# A topic, and what is in its partitions.
Written = tuple[str, dict[int, list[Record]]]

each_codec = pytest.mark.parametrize("codec", CODECS)


@pytest.fixture(scope="module")
def written(servers: str, make_topic: Callable[..., str]) -> dict[str, Written]:
    """By codec: a topic in which each client that can has written to a partition of its own."""
    topics = {}
    for codec in CODECS:
        topic = make_topic(f"written-{codec}", partitions=len(CLIENTS))
        content = {}
        for partition, client in enumerate(CLIENTS):
            if client.missing() is None and codec in client.codecs:
                content[partition] = writable(client)
                client.produce(servers, topic, partition, content[partition], codec, -1)
        topics[codec] = (topic, content)
    return topics


@each_codec
@each_client
def test_a_client_reads_what_every_client_has_written(
    client: Client, codec: str, written: dict[str, Written], servers: str
) -> None:
    skip_if_missing(client, codec)
    topic, expected = written[codec]
    consumed = client.consume(servers, topic, sum(map(len, expected.values())))
    assert expected == consumed


@each_codec
@each_client
def test_batches_keep_their_codec(
    client: Client, codec: str, written: dict[str, Written], broker_process: Served
) -> None:
    skip_if_missing(client, codec)
    topic, _ = written[codec]
    partition = CLIENTS.index(client)
    kept = {header.compression for header in stored(broker_process.partition_dir(topic, partition))}
    # librdkafka leaves a batch as it is where compressing it would gain nothing.
    assert kept in ({CODECS.index(codec)}, {0, CODECS.index(codec)})


@pytest.mark.parametrize("acks", ACKS)
@each_client
def test_acknowledged_records_are_in_the_topic(client: Client, acks: str, topic: str, servers: str) -> None:
    skip_if_missing(client)
    records = writable(client)
    client.produce(servers, topic, 0, records, "none", ACKS[acks])
    assert {0: records} == Librdkafka().consume(servers, topic, len(records))


@each_client
def test_records_arrive_without_acknowledgements(client: Client, topic: str, servers: str) -> None:
    skip_if_missing(client)
    records = writable(client)
    client.produce(servers, topic, 0, records, "none", 0)
    assert {0: records} == Librdkafka().consume(servers, topic, len(records))


def stored(directory: Path) -> Iterator[BatchHeader]:
    """The headers of all batches in a partition's files."""
    for segment in sorted(directory.glob("*.log")):
        for _, header in batches(memoryview(segment.read_bytes())):
            yield header
