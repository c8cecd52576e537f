from random import Random
from typing import Any

import pytest

from broker.client import Broker
from broker.client.kafka import Cluster, Identity
from broker.client.kafka.errors import (
    BrokerAnswerError,
    KafkaClientError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionError,
    UnknownTopicError,
)
from broker.errors import ConfigError
from protocol.kafka.messages import produce
from protocol.kafka.records.batch import BatchHeader, batches
from protocol.kafka.records.records import build_batch
from tests.client.kafka.conftest import config
from tests.client.kafka.logs import values


def batch(*records: bytes) -> tuple[bytearray, int]:
    return build_batch([(None, record, [], 0) for record in records]), len(records)


def everything(
    cluster: Cluster, topic: str, partition: int = 0, isolation: str = "read_committed"
) -> list[bytes | None]:
    """Values in order. Aborted records are left out as a consumer does: by the listed producers."""
    end = cluster.offsets({(topic, partition): -1}, isolation)[topic, partition]
    assert end is not None
    read: list[bytes | None] = []
    with cluster.fetcher(topic, partition, 0, end, isolation=isolation) as fetcher:
        for fetched in fetcher:
            read += values(fetched.data, fetched.aborted)
    return read


@pytest.mark.parametrize("acks", ["all", "1"])
def test_flushed_records_are_stored_in_order(cluster: Cluster, topic: str, acks: str) -> None:
    cluster.topics([topic])
    with cluster.producer(acks=acks) as producer:
        for number in range(30):
            producer.send(topic, number % 2, *batch(b"%d" % number))
        producer.flush()
    assert [b"%d" % number for number in range(0, 30, 2)] == everything(cluster, topic, 0)
    assert [b"%d" % number for number in range(1, 30, 2)] == everything(cluster, topic, 1)


def test_unacknowledged_records_are_stored_soon(cluster: Cluster, topic: str) -> None:
    with cluster.producer(acks="0") as producer:
        producer.send(topic, 0, *batch(b"a"))
        producer.flush()
        with cluster.fetcher(topic, 0, 0, 1, max_wait_ms=10_000) as fetcher:
            assert [b"a"] == values(next(fetcher).data)


def test_large_batches_go_one_per_request(cluster: Cluster, topic: str) -> None:
    records = [bytes([number]) * 700_000 for number in range(12)]
    with cluster.producer() as producer:
        for record in records:
            producer.send(topic, 0, *batch(record))
        producer.flush()
    assert records == everything(cluster, topic)


@pytest.mark.parametrize(("request_size", "expected"), [(1 << 20, [1] * 6), (4 << 20, [3, 3])])
def test_full_batches_share_requests_with_room(
    running: Broker, monkeypatch: pytest.MonkeyPatch, request_size: int, expected: list[int]
) -> None:
    topic = f"shared-{request_size}"
    running.server.kafka.logs.create_topic(topic, 6, {})
    sent: list[int] = []
    original = produce.request_parts

    def counting(*fields: Any) -> Any:
        sent.append(len(fields[-1]))
        return original(*fields)

    monkeypatch.setattr(produce, "request_parts", counting)
    with Cluster(config(running, max_request_size=request_size)) as cluster, cluster.producer() as producer:
        for partition in range(6):
            producer.send(topic, partition, build_batch([(None, bytes(900_000), [], 0)]), 1)
        producer.flush()
        assert expected == sent
        assert [[bytes(900_000)]] * 6 == [everything(cluster, topic, partition) for partition in range(6)]


def headers_of(cluster: Cluster, topic: str, partition: int = 0) -> list[BatchHeader]:
    """The headers of all batches in the log."""
    end = cluster.offsets({(topic, partition): -1})[topic, partition]
    with cluster.fetcher(topic, partition, 0, end) as fetcher:
        return [header for fetched in fetcher for _, header in batches(fetched.data)]


@pytest.mark.parametrize("compression", [0, 4])
@pytest.mark.parametrize("idempotent", [True, False])
def test_batches_above_topic_limit_are_split(
    running: Broker, cluster: Cluster, compression: int, idempotent: bool
) -> None:
    topic = f"small-{compression}-{idempotent}"
    running.server.kafka.logs.create_topic(topic, 2, {"max.message.bytes": "1000"})
    random = Random(7)
    records = [random.randbytes(random.choice([10, 90, 700])) for _ in range(200)]
    with cluster.producer(idempotent=idempotent) as producer:
        for first in range(0, len(records), 20):  # several are in flight at once, to both partitions
            for partition in (0, 1):
                these = [
                    (None, record, [("h", b"v")], first + n) for n, record in enumerate(records[first : first + 20])
                ]
                producer.send(topic, partition, build_batch(these, compression=compression), len(these))
        producer.flush()
        assert 256 < producer.largest(topic) < 1000
    for partition in (0, 1):
        assert records == everything(cluster, topic, partition)
        headers = headers_of(cluster, topic, partition)
        assert 1000 >= max(header.size for header in headers)
        if idempotent:
            assert [header.base_offset for header in headers] == [header.base_sequence for header in headers]


def test_transaction_with_split_batches_is_whole(running: Broker, cluster: Cluster) -> None:
    running.server.kafka.logs.create_topic("small-txn", 1, {"max.message.bytes": "1000"})
    records = [b"%d" % number + b"x" * 300 for number in range(40)]
    with cluster.producer(transactional_id="small-txn") as producer:
        for commit in (True, False, True):
            producer.begin()
            for first in range(0, len(records), 10):
                producer.send("small-txn", 0, *batch(*records[first : first + 10]))
            if commit:
                producer.commit()
            else:
                producer.abort()
    assert 2 * records == everything(cluster, "small-txn")


def test_record_above_topic_limit_is_one_sentence(running: Broker, cluster: Cluster) -> None:
    running.server.kafka.logs.create_topic("small", 1, {"max.message.bytes": "1000"})
    with cluster.producer() as producer:
        producer.send("small", 0, *batch(b"x", b"x" * 2000, b"y"))
        with pytest.raises(
            RecordTooLargeError, match=r"A record for small-0 takes 20\d\d bytes, .* max.message.bytes"
        ) as first:
            producer.flush()
        with pytest.raises(RecordTooLargeError) as again:
            producer.send("small", 0, *batch(b"y"))
        assert first.value is again.value
    assert [b"x"] == everything(cluster, "small")  # the record before it


def test_refusal_of_partition_keeps_others_of_request(running: Broker, cluster: Cluster) -> None:
    running.server.kafka.logs.create_topic("keyed", 4, {"cleanup.policy": "compact"})
    with cluster.producer() as producer:
        for partition, key in enumerate([b"k", None, b"k", None]):
            producer.send("keyed", partition, build_batch([(key, b"v", [], 0)]), 1)
        with pytest.raises(BrokerAnswerError, match="keyed-1 cannot be written"):
            producer.flush()
        assert {("keyed", 0): 1, ("keyed", 2): 1} == producer.acknowledged
        assert ("keyed", 1) == producer.refused
    assert [[b"v"], [], [b"v"], []] == [everything(cluster, "keyed", partition) for partition in range(4)]


@pytest.mark.parametrize("idempotent", [True, False])
def test_refusal_of_partition_keeps_other_requests(running: Broker, idempotent: bool) -> None:
    topic = f"keyed-{idempotent}"
    running.server.kafka.logs.create_topic(topic, 3, {"cleanup.policy": "compact"})

    def send(partition: int, key: bytes | None) -> None:
        producer.send(topic, partition, build_batch([(key, b"v", [], 0)]), 1)

    # Each batch fills a request.
    with (
        Cluster(config(running, max_request_size=100)) as cluster,
        cluster.producer(idempotent=idempotent) as producer,
    ):
        for partition in range(3):
            send(partition, b"k")
        producer.flush()
        send(0, None)
        send(0, b"k")
        send(1, b"k")
        send(2, b"k")
        with pytest.raises(BrokerAnswerError, match=f"{topic}-0 cannot be written"):
            producer.flush()
        # Of partition 0 the first records, without the record after the refused one, which is written without idempotence.
        assert {(topic, 0): 1, (topic, 1): 2, (topic, 2): 2} == producer.acknowledged
        assert [1 if idempotent else 2, 2, 2] == [len(everything(cluster, topic, partition)) for partition in range(3)]


def test_unreadable_too_large_batch_fails_the_producer(running: Broker, cluster: Cluster) -> None:
    """Its error is final, like any other: the next flush must not forget the unwritten records."""
    running.server.kafka.logs.create_topic("small-garbage", 1, {"max.message.bytes": "1000"})
    data, count = batch(*[b"x" * 600] * 4)
    data[-1300:] = bytes(1300)  # the producer makes the checksum anew
    with cluster.producer() as producer:
        producer.send("small-garbage", 0, data, count)
        for _ in range(2):
            with pytest.raises(RecordTooLargeError, match="cannot be split"):
                producer.flush()


def test_batch_above_client_limit_is_split_before_sending(running: Broker, topic: str) -> None:
    records = [b"%d" % number + b"x" * 300 for number in range(40)]
    with Cluster(config(running, max_request_size=1000, batch_size=1000)) as cluster, cluster.producer() as producer:
        producer.send(topic, 0, *batch(*records))
        producer.flush()
        assert records == everything(cluster, topic)
        assert 1000 >= max(header.size for header in headers_of(cluster, topic))


def test_record_above_client_limit_is_named(running: Broker, topic: str) -> None:
    settings = config(running, max_request_size=1000, batch_size=1000)
    too_large = pytest.raises(RecordTooLargeError, match=r"more than max.request.size=1000")
    with Cluster(settings) as cluster, cluster.producer() as producer, too_large:
        producer.send(topic, 0, *batch(b"x" * 1000))


def test_missing_topic_is_an_error(cluster: Cluster) -> None:
    with cluster.producer() as producer, pytest.raises(UnknownTopicError, match="no topic 'nowhere'"):
        producer.send("nowhere", 0, *batch(b"a"))


def test_idempotence_needs_all_acknowledgements(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"enable.idempotence=true needs acks=all, not acks=1"):
        cluster.producer(acks="1", idempotent=True)
    with pytest.raises(ConfigError, match=r"transactional.id needs acks=all"):
        cluster.producer(acks="0", transactional_id="t")


# Transactions -----------------------------------------------------------------------------------------------------------


def test_transaction_is_visible_after_commit(cluster: Cluster, topic: str) -> None:
    with cluster.producer(transactional_id=f"{topic}-writer") as producer:
        producer.begin()
        producer.send(topic, 0, *batch(b"a"))
        producer.send(topic, 1, *batch(b"b"))
        producer.flush()
        assert [] == everything(cluster, topic)
        assert [b"a"] == everything(cluster, topic, isolation="read_uncommitted")
        producer.commit()
        assert [b"a"] == everything(cluster, topic, 0)
        assert [b"b"] == everything(cluster, topic, 1)


def test_aborted_transaction_is_invisible_and_next_is_visible(cluster: Cluster, topic: str) -> None:
    with cluster.producer(transactional_id=f"{topic}-writer") as producer:
        for number in range(6):
            producer.begin()
            producer.send(topic, 0, *batch(b"%d" % number))
            if number % 2:
                producer.abort()
            else:
                producer.commit()
    assert [b"0", b"2", b"4"] == everything(cluster, topic)


def test_offsets_are_committed_with_records_or_not(cluster: Cluster, topic: str) -> None:
    with cluster.producer(transactional_id=f"{topic}-writer") as producer:
        for number in range(2):
            producer.begin()
            producer.commit_offsets(f"{topic}-group", {(topic, 0): 10 + number})
            if number:
                producer.abort()
            else:
                producer.commit()
    assert {(topic, 0): 10} == {
        key: commit.offset for key, commit in cluster.committed(f"{topic}-group", stable=True).items()
    }


def test_empty_transaction_is_no_error(cluster: Cluster, topic: str) -> None:
    with cluster.producer(transactional_id=f"{topic}-writer") as producer:
        producer.begin()
        producer.commit()
        producer.begin()
        producer.abort()


def test_newer_producer_fences_older_producer(cluster: Cluster, topic: str) -> None:
    with (
        cluster.producer(transactional_id=f"{topic}-writer") as older,
        cluster.producer(transactional_id=f"{topic}-writer") as newer,
    ):
        older.begin()
        older.send(topic, 0, *batch(b"old"))
        older.flush()
        newer.begin()
        newer.send(topic, 0, *batch(b"new"))
        newer.commit()
        for late in (older.commit, older.abort, older.begin):
            with pytest.raises(ProducerFencedError, match=f"{topic}-writer"):
                late()
        newer.begin()
        newer.send(topic, 0, *batch(b"newer"))
        newer.commit()
    assert [b"new", b"newer"] == everything(cluster, topic)


def test_calls_in_wrong_states_are_refused(cluster: Cluster, topic: str) -> None:
    with cluster.producer(transactional_id=f"{topic}-writer") as producer:
        for wrong in (producer.commit, producer.abort, lambda: producer.send(topic, 0, *batch(b"a"))):
            with pytest.raises(TransactionError):
                wrong()
        producer.begin()
        with pytest.raises(TransactionError, match="is open already"):
            producer.begin()
    with cluster.producer() as plain, pytest.raises(TransactionError, match="without a transactional id"):
        plain.begin()


def test_timeout_above_broker_limit_names_the_setting(cluster: Cluster, topic: str) -> None:
    producer = cluster.producer(transactional_id=f"{topic}-writer", transaction_timeout_ms=2**31 - 1)
    with pytest.raises(ConfigError, match=r"transaction.max.timeout.ms"):
        producer.begin()


# Several producers, a joint decision-------------------------------------------------------------------------------------


def members_of(cluster: Cluster, topic: str, count: int) -> list[Identity]:
    """Producers that have each written a record and left their transactions open."""
    members = []
    for number in range(count):
        with cluster.producer(transactional_id=f"{topic}-member-{number}") as producer:
            producer.begin()
            producer.send(topic, 0, *batch(b"%d" % number))
            members.append(producer.hand_over())
    return members


@pytest.mark.parametrize("committed", [True, False])
def test_transactions_end_together(cluster: Cluster, topic: str, committed: bool) -> None:
    members = members_of(cluster, topic, 3)
    with cluster.producer(transactional_id=f"{topic}-leader") as leader:
        leader.begin()
        leader.commit_offsets(f"{topic}-group", {(topic, 0): 7})
        cluster.end_together(leader, members, committed=committed)
    assert ([b"0", b"1", b"2"] if committed else []) == everything(cluster, topic)
    assert ({(topic, 0)} if committed else set()) == cluster.committed(f"{topic}-group", stable=True).keys()


def test_fenced_member_prevents_the_joint_commit(cluster: Cluster, topic: str) -> None:
    members = members_of(cluster, topic, 3)
    cluster.abort_transaction(members[1].transactional_id)
    with cluster.producer(transactional_id=f"{topic}-leader") as leader:
        leader.begin()
        with pytest.raises(ProducerFencedError, match=f"{topic}-member-1"):
            cluster.end_together(leader, members)
    for name in {transaction.transactional_id for transaction in cluster.list_transactions(f"{topic}-member-")}:
        cluster.abort_transaction(name)
    assert [] == everything(cluster, topic)


def test_open_transactions_are_found_by_prefix(cluster: Cluster, topic: str) -> None:
    members = members_of(cluster, topic, 2)
    listed = cluster.list_transactions(f"{topic}-member-")
    expected = [(member.transactional_id, member.producer_id, "Ongoing") for member in members]
    assert expected == [
        (transaction.transactional_id, transaction.producer_id, transaction.state) for transaction in listed
    ]
    for transaction in listed:
        cluster.abort_transaction(transaction.transactional_id)
    assert [] == cluster.list_transactions(f"{topic}-member-")


def test_errors_go_through_pickle() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(RecordTooLargeError("too large", 10)))
    assert (RecordTooLargeError, "too large", 10) == (type(error), str(error), error.code)
    assert isinstance(error, KafkaClientError)
