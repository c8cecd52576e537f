"""A wall clock that jumps: libfaketime (Debian's `faketime`) tells the broker another time than it is."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.clients.librdkafka import consume, settings
from tests.process.broker_process import BrokerProcess

LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/local/lib/faketime/libfaketimeMT.so.1")


class Clock:
    """What the broker takes for the time: so many seconds from the real one."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.jump(0)

    def jump(self, seconds: int) -> None:
        self.file.write_text(f"{seconds:+d}")


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def broker(tmp_path: Path, clock: Clock) -> Iterator[BrokerProcess]:
    found = [path for pattern in LIBRARIES for path in Path("/").glob(pattern.removeprefix("/"))]
    if not found:
        pytest.skip("libfaketime is not installed (Debian's package faketime)")
    environment = {
        "LD_PRELOAD": str(found[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock.file),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",  # as on a real machine: only the wall clock jumps
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with BrokerProcess(tmp_path, "log_retention_check_interval_ms=100", environment=environment) as broker:
        yield broker


DAY = 86_400


def write(servers: str, value: bytes) -> KafkaError | None:
    """What became of it."""
    errors: list[KafkaError | None] = []
    producer = Producer(settings(servers, enable_idempotence=True))
    producer.produce("topic", value, on_delivery=lambda error, _message: errors.append(error))
    assert 0 == producer.flush(30)
    return errors[0]


# A minute back, within what a producer's clock may be ahead; and farther ahead than any time-out there is.
@pytest.mark.parametrize("seconds", [-60, 6 * DAY])
def test_a_clock_that_jumps_disturbs_nobody(seconds: int, broker: BrokerProcess, clock: Clock) -> None:
    servers = broker.address
    heartbeat = {"heartbeat_interval_ms": 100, "session_timeout_ms": 6000}
    consumer = Consumer(settings(servers, group_id="group", auto_offset_reset="earliest", **heartbeat))
    rebalances: list[int] = []
    assert write(servers, b"before") is None
    consumer.subscribe(["topic"], on_assign=lambda _consumer, partitions: rebalances.append(len(partitions)))
    assert [b"before"] == [message.value() for message in consume(consumer, 1)]
    clock.jump(seconds)
    assert write(servers, b"after") is None
    (message,) = consume(consumer, 1)
    assert (b"after", 1) == (message.value(), message.offset())
    consumer.commit(asynchronous=False)
    (found,) = consumer.committed([TopicPartition("topic", 0)], 30)
    assert 2 == found.offset
    assert [1] == rebalances, "the group took the jump for time that had passed"
    consumer.close()
    assert 0 == broker.stop()
    assert [] == broker.errors


def test_far_future_records_are_refused_until_clock_agrees(broker: BrokerProcess, clock: Clock) -> None:
    assert write(broker.address, b"before") is None
    clock.jump(-DAY)
    # Kafka's message.timestamp.after.max.ms is an hour.
    refused = write(broker.address, b"a day ahead")
    assert refused is not None
    assert KafkaError.INVALID_TIMESTAMP == refused.code()
    clock.jump(0)
    assert write(broker.address, b"after") is None
    assert 0 == broker.stop()


def test_timestamps_of_the_broker_follow_its_clock(broker: BrokerProcess, clock: Clock) -> None:
    servers = broker.address
    topic = NewTopic("topic", 1, 1, config={"message.timestamp.type": "LogAppendTime"})
    admin = AdminClient(settings(servers))
    admin.create_topics([topic])["topic"].result(30)
    assert write(servers, b"now") is None
    clock.jump(-DAY)
    assert write(servers, b"a day ago") is None
    consumer = Consumer(settings(servers, group_id="group"))
    consumer.assign([TopicPartition("topic", 0, 0)])
    now, before = [message.timestamp()[1] / 1000 for message in consume(consumer, 2)]
    assert abs(time.time() - now) < DAY / 2
    assert DAY / 2 < time.time() - before < 2 * DAY
    consumer.close()
    assert 0 == broker.stop()
