"""The share consumer with librdkafka's three mock brokers (version 1 of the protocol, leaders on each of them).

They count epochs, locks and deliveries as Kafka does, independently of this project.
"""

import asyncio
import itertools
import threading
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Producer

from broker.client import AcknowledgementError, AsyncShareConsumer, ShareConsumer
from broker.client.kafka.errors import KafkaClientError, UnreachableError, UnsupportedVersionError
from broker.client.kafka.share.record import ShareGroupsUnsupportedError
from broker.errors import ConfigError
from tests.client.kafka.scripted_broker import ScriptedBroker
from tests.client.kafka.share.jobs import LIMIT_S, numbers, polled
from tests.waiting import wait_for

_names = itertools.count()


class Brokers:
    """A mock cluster of librdkafka, which lives as long as its producer."""

    def __init__(self) -> None:
        self.producer = Producer(
            {"bootstrap.servers": "none", "test.mock.num.brokers": 3, "linger.ms": 0, "log_level": 0}
        )
        self.servers = [f"{b.host}:{b.port}" for b in self.producer.list_topics(timeout=30).brokers.values()]

    def send(self, topic: str, values: list[bytes], partition: int = -1) -> None:
        for value in values:
            self.producer.produce(topic, value, partition=partition)
        assert self.producer.flush(30) == 0


@pytest.fixture(scope="module")
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def topic(brokers: Brokers) -> str:
    """A topic of four partitions."""
    name = f"jobs-{next(_names)}"
    brokers.send(name, [b"to make the topic"], 0)
    return name


def consumer(brokers: Brokers, topic: str, **options: Any) -> ShareConsumer:
    """A member that has begun to read: these brokers give a group only records that come after its first fetch."""
    settings = {"fetch.max.wait.ms": 50} | options.pop("settings", {})
    made = ShareConsumer(brokers.servers, f"workers-{topic}", [topic], settings=settings, **options)
    try:
        assert made.poll(timeout_s=0.01) == []
        wait_for(lambda: len(made.assignment) > 0)
        for _ in range(12):  # each partition once at least
            assert made.poll(timeout_s=0.05) == []
    except BaseException:
        made.close()
        raise
    return made


def test_every_broker_delivers_each_record_once(brokers: Brokers, topic: str) -> None:
    acknowledged: Counter[tuple[int, int]] = Counter()

    def note(name: str, partition: int, offsets: list[int], error: KafkaClientError | None) -> None:
        assert (name, error) == (topic, None)
        acknowledged.update((partition, offset) for offset in offsets)

    seen = Counter()
    with consumer(brokers, topic, on_acknowledged=note, idle_timeout_s=LIMIT_S) as jobs:
        for partition in range(4):
            brokers.send(topic, numbers(100), partition)
        for record in jobs:
            assert record.delivery_count == 1
            seen[record.partition, record.offset] += 1
            if len(seen) == 400:
                break
    assert set(seen.values()) == {1}
    assert acknowledged == seen


def test_released_record_comes_again_and_rejected_does_not(brokers: Brokers, topic: str) -> None:
    with consumer(brokers, topic, acknowledgement="explicit") as jobs:
        brokers.send(topic, [b"accept", b"release", b"reject"], 1)
        first = polled(jobs, 3)
        for record in first:
            getattr(record, record.value.decode())()
        jobs.commit()
        (again,) = jobs.poll(LIMIT_S)
        assert (again.value, again.delivery_count) == (b"release", 2)
        with pytest.raises(AcknowledgementError, match="can no longer be accepted"):
            first[1].accept()
        again.accept()
        jobs.commit()
        assert jobs.poll(0.3) == []


def test_exception_releases_current_record_and_accepts_earlier_ones(brokers: Brokers, topic: str) -> None:
    def work() -> None:
        with consumer(brokers, topic) as jobs:
            brokers.send(topic, numbers(5), 2)
            for record in jobs:
                if record.value == b"3":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with consumer_of(brokers, topic) as jobs:
        left = polled(jobs, 2)
        assert sorted((record.value, record.delivery_count > 1) for record in left if record.value == b"3") == [
            (b"3", True)
        ]
        assert sorted(record.value for record in left) == [b"3", b"4"]


def consumer_of(brokers: Brokers, topic: str) -> ShareConsumer:
    """A further member of the group."""
    return ShareConsumer(brokers.servers, f"workers-{topic}", [topic], settings={"fetch.max.wait.ms": 50})


def test_broken_loop_accepts_delivered_records_and_releases_rest(brokers: Brokers, topic: str) -> None:
    with consumer(brokers, topic, max_poll_records=2) as jobs:
        brokers.send(topic, numbers(4), 0)
        for record in jobs:
            if record.value == b"1":
                break
    with consumer_of(brokers, topic) as jobs:
        left = polled(jobs, 2)
        assert sorted(record.value for record in left) == [b"2", b"3"]


def test_many_threads_may_work_on_records(brokers: Brokers, topic: str) -> None:
    done: Counter[bytes] = Counter()
    with consumer(brokers, topic, acknowledgement="explicit", max_poll_records=7) as jobs:
        brokers.send(topic, numbers(200))
        threads = []

        def work(record: Any) -> None:
            done[record.value] += 1
            record.accept()

        while len(threads) < 200:
            for record in jobs.poll(LIMIT_S):
                threads.append(threading.Thread(target=work, args=(record,)))
                threads[-1].start()
        for thread in threads:
            thread.join(30)
        jobs.commit()
    assert done == Counter(numbers(200))


def test_two_members_share_the_work(brokers: Brokers, topic: str) -> None:
    seen: Counter[bytes] = Counter()
    lock, stop = threading.Lock(), threading.Event()

    def work() -> None:
        with consumer_of(brokers, topic) as jobs:
            while not stop.is_set():
                for record in jobs.poll(0.1, max_records=5):
                    with lock:
                        seen[record.value] += 1

    with consumer(brokers, topic):
        pass
    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    brokers.send(topic, numbers(300))
    try:
        wait_for(lambda: len(seen) == 300)
    finally:
        stop.set()
        for worker in workers:
            worker.join(LIMIT_S)
    assert set(seen.values()) == {1}


def test_coroutines(brokers: Brokers, topic: str) -> None:
    async def work() -> list[bytes]:
        seen = []
        settings = {"fetch.max.wait.ms": 50}
        group = f"workers-{topic}"
        async with AsyncShareConsumer(
            brokers.servers, group, [topic], settings=settings, idle_timeout_s=LIMIT_S
        ) as jobs:
            async for record in jobs:
                seen.append(record.value)
                if len(seen) == 50:
                    break
            await jobs.commit()
            assert await jobs.poll(0.2) == []
        return seen

    with consumer(brokers, topic):
        pass
    brokers.send(topic, numbers(50))
    assert sorted(asyncio.run(work())) == sorted(numbers(50))


def test_cancelled_task_loses_no_record(brokers: Brokers, topic: str) -> None:
    async def work() -> list[Any]:
        settings = {"fetch.max.wait.ms": 50}
        async with AsyncShareConsumer(brokers.servers, f"workers-{topic}", [topic], settings=settings) as jobs:
            waiting = asyncio.ensure_future(jobs.poll(LIMIT_S))
            await asyncio.sleep(0.2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            brokers.send(topic, [b"job"])
            return await jobs.poll(LIMIT_S)

    with consumer(brokers, topic):
        pass
    assert [record.value for record in asyncio.run(work())] == [b"job"]


def test_missing_lock_renewal_is_named_in_the_error(brokers: Brokers, topic: str) -> None:
    with consumer(brokers, topic) as jobs:
        brokers.send(topic, [b"job"])
        (record,) = jobs.poll(LIMIT_S)
        with pytest.raises(UnsupportedVersionError, match=r"cannot renew locks: that needs Apache Kafka 4\.2"):
            record.renew()


def test_closed_consumer_says_so_and_closes_again(brokers: Brokers, topic: str) -> None:
    jobs = consumer(brokers, topic)
    jobs.close()
    jobs.close()
    with pytest.raises(KafkaClientError, match="is closed"):
        jobs.poll(0)
    assert list(jobs) == []


def test_closing_from_another_thread_ends_the_loop(brokers: Brokers, topic: str) -> None:
    jobs = consumer(brokers, topic)
    closing = threading.Timer(0.3, jobs.close)
    closing.start()
    assert list(jobs) == []
    closing.join(LIMIT_S)


def test_broker_without_share_groups_is_named() -> None:
    with (
        ScriptedBroker() as broker,
        ShareConsumer(broker.address, "workers", ["jobs"]) as jobs,
        pytest.raises(ShareGroupsUnsupportedError, match=f"{broker.address} serves no share groups: that needs Apache"),
    ):
        jobs.poll(LIMIT_S)


def test_address_without_broker_is_an_error_soon() -> None:
    settings = {"socket.connection.setup.timeout.ms": 400}
    with (
        ShareConsumer("127.0.0.1:1", "workers", ["jobs"], settings=settings) as jobs,
        pytest.raises(UnreachableError, match=r"No broker answers at 127\.0\.0\.1:1"),
    ):
        jobs.poll(LIMIT_S)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"acknowledgement": "auto"}, 'acknowledgement must be "implicit" or "explicit"'),
        ({"max_poll_records": 0}, "max_poll_records must be 1 or more"),
        ({"group": ""}, "needs the name of its group"),
        ({"topics": [""]}, "must be names"),
        ({"settings": {"auto.offset.reset": "earliest"}}, "does not know the setting 'auto.offset.reset'"),
    ],
)
def test_wrong_options_are_reported_before_the_start(options: dict[str, Any], sentence: str) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match=sentence):
        ShareConsumer(**{"servers": "localhost:9092", "group": "workers", "topics": ["jobs"]} | options)
    assert set(threading.enumerate()) <= before
