from collections.abc import Iterator
from itertools import takewhile

import pytest

from broker.client import Broker
from broker.client.kafka import Cluster, Fetched
from broker.client.kafka.errors import OffsetOutOfRangeError, TopicRecreatedError, UnknownTopicError
from tests.client.kafka.logs import append, offsets_and_values


def read(cluster: Cluster, topic: str, start: int, end: int, **how: int) -> list[tuple[int, bytes | None]]:
    records: list[tuple[int, bytes | None]] = []
    with cluster.fetcher(topic, 0, start, end, **how) as fetcher:  # type: ignore[arg-type]
        for fetched in fetcher:
            records += offsets_and_values(fetched.data)
    return records


def test_all_records_are_read_in_order(running: Broker, cluster: Cluster, topic: str) -> None:
    expected = []
    for number in range(50):
        append(running, topic, [b"%d" % number] * 3)
        expected += [(3 * number + index, b"%d" % number) for index in range(3)]
    assert expected == read(cluster, topic, 0, 150)


@pytest.mark.parametrize("max_bytes", [1, 100, 250, 1000, 1 << 20])
def test_fetch_of_any_size_returns_whole_batches(running: Broker, cluster: Cluster, topic: str, max_bytes: int) -> None:
    for number in range(10):
        append(running, topic, [b"x" * 40 * number])
    assert list(range(10)) == [offset for offset, _ in read(cluster, topic, 0, 10, max_bytes=max_bytes)]


def test_fetch_within_a_batch_returns_whole_batch(running: Broker, cluster: Cluster, topic: str) -> None:
    append(running, topic, [b"a", b"b", b"c"])
    assert [(0, b"a"), (1, b"b"), (2, b"c")] == read(cluster, topic, 1, 3)


def test_end_of_log_is_answer_without_data(running: Broker, cluster: Cluster, topic: str) -> None:
    append(running, topic, [b"a"])
    with cluster.fetcher(topic, 0, 0, max_wait_ms=20) as fetcher:
        first, second = (copied(next(fetcher)) for _ in range(2))
        assert ([(0, b"a")], 1, 1, 0) == (offsets_and_values(first.data), *first[2:5])
        assert (b"", 1) == (second.data, second.next_offset)
        append(running, topic, [b"b"])
        while not (more := copied(next(fetcher))).data:
            pass
        assert [(1, b"b")] == offsets_and_values(more.data)


def test_seek_drops_the_pending_answer(running: Broker, cluster: Cluster, topic: str) -> None:
    for number in range(4):
        append(running, topic, [b"%d" % number])
    with cluster.fetcher(topic, 0, 0, 4, max_bytes=1) as fetcher:
        assert [(0, b"0")] == offsets_and_values(next(fetcher).data)
        fetcher.seek(3)
        assert [(3, b"3")] == offsets_and_values(next(fetcher).data)
        assert [] == list(fetcher)


def test_offset_after_the_end_names_the_bounds(running: Broker, cluster: Cluster, topic: str) -> None:
    append(running, topic, [b"a"] * 3)
    with pytest.raises(OffsetOutOfRangeError, match=f"Offset 7 of {topic}-0 does not exist yet") as failure:
        next(cluster.fetcher(topic, 0, 7))
    assert (0, 3) == (failure.value.log_start, failure.value.end)


@pytest.mark.parametrize("waiting", [False, True])
def test_recreated_topic_is_not_read_on(running: Broker, cluster: Cluster, topic: str, waiting: bool) -> None:
    append(running, topic, [b"a"])
    with cluster.fetcher(topic, 0, 0, max_wait_ms=30_000 if waiting else 20) as fetcher:
        assert [(0, b"a")] == offsets_and_values(next(fetcher).data)
        logs = running.server.kafka.logs
        logs.delete_topic(topic)
        logs.create_topic(topic, 1)
        append(running, topic, [b"b", b"c"])
        with pytest.raises(TopicRecreatedError, match=f"'{topic}' was deleted and made again"):
            read_on(fetcher)


def read_on(fetcher: Iterator[Fetched]) -> None:
    """Wait until there are data."""
    assert list(takewhile(lambda fetched: not fetched.data, fetcher))


def test_deleted_topic_ends_its_reading(running: Broker, cluster: Cluster, topic: str) -> None:
    append(running, topic, [b"a"])
    with cluster.fetcher(topic, 0, 0, max_wait_ms=20) as fetcher:
        next(fetcher)
        running.server.kafka.logs.delete_topic(topic)
        with pytest.raises(UnknownTopicError, match=f"no topic '{topic}'"):
            read_on(fetcher)


def test_missing_topic_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(UnknownTopicError, match="no topic 'nowhere'"):
        next(cluster.fetcher("nowhere", 0, 0))


def test_empty_range_asks_nothing(cluster: Cluster, topic: str) -> None:
    assert [] == list(cluster.fetcher(topic, 0, 5, 5))


def copied(fetched: Fetched) -> Fetched:
    return fetched._replace(data=memoryview(bytes(fetched.data)))
