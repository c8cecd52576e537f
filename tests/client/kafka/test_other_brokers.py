"""Behaviour of other brokers that ours lacks: every version of Fetch and Produce, topic ids, torn batches, throttling."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.errors import (
    BrokerAnswerError,
    CorruptRecordError,
    KafkaClientError,
    TopicRecreatedError,
    UnsupportedVersionError,
)
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import fetch, produce
from protocol.kafka.records.batch import read_header
from protocol.kafka.records.records import build_batch
from tests.client.kafka.logs import values
from tests.client.kafka.scripted_broker import TOPIC, ScriptedBroker

PATIENCE = {
    "retry.backoff.ms": 1,
    "delivery.timeout.ms": 30_000,
    "default.api.timeout.ms": 3000,
    "request.timeout.ms": 3000,
}
VALUES: list[bytes | None] = [b"%d" % number + b"x" * 10 * number for number in range(20)]


def filled(broker: ScriptedBroker) -> ScriptedBroker:
    for value in VALUES:
        broker.append(build_batch([(None, value, [], 0)]))
    return broker


def cluster(broker: ScriptedBroker) -> Cluster:
    return Cluster(ClientConfig.from_properties({"bootstrap.servers": broker.address} | PATIENCE))


def read(client: Cluster, end: int = len(VALUES), **how: Any) -> Iterator[bytes | None]:
    with client.fetcher(TOPIC, 0, 0, end, **how) as fetcher:
        for fetched in fetcher:
            yield from values(fetched.data)


@pytest.mark.parametrize("version", range(fetch.CLIENT_MIN_VERSION, fetch.CLIENT_MAX_VERSION + 1))
def test_every_version_of_fetch(version: int) -> None:
    with filled(ScriptedBroker({ApiKey.FETCH: (version, version)})) as broker, cluster(broker) as client:
        assert VALUES == list(read(client, max_bytes=300))
        assert (ApiKey.FETCH, version) in broker.asked


def test_without_topic_ids_names_are_sent() -> None:
    versions = {ApiKey.FETCH: (4, 17), ApiKey.METADATA: (0, 9)}
    with filled(ScriptedBroker(versions)) as broker, cluster(broker) as client:
        assert VALUES == list(read(client))
        assert (ApiKey.FETCH, 12) in broker.asked


@pytest.mark.parametrize("version", range(produce.CLIENT_MIN_VERSION, produce.CLIENT_MAX_VERSION + 1))
def test_every_version_of_produce(version: int) -> None:
    with ScriptedBroker({ApiKey.PRODUCE: (version, version)}) as broker, cluster(broker) as client:
        with client.producer() as producer:
            for value in VALUES:
                producer.send(TOPIC, 0, build_batch([(None, value, [], 0)]), 1)
                producer.flush()
        assert VALUES == values(memoryview(broker.log))
        assert (5, 0, 0) == read_header(broker.log)[9:12]  # the producer, and its first sequence number


@pytest.mark.parametrize("in_flight", range(4))
def test_batches_for_old_leader_precede_new_leaders(in_flight: int) -> None:
    sent = [b"%d" % number for number in range(8)]
    with ScriptedBroker() as old, ScriptedBroker() as new, cluster(old) as client, client.producer() as producer:
        producer.send(TOPIC, 0, build_batch([(None, sent[0], [], 0)]), 1)
        producer.flush()
        old.hand_over_to(new)
        for value in sent[1 : 1 + in_flight]:
            producer.send(TOPIC, 0, build_batch([(None, value, [], 0)]), 1)
        client.topics([TOPIC])  # another caller learns of the new leader
        for value in sent[1 + in_flight :]:
            producer.send(TOPIC, 0, build_batch([(None, value, [], 0)]), 1)
        producer.flush()
        assert sent == values(memoryview(new.log))


class OutOfDate(ScriptedBroker):
    """Takes a broker that is gone to be the leader, in its first answers."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self._left = answers
        with ScriptedBroker() as self._gone:
            pass

    def metadata(self, request: Any) -> dict[str, Any]:
        self.leader = self._gone if self._left > 0 else self
        self._left -= 1
        return super().metadata(request)


@pytest.mark.parametrize("answers", range(4))
def test_leader_that_is_gone_is_asked_for_again(answers: int) -> None:
    with OutOfDate(answers) as broker, cluster(broker) as client, client.producer() as producer:
        producer.send(TOPIC, 0, build_batch([(None, b"0", [], 0)]), 1)
        producer.flush()
        assert [b"0"] == values(memoryview(broker.log))


def test_first_answer_in_older_version_is_read() -> None:
    with filled(ScriptedBroker({ApiKey.API_VERSIONS: (0, 2)})) as broker, cluster(broker) as client:
        assert VALUES == list(read(client))


def test_missing_common_version_names_both_sides() -> None:
    refused = pytest.raises(
        UnsupportedVersionError, match="serves versions 19 to 20 of FETCH, and this client needs one of 4 to 18"
    )
    with ScriptedBroker({ApiKey.FETCH: (19, 20)}) as broker, cluster(broker) as client, refused:
        list(read(client))


@pytest.mark.parametrize("max_bytes", [70, 100, 1000])
def test_torn_batches_come_again(max_bytes: int) -> None:
    """Also a batch larger than the requested bytes: then the client requests more."""
    with filled(ScriptedBroker(tears=True)) as broker, cluster(broker) as client:
        assert VALUES == list(read(client, max_bytes=max_bytes))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_topic_or_partition,
    ],
)
def test_temporary_error_is_retried(code: int) -> None:
    with filled(ScriptedBroker()) as broker, cluster(broker) as client:
        broker.script += [{}, {"error_code": code}, {"error_code": code}]
        assert VALUES == list(read(client, max_bytes=200))


def test_permanent_error_is_raised_with_its_name() -> None:
    with filled(ScriptedBroker()) as broker, cluster(broker) as client:
        broker.script += [{"error_code": ErrorCode.topic_authorization_failed}]
        with pytest.raises(BrokerAnswerError, match=r"topic-0 cannot be read: TOPIC_AUTHORIZATION_FAILED \(29\)"):
            list(read(client))


def test_temporarily_out_of_range_offset_is_retried() -> None:
    with filled(ScriptedBroker()) as broker, cluster(broker) as client:
        broker.script += [{"error_code": ErrorCode.offset_out_of_range}]
        assert VALUES == list(read(client))


def test_throttled_reader_waits_and_loses_nothing() -> None:
    with filled(ScriptedBroker()) as broker, cluster(broker) as client:
        broker.script += [{"throttle_time": 30}, {"throttle_time": 30, "records": b""}]
        assert VALUES == list(read(client, max_bytes=200))


def test_recreated_topic_is_not_read_on() -> None:
    with filled(ScriptedBroker({ApiKey.FETCH: (4, 17)})) as broker, cluster(broker) as client:
        broker.script += [{}, {"error_code": ErrorCode.unknown_topic_id}]
        fetcher = client.fetcher(TOPIC, 0, 0, len(VALUES), max_bytes=200)
        next(fetcher)
        broker.topic_id = UUID(int=8)
        with pytest.raises(TopicRecreatedError, match="'topic' was deleted and made again"):
            list(fetcher)
        fetcher.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\xff\xff\xff\xff",  # a length of -1
        b"\x7f\xff\xff\xff",  # of 2 GiB
        b"\x00\x00\x00\x04\x00\x00\x00\x63",  # to another request
        b"\x00\x00\x00\x40" + b"\xff" * 64,
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_nonsense_is_an_error_without_a_wait(nonsense: bytes) -> None:
    with filled(ScriptedBroker()) as broker, cluster(broker) as client:
        broker.script += [nonsense]
        with pytest.raises(KafkaClientError, match=r"The (broker at|answer of the broker at) 127\.0\.0\.1"):
            list(read(client))


@pytest.mark.parametrize("records", [bytes(61), b"\x00" * 8 + b"\x00\x00\x00\x40" + bytes(70)])
def test_invalid_records_are_an_error(records: bytes) -> None:
    with filled(ScriptedBroker()) as broker, cluster(broker) as client:
        broker.script += [{"records": records}]
        with pytest.raises(CorruptRecordError, match="topic-0 cannot be read from offset 0 on"):
            list(read(client))


def test_repeated_old_records_are_an_error() -> None:
    with filled(ScriptedBroker()) as broker, cluster(broker) as client:
        old = bytes(build_batch([(None, b"v", [], 0)]))
        broker.script += [{}, {"records": old}]
        with pytest.raises(CorruptRecordError, match="up to offset 1 where those from"):
            list(read(client, max_bytes=200))
