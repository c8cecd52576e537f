"""The share consumer with this project's broker: locks and their renewal, strict counts, crashes of either side, and
clear errors."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client import AcknowledgementError, Broker, ShareConsumer, ShareRecord
from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.admin.configs import GROUP, alter_configs
from broker.client.kafka.errors import AuthenticationError, BrokerAnswerError, KafkaClientError
from broker.client.kafka.share.record import ShareGroupsUnsupportedError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from tests.client.kafka.share.jobs import LIMIT_S, numbers, polled
from tests.process.broker_process import BrokerProcess
from tests.waiting import wait_for

LOCK_S = 1.0
SHORT = {"share.record.lock.duration.ms": "1000"}
_names = itertools.count()


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    settings: dict[str, Any] = {
        "group_share_min_record_lock_duration_ms": 1000,
        "group_share_min_heartbeat_interval_ms": 100,
    }
    with Broker(**settings) as broker:
        yield broker


class Queue:
    """A topic of one partition, and a group of the same name that begins at its first record."""

    def __init__(self, running: Broker, **settings: str) -> None:
        self.name = f"jobs-{next(_names)}"
        self.servers = running.bootstrap_servers
        running.server.kafka.logs.create_topic(self.name, 1, {})
        self.configure(
            {
                "share.auto.offset.reset": "earliest",
                "share.heartbeat.interval.ms": "100",
            }
            | settings
        )

    def configure(self, settings: dict[str, str]) -> None:
        with Cluster(ClientConfig.from_properties({"bootstrap.servers": self.servers})) as cluster:
            answer = alter_configs(cluster.routing, {(GROUP, self.name): settings})[GROUP, self.name]
            assert answer.code == 0, answer

    def send(self, *values: bytes) -> None:
        """Send them in one batch."""
        with Cluster(ClientConfig.from_properties({"bootstrap.servers": self.servers})) as cluster:
            cluster.make_topics([self.name])
            producer = cluster.producer()
            producer.send(self.name, 0, build_batch([(None, value, [], 0) for value in values]), len(values))
            producer.flush()
            producer.close()

    def consumer(self, **options: Any) -> ShareConsumer:
        return ShareConsumer(self.servers, self.name, [self.name], **options)


def test_batch_of_many_records_comes_one_by_one(running: Broker) -> None:
    jobs = Queue(running)
    jobs.send(*numbers(50))
    with jobs.consumer() as fast, jobs.consumer() as other:
        seen: list[ShareRecord] = []
        while len(seen) < 50:
            for consumer in (fast, other):
                got = consumer.poll(0.5, max_records=1)
                assert len(got) <= 1
                seen += got
    assert sorted(record.offset for record in seen) == list(range(50))


def test_slow_loop_leaves_records_for_others(running: Broker) -> None:
    jobs = Queue(running)
    jobs.send(*numbers(10))
    with jobs.consumer() as slow, jobs.consumer() as other:
        for record in slow:
            assert record.offset == 0  # the first consumer has only this record
            rest = polled(other, 9)
            break
        assert [record.offset for record in rest] == list(range(1, 10))


def test_expired_record_goes_to_another_consumer(running: Broker) -> None:
    jobs = Queue(running, **SHORT)
    jobs.send(b"job")
    heard: list[tuple[list[int], KafkaClientError | None]] = []
    with jobs.consumer(acknowledgement="explicit", on_acknowledged=lambda _t, _p, *what: heard.append(what)) as hanging:
        (record,) = hanging.poll(LIMIT_S)
        record.acquired.expires_at += LIMIT_S  # it does not notice by itself
        with jobs.consumer(renew_while_processing=True) as other:
            (again,) = other.poll(LIMIT_S)
            assert (again.value, again.delivery_count) == (b"job", 2)
            record.accept()
            with pytest.raises(AcknowledgementError, match=r"1 acknowledgements of .* INVALID_RECORD_STATE") as raised:
                hanging.commit()
            other.commit()
    assert raised.value.offsets == {(jobs.name, 0): [0]}
    ((offsets, told),) = heard
    assert offsets == [0]
    assert isinstance(told, AcknowledgementError)


def test_consumer_forgets_record_long_after_its_lock(running: Broker) -> None:
    jobs = Queue(running, **SHORT)
    jobs.send(b"job")
    with jobs.consumer(acknowledgement="explicit") as hanging, jobs.consumer(renew_while_processing=True) as other:
        (record,) = hanging.poll(LIMIT_S)
        assert len(other.poll(LIMIT_S)) == 1
        threading.Event().wait(2 * LOCK_S)
        assert hanging.poll(0.1) == []
        with pytest.raises(AcknowledgementError, match="its lock is over") as raised:
            record.accept()
        assert raised.value.offsets == {(jobs.name, 0): [0]}
        other.commit()


@pytest.mark.parametrize("automatic", [True, False])
def test_renewed_locks_last(running: Broker, automatic: bool) -> None:
    jobs = Queue(running, **SHORT)
    jobs.send(b"long", b"short")
    clock = threading.Event()
    with jobs.consumer(acknowledgement="explicit", renew_while_processing=automatic) as working:
        records = polled(working, 2)
        until = [record.acquired.expires_at for record in records]
        with jobs.consumer() as other:
            for _ in range(12):  # three times as long as a lock lasts
                clock.wait(LOCK_S / 4)
                if not automatic:
                    for record in records:
                        record.renew()
                assert other.poll(0) == []
            for record in records:
                record.accept()
            working.commit()
            assert other.poll(0.2) == []
        assert [record.acquired.expires_at > before for record, before in zip(records, until, strict=True)] == [
            True
        ] * 2


def test_record_without_acceptance_ends_at_delivery_limit(running: Broker) -> None:
    jobs = Queue(running, **{"share.delivery.count.limit": "3"})
    jobs.send(b"poison")
    counts = []
    with jobs.consumer(idle_timeout_s=0.5) as consumer:
        for record in consumer:
            counts.append(record.delivery_count)
            record.release()
    assert counts == [1, 2, 3]


def test_consumer_continues_after_broker_is_killed_and_restarted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        jobs = Queue.__new__(Queue)
        jobs.name, jobs.servers = "jobs", broker.address
        jobs.configure({"share.auto.offset.reset": "earliest"})
        jobs.send(*numbers(3))
        with jobs.consumer(settings={"retry.backoff.max.ms": 100}) as consumer:
            polled(consumer, 3)
            consumer.commit()
            broker.kill()
            broker.start()
            jobs.send(b"after")
            assert [record.value for record in consumer.poll(LIMIT_S)] == [b"after"]
        assert broker.stop() == 0


def test_topics_can_change_and_may_be_created_later(running: Broker) -> None:
    jobs = Queue(running)
    jobs.send(b"first")
    with jobs.consumer() as consumer:
        assert [record.value for record in consumer.poll(LIMIT_S)] == [b"first"]
        later = f"{jobs.name}-later"
        consumer.subscribe([later])
        assert consumer.subscription == {later}
        running.server.kafka.logs.create_topic(later, 1, {})
        more = Queue.__new__(Queue)
        more.name, more.servers = later, jobs.servers
        more.send(b"later")
        assert [record.value for record in consumer.poll(LIMIT_S)] == [b"later"]


def test_group_of_another_kind_is_named(running: Broker) -> None:
    from confluent_kafka import Consumer

    jobs = Queue(running)
    # Not kafka-python: with 3.0.12, now and then `poll(timeout_ms=100)` does not come back while it looks for the coordinator.
    member = Consumer({"bootstrap.servers": jobs.servers, "group.id": jobs.name})
    try:
        member.subscribe([jobs.name])
        wait_for(lambda: member.poll(0.1) is None and bool(member.assignment()))
        with (
            jobs.consumer() as consumer,
            pytest.raises(BrokerAnswerError, match=f"group '{jobs.name}' is not a share group"),
        ):
            consumer.poll(LIMIT_S)
    finally:
        member.close()


def test_disabled_share_groups_are_named_in_the_error(running: Broker) -> None:
    with Broker() as broker:
        with Cluster(ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap_servers})) as cluster:
            off = {"feature": "share.version", "max_version_level": 0, "upgrade_type": 2}
            connection = cluster.routing.any_connection()
            answer = connection.ask(ApiKey.UPDATE_FEATURES, 1, {"feature_updates": [off], "timeout": 1000})
            assert answer.error_code == 0
        with ShareConsumer(broker.bootstrap_servers, "workers", ["jobs"]) as jobs:
            sentence = r"has share groups switched off: .* set the cluster's feature share\.version to 1"
            with pytest.raises(ShareGroupsUnsupportedError, match=sentence):
                jobs.poll(LIMIT_S)


def test_worker_keeps_its_record_while_it_polls(running: Broker) -> None:
    jobs = Queue(running)
    jobs.send(b"one")
    with jobs.consumer(acknowledgement="explicit") as consumer:
        (one,) = consumer.poll(LIMIT_S)
        jobs.send(b"two")
        (two,) = consumer.poll(LIMIT_S)
        one.accept()
        two.accept()
        consumer.commit()
    with jobs.consumer() as other:
        assert other.poll(0.5) == []


def test_explicit_consumer_returns_undecided_records(running: Broker) -> None:
    jobs = Queue(running)
    jobs.send(b"job")
    with jobs.consumer(acknowledgement="explicit") as consumer:
        assert len(consumer.poll(LIMIT_S)) == 1
    with jobs.consumer() as other:
        assert len(other.poll(LIMIT_S)) == 1


def test_wrong_password_is_an_error_of_next_call(running: Broker) -> None:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": "b",
    }
    with (
        Queue(running).consumer(settings=settings) as consumer,
        pytest.raises(AuthenticationError, match="takes no logins"),
    ):
        consumer.poll(LIMIT_S)


def test_slowing_loop_sends_finished_decisions_in_time(running: Broker) -> None:
    jobs = Queue(running)
    jobs.send(*numbers(40))
    acknowledged: list[int] = []
    clock = threading.Event()
    with jobs.consumer(on_acknowledged=lambda _t, _p, offsets, _error: acknowledged.extend(offsets)) as consumer:
        for record in consumer:
            if record.offset == 20:  # usually in a fetch of 16 records
                clock.wait(1.1)
            if record.offset == 21:
                assert acknowledged == list(range(21))
                break


def test_closing_tells_the_group_despite_pending_heartbeat(running: Broker) -> None:
    jobs = Queue(running)
    for _ in range(5):
        with jobs.consumer():
            pass  # perhaps it has not even joined
    with jobs.consumer() as consumer:
        jobs.send(b"job")
        assert len(consumer.poll(LIMIT_S)) == 1
        with Cluster(ClientConfig.from_properties({"bootstrap.servers": jobs.servers})) as cluster:
            connection = cluster.routing.any_connection()
            fields = {"group_ids": [jobs.name], "include_authorized_operations": False}
            (group,) = connection.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, fields).groups
            assert [member.member_id for member in group.members] == [consumer.member_id]
