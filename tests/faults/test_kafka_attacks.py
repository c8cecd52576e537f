"""Small requests that ask for much: the broker's memory stays bounded, and others are served meanwhile.

Everything here once took gigabytes, or kept every other client waiting for 10 to 90 seconds.
"""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.compression import GZIP, compress
from protocol.kafka.schema import control
from tests.faults.attacks import (
    ATTACKS,
    QUIET,
    RSS_MAX,
    WIDE,
    Attack,
    Neighbour,
    attacked_broker,
    outlives,
    repeated_fetch,
    unknown_topics,
)
from tests.kafka_connection import KafkaConnection, fetch_fields, produce_fields
from tests.process.broker_process import PATIENCE_S, BrokerProcess
from tests.process.test_bombs import batch_of, with_body
from tests.protocol.kafka.records.test_compression import UNITS

CONNECTIONS = 12


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A single broker for all: no attack may leave anything behind."""
    with attacked_broker(tmp_path_factory.mktemp("attacked")) as broker:
        yield broker
        assert [] == broker.errors


def topics(broker: BrokerProcess) -> set[str]:
    with KafkaConnection(broker.address) as client:
        return {topic.name for topic in client.ask(ApiKey.METADATA, 1, topics=None).topics}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_stops_nobody_and_takes_little_memory(broker: BrokerProcess, name: str) -> None:
    outlives(broker, ATTACKS[name](), CONNECTIONS)
    assert broker.peak_bytes < RSS_MAX


def test_unknown_topics_are_not_all_created_at_once(broker: BrokerProcess) -> None:
    before = len(topics(broker))
    attack, _ = outlives(broker, lambda number: unknown_topics(number, 1000), 8)
    assert broker.peak_bytes < RSS_MAX
    # Each request creates 100 at most, and requests of gone clients create no more.
    deadline = time.monotonic() + PATIENCE_S
    made = len(topics(broker)) - before
    while True:
        time.sleep(0.2)
        now = len(topics(broker)) - before
        if now == made:
            break
        made = now
        assert time.monotonic() < deadline, "topics are made for ever"
    assert made <= 100 * (sum(attack.answers) + 8)


def test_too_many_names_close_connection_and_create_nothing(broker: BrokerProcess) -> None:
    with KafkaConnection(broker.address) as client:
        client.send(unknown_topics(99, 100_000))
        with pytest.raises(ConnectionError):
            client.frame()
    assert not any(name.startswith("unknown-99") for name in topics(broker))


def test_waiting_fetches_of_many_partitions_cost_appends_nothing(broker: BrokerProcess) -> None:
    # Partitions of the wide topic and the neighbour's: each of its appends concerns every fetch.
    request = repeated_fetch(WIDE, range(1000), 1000)
    outlives(broker, request, CONNECTIONS, rounds=50)
    assert broker.peak_bytes < RSS_MAX


def test_stop_does_not_wait_for_attack_requests(tmp_path: Any) -> None:
    with attacked_broker(tmp_path) as broker:
        neighbour = Neighbour(broker.address)
        with Attack(broker.address, lambda number: unknown_topics(number, 1000), CONNECTIONS) as attack:
            while not all(attack.answers):
                neighbour.round()
            assert broker.stop() == 0
        neighbour.close()


def test_decompression_delays_neither_neighbours_nor_a_stop(tmp_path: Any) -> None:
    """Every codec's smallest unit, repeated to 1 MiB, and the most that is read of a batch; opened by every request for a time.
    Each once kept all handlers busy for seconds, and with them everything that the processors had handed over."""
    contents = [
        (codec, repeated(900_000 // (len(repeated(2)) - len(repeated(1))))) for codec, repeated in UNITS.values()
    ]
    contents.append((GZIP, compress(GZIP, bytes(31 << 20))))
    with attacked_broker(tmp_path) as broker, KafkaConnection(broker.address) as client:
        for index, (codec, body) in enumerate(contents):
            batch = with_body(batch_of(1, codec), body, 1)
            produced = client.ask(ApiKey.PRODUCE, 7, **produce_fields(WIDE, batch, index, acks=1))
            assert produced.responses[0].partition_responses[0].error_code == 0
        wanted = [{"partition_index": index, "timestamp": 500} for index in range(len(contents))]
        fields = {"replica_id": -1, "topics": [{"name": WIDE, "partitions": wanted}]}
        request = control.encode_request(ApiKey.LIST_OFFSETS, 7, 7, "x", fields)
        outlives(broker, request, CONNECTIONS)
        assert broker.peak_bytes < RSS_MAX
        neighbour = Neighbour(broker.address)
        with Attack(broker.address, request, CONNECTIONS) as attack:
            while not all(attack.answers):
                neighbour.round()
            assert broker.stop() == 0
        neighbour.close()
        assert not [event for event in broker.events if event["event"] == "thread_left_behind"]


def test_large_requests_of_honest_clients_are_answered(tmp_path: Any) -> None:
    partitions = 2500
    with attacked_broker(tmp_path, partitions=partitions) as broker, KafkaConnection(broker.address) as client:
        named = client.ask(ApiKey.METADATA, 9, topics=[{"name": WIDE}], allow_auto_topic_creation=False)
        assert partitions == len(named.topics[0].partitions)
        every = client.ask(ApiKey.METADATA, 9, topics=None)
        assert {WIDE: partitions, QUIET: 1} == {topic.name: len(topic.partitions) for topic in every.topics}
        wanted = list(range(partitions))
        fetched = client.ask(ApiKey.FETCH, 11, **fetch_fields(WIDE, wanted, max_wait=10))
        assert [(number, 0) for number in wanted] == [
            (partition.partition_index, partition.error_code) for partition in fetched.responses[0].partitions
        ]
        # Four times as many partitions as there are: 10,000 answers.
        asked = client.ask(
            ApiKey.OFFSET_FETCH,
            8,
            groups=[{"group_id": "other", "topics": [{"name": WIDE, "partition_indexes": list(range(10_000))}]}],
        )
        assert 10_000 == len(asked.groups[0].topics[0].partitions)
        made = client.ask(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[{"name": f"t{number}", "num_partitions": 1, "replication_factor": 1} for number in range(1000)],
            timeout=300_000,
            validate_only=True,
        )
        assert {0} == {topic.error_code for topic in made.topics}
        described = client.ask(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            resources=[{"resource_type": 2, "resource_name": f"t{number}"} for number in range(1000)],
        )
        assert 1000 == len(described.results)
