"""A fetch that waits looks only at the logs that were appended to, whether it is of few partitions or of many."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from broker.network.work import INLINE_ENTRIES, WATCHED_ALWAYS
from broker.storage.log.reading import LogReader
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Beside, Kafka
from tests.kafka_connection import fetch_fields
from tests.waiting import wait_for

NOW_MS = 1_700_000_000_000
MANY = INLINE_ENTRIES + 100


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka
        wait_for(lambda: kafka.inside.watches.taken == 0, "watches are left")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions that were read, one entry for each time."""
    seen: list[int] = []
    read = LogReader.read

    def counted(self: LogReader, *args: Any, **options: Any) -> Any:
        seen.append(self._state.partition)
        return read(self, *args, **options)

    monkeypatch.setattr(LogReader, "read", counted)
    return seen


# It waits for a minute unless a test says otherwise.
waiting_fetch = partial(fetch_fields, max_wait=60_000)


def response(client: Beside) -> Any:
    return client.answer(ApiKey.FETCH, 11).responses


@pytest.mark.parametrize("partitions", [20, MANY])
def test_append_costs_one_read_for_each_waiting_fetch(kafka: Kafka, reads: list[int], partitions: int) -> None:
    topic = kafka.topic(partitions)
    with Beside(kafka) as client:
        client.tell(ApiKey.FETCH, 11, **waiting_fetch(topic, range(partitions), min_bytes=700))
        wait_for(lambda: kafka.inside.watches.taken == partitions)
        reads.clear()
        for round_ in range(5):  # of 76 bytes each
            kafka.fill(topic, NOW_MS + round_, partition=7)
            wait_for(lambda: len(reads) >= round_ + 1)  # noqa: B023
        assert reads == [7] * 5
        kafka.fill(topic, *range(NOW_MS, NOW_MS + 3), partition=3)
        kafka.fill(topic, *range(NOW_MS, NOW_MS + 4), partition=7)
        (found,) = response(client)
        assert [partition.partition_index for partition in found.partitions] == list(range(partitions))
        sizes = {partition.partition_index: len(partition.records or b"") for partition in found.partitions}
        assert {number for number, size in sizes.items() if size} == {3, 7}
        assert sum(sizes.values()) >= 700


@pytest.mark.parametrize("partitions", [20, MANY])
def test_deadline_answers_with_the_available_records(kafka: Kafka, partitions: int) -> None:
    topic = kafka.topic(partitions)
    kafka.fill(topic, NOW_MS, partition=5)
    (found,) = kafka.ask(
        ApiKey.FETCH, 11, **waiting_fetch(topic, range(partitions), min_bytes=10_000, max_wait=100)
    ).responses
    assert [5] == [partition.partition_index for partition in found.partitions if partition.records]
    assert len(found.partitions) == partitions


@pytest.mark.parametrize("partitions", [20, MANY])
def test_it_is_answered_when_its_topic_is_deleted(kafka: Kafka, partitions: int) -> None:
    topic = kafka.topic(partitions)
    with Beside(kafka) as client:
        client.tell(ApiKey.FETCH, 11, **waiting_fetch(topic, range(partitions)))
        wait_for(lambda: kafka.inside.watches.taken == partitions)
        kafka.inside.logs.delete_topic(topic)
        (found,) = response(client)
        assert {partition.error_code for partition in found.partitions} == {ErrorCode.unknown_topic_or_partition}


@pytest.mark.parametrize("partitions", [20, MANY])
def test_closed_connection_releases_the_watched_logs(kafka: Kafka, partitions: int) -> None:
    topic = kafka.topic(partitions)
    with Beside(kafka) as client:
        client.tell(ApiKey.FETCH, 11, **waiting_fetch(topic, range(partitions)))
        wait_for(lambda: kafka.inside.watches.taken == partitions)
    wait_for(lambda: kafka.inside.watches.taken == 0)


def test_fetch_without_watches_waits_for_its_deadline(kafka: Kafka) -> None:
    partitions = WATCHED_ALWAYS + 1
    topic = kafka.topic(partitions)
    taken = kafka.inside.watches.capacity - WATCHED_ALWAYS
    assert kafka.inside.watches.take(taken)
    (found,) = kafka.ask(ApiKey.FETCH, 11, **waiting_fetch(topic, range(partitions), max_wait=50)).responses
    assert len(found.partitions) == partitions
    kafka.inside.watches.give_back(taken)


def test_small_fetch_is_watched_despite_exhausted_watches(kafka: Kafka) -> None:
    topic = kafka.topic(WATCHED_ALWAYS)
    taken = kafka.inside.watches.capacity
    assert kafka.inside.watches.take(taken)
    with Beside(kafka) as client:
        client.tell(ApiKey.FETCH, 11, **waiting_fetch(topic, range(WATCHED_ALWAYS)))
        wait_for(lambda: kafka.inside.watches.taken == taken + WATCHED_ALWAYS)
        kafka.fill(topic, NOW_MS, partition=3)
        (found,) = response(client)
        assert [3] == [partition.partition_index for partition in found.partitions if partition.records]
    kafka.inside.watches.give_back(taken)


def test_repeated_partition_is_answered_for_its_last_entry(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    kafka.fill(topic, NOW_MS, NOW_MS + 1, NOW_MS + 2)
    fields = waiting_fetch(topic, [0, 1, 0])
    fields["topics"][0]["partitions"][2]["fetch_offset"] = 2
    (found,) = kafka.ask(ApiKey.FETCH, 11, **fields).responses
    first, second = found.partitions
    assert (first.partition_index, second.partition_index) == (0, 1)
    assert int.from_bytes(first.records[:8], "big") == 2


@pytest.mark.parametrize("partitions", [20, MANY])
def test_batch_larger_than_the_limit_is_enough(kafka: Kafka, partitions: int) -> None:
    topic = kafka.topic(partitions)
    with Beside(kafka) as client:
        fields = waiting_fetch(topic, range(partitions), min_bytes=50)
        client.tell(ApiKey.FETCH, 11, **fields | {"max_bytes": 10})  # KIP-74: the first batch comes all the same
        wait_for(lambda: kafka.inside.watches.taken == partitions)
        kafka.fill(topic, NOW_MS, partition=4)
        (found,) = response(client)
        assert [4] == [partition.partition_index for partition in found.partitions if partition.records]


TIERED = {
    "objects": "memory://",
    "log_segment_bytes": 300,
    "log_local_retention_bytes": 0,
    "log_flush_offset_checkpoint_interval_ms": 20,
    "remote_log_manager_task_interval_ms": 20,
}


def tiered(kafka: Kafka, partitions: int) -> str:
    """A topic whose partition 5 has its first records in the object store only."""
    topic = kafka.topic(partitions)
    kafka.fill(topic, *range(NOW_MS, NOW_MS + 20), partition=5)
    log = kafka.inside.logs.get(topic, 5)
    assert log is not None
    wait_for(lambda: log.around.tier is not None and log.around.tier.earliest_local(log) == log.view.bases[-1])
    return topic


@pytest.mark.parametrize("partitions", [20, MANY])
def test_deadline_answers_with_records_of_object_store(partitions: int) -> None:
    with Kafka(**TIERED) as kafka:
        topic = tiered(kafka, partitions)
        (found,) = kafka.ask(
            ApiKey.FETCH, 11, **waiting_fetch(topic, range(partitions), min_bytes=100_000, max_wait=100)
        ).responses
        sizes = {partition.partition_index: len(partition.records or b"") for partition in found.partitions}
        assert {5} == {number for number, size in sizes.items() if size}
        assert sizes[5] > 300
        assert 0 == kafka.inside.watches.taken


@pytest.mark.parametrize("partitions", [20, MANY])
def test_append_to_another_log_ends_wait_of_fetch_from_object_store(partitions: int) -> None:
    with Kafka(**TIERED) as kafka:
        topic = tiered(kafka, partitions)
        with Beside(kafka) as client:
            client.tell(ApiKey.FETCH, 11, **waiting_fetch(topic, range(partitions), min_bytes=1600))
            wait_for(lambda: kafka.inside.watches.taken == partitions)
            kafka.fill(topic, *range(NOW_MS, NOW_MS + 3), partition=7)
            (found,) = response(client)
        sizes = {partition.partition_index: len(partition.records or b"") for partition in found.partitions}
        assert {5, 7} == {number for number, size in sizes.items() if size}
        assert sum(sizes.values()) >= 1600
