"""Transactions version 2 (KIP-890) over a socket: implicit additions, a new epoch with each end, and both kinds of clients."""

import itertools
import threading
from typing import Any

import pytest

from broker.kafka.transactions.transaction import LAST_EPOCH
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from tests.kafka.handlers.group_client import new_group
from tests.kafka.handlers.kafka_client import Beside, Kafka
from tests.kafka.handlers.txn_client import (
    Me,
    add_offsets,
    add_partitions,
    begin,
    commit_offsets,
    end,
    end_and_bump,
    fetch,
    fields,
    write,
)

UNCOMMITTED, COMMITTED = 0, 1
V2 = 12  # of Produce


def stable(kafka: Kafka, topic: str) -> int:
    return fetch(kafka, topic, COMMITTED)[2]


def produce(kafka: Kafka, *batches: tuple[Me, str, int], transactional_id: str, acks: int = -1) -> list[int]:
    """A request of one batch for each of these (producer, topic, partition); the error codes."""
    data = []
    for me, topic, partition in batches:
        batch = build_batch(
            [(None, b"v", [], kafka.inside.clock.time_ms())],
            producer_id=me.producer_id,
            producer_epoch=me.epoch,
            base_sequence=0,
            attributes=TRANSACTIONAL,
        )
        data.append({"name": topic, "partition_data": [{"index": partition, "records": bytes(batch)}]})
    request = {"transactional_id": transactional_id, "acks": acks, "timeout": 1000, "topic_data": data}
    answer = kafka.ask(ApiKey.PRODUCE, V2, **request)
    found = {
        (topic.name, response.index): int(response.error_code)
        for topic in answer.responses
        for response in topic.partition_responses
    }
    return [found[topic, partition] for _, topic, partition in batches]


def end_error(kafka: Kafka, me: Me, commit: bool) -> ErrorCode:
    answer = kafka.ask(ApiKey.END_TXN, 5, **fields(me), committed=commit)
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
    error: ErrorCode = answer.error_code
    return error


def test_first_batch_adds_partition_and_end_bumps_epoch(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    for commit in (True, False, True):
        before = fetch(kafka, topic, UNCOMMITTED)[1]
        assert [write(kafka, me, topic, sequence=n, version=V2) for n in range(3)] == [ErrorCode.none] * 3
        assert stable(kafka, topic) == before
        after = end_and_bump(kafka, me, commit)
        assert after == me._replace(epoch=me.epoch + 1)
        assert stable(kafka, topic) == before + 4
        me = after


@pytest.mark.parametrize("commit", [True, False])
def test_repeated_end_gets_the_same_answer(kafka: Kafka, commit: bool) -> None:
    topic, me = kafka.topic(), begin(kafka)
    write(kafka, me, topic, version=V2)
    after = end_and_bump(kafka, me, commit)
    assert end_and_bump(kafka, me, commit) == after
    other = ErrorCode.invalid_txn_state if commit else ErrorCode.producer_fenced
    assert end_error(kafka, me, not commit) == other
    write(kafka, after, topic, version=V2)
    assert end_error(kafka, me, commit) == ErrorCode.producer_fenced
    assert end_and_bump(kafka, after).epoch == after.epoch + 1


def test_late_batch_is_fenced_in_every_partition(kafka: Kafka) -> None:
    topic, elsewhere, me = kafka.topic(), kafka.topic(), begin(kafka)
    write(kafka, me, topic, version=V2)
    after = end_and_bump(kafka, me)
    write(kafka, after, elsewhere, version=V2)  # the next transaction
    for where, version in itertools.product((topic, elsewhere), (9, 11, V2)):
        assert write(kafka, me, where, sequence=1, version=version) == ErrorCode.invalid_producer_epoch
    end_and_bump(kafka, after)
    assert fetch(kafka, topic, UNCOMMITTED)[1] == 2
    assert fetch(kafka, elsewhere, UNCOMMITTED)[1] == 2


def test_empty_abort_fences_late_batches(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    for _ in range(3):
        after = end_and_bump(kafka, me, False)
        assert after.epoch == me.epoch + 1
        assert write(kafka, me, topic, version=V2) == ErrorCode.invalid_producer_epoch
        me = after
    assert fetch(kafka, topic, UNCOMMITTED)[1] == 0


def test_commit_overtaking_its_first_batch_is_retried_once(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    assert end_error(kafka, me, True) == ErrorCode.concurrent_transactions
    write(kafka, me, topic, version=V2)
    me = end_and_bump(kafka, me)
    assert stable(kafka, topic) == 2
    assert end_error(kafka, me, True) == ErrorCode.concurrent_transactions
    assert end_error(kafka, me, True) == ErrorCode.invalid_txn_state


def test_a_namesake_made_anew_takes_no_later_batch(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    assert write(kafka, me, topic, version=V2) == ErrorCode.none
    kafka.inside.logs.delete_topic(topic)
    kafka.inside.logs.create_topic(topic, 1)
    for sequence in (1, 2):
        assert write(kafka, me, topic, sequence=sequence, version=V2) == ErrorCode.out_of_order_sequence_number
    assert fetch(kafka, topic, UNCOMMITTED)[1] == 0
    after = end_and_bump(kafka, me, False)
    assert write(kafka, after, topic, version=V2) == ErrorCode.none
    end_and_bump(kafka, after)


def test_batch_waits_for_the_refused_first_batch(kafka: Kafka) -> None:
    topic, me = kafka.topic(max_message_bytes="200"), begin(kafka)
    large = write(kafka, me, topic, b"v" * 300, version=V2)
    late = write(kafka, me, topic, sequence=1, version=V2)
    assert (large, late) == (ErrorCode.message_too_large, ErrorCode.out_of_order_sequence_number)
    assert [write(kafka, me, topic, sequence=n, version=V2) for n in (0, 1)] == [ErrorCode.none] * 2
    end_and_bump(kafka, me)


def test_after_the_last_epoch_comes_another_producer_id(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    entry = kafka.inside.transactions._registry.get(me.transactional_id)
    assert entry is not None
    state = entry.transaction.state
    assert state is not None
    entry.transaction.state = type(state)(me.producer_id, LAST_EPOCH, 60_000)
    last = me._replace(epoch=LAST_EPOCH)
    assert write(kafka, last, topic, version=V2) == ErrorCode.none
    new = end_and_bump(kafka, last)
    assert (new.producer_id != me.producer_id, new.epoch) == (True, 0)
    assert end_and_bump(kafka, last) == new
    assert write(kafka, last, topic, sequence=1, version=V2) == ErrorCode.invalid_producer_id_mapping
    assert write(kafka, new, topic, version=V2) == ErrorCode.none
    assert end_and_bump(kafka, new, False) == new._replace(epoch=1)
    assert kafka.inside.transactions.holder_of(new.producer_id) is not None
    assert kafka.inside.transactions.holder_of(last.producer_id) is None
    assert stable(kafka, topic) == 4


def test_several_partitions_are_added_at_once(kafka: Kafka) -> None:
    topic, me = kafka.topic(3), begin(kafka)
    batches = [(me, topic, number) for number in range(3)]
    for acks in (-1, 1):
        assert produce(kafka, *batches, transactional_id=me.transactional_id, acks=acks) == [ErrorCode.none] * 3
    end_and_bump(kafka, me)
    assert stable(kafka, topic) == 2


def test_refused_partition_does_not_prevent_other_writes(kafka: Kafka) -> None:
    topic, me, other = kafka.topic(2), begin(kafka), begin(kafka)
    assert produce(kafka, (me, topic, 0), (other, topic, 1), transactional_id=me.transactional_id) == [
        ErrorCode.none,
        ErrorCode.invalid_producer_id_mapping,
    ]
    assert produce(kafka, (me, topic, 0), (me, "nowhere", 0), transactional_id=me.transactional_id) == [
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    end_and_bump(kafka, me)


def test_a_stranger_adds_nothing(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    mapping = ErrorCode.invalid_producer_id_mapping
    assert write(kafka, me._replace(producer_id=99_999), topic, version=V2) == mapping
    assert write(kafka, me, topic, version=V2, transactional_id="who") == mapping
    assert write(kafka, me, topic, version=V2, transactional_id="") == mapping
    assert write(kafka, me._replace(epoch=7), topic, version=V2) == ErrorCode.invalid_producer_epoch
    without_name = write(kafka, me, topic, version=V2, transactional_id=None)
    assert without_name == ErrorCode.transactional_id_authorization_failed
    assert fetch(kafka, topic, UNCOMMITTED)[1] == 0
    assert end(kafka, me) == ErrorCode.invalid_txn_state


def test_classic_flow_client_is_told_to_abort(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    assert write(kafka, me, topic, version=10) == ErrorCode.invalid_txn_state
    assert write(kafka, me, topic, version=11) == ErrorCode.transaction_abortable


def test_a_batch_outside_of_transactions_adds_nothing(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    assert write(kafka, me, topic, version=V2, attributes=0) == ErrorCode.none
    assert end(kafka, me) == ErrorCode.invalid_txn_state


# Offsets --------------------------------------------------------------------------------------------------------------


def committed(kafka: Kafka, group: str, topic: str) -> int:
    asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    answer = kafka.ask(ApiKey.OFFSET_FETCH, 7, **asked, require_stable=True)
    ((one,),) = [topic.partitions for topic in answer.topics]
    return -2 if one.error_code == ErrorCode.unstable_offset_commit else one.committed_offset


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_add_their_group(kafka: Kafka, commit: bool) -> None:
    topic, group, me = kafka.topic(), new_group(), begin(kafka)
    for offset in (5, 6):
        assert commit_offsets(kafka, me, group, topic, offset, version=5) == ErrorCode.none
    assert committed(kafka, group, topic) == -2
    end_and_bump(kafka, me, commit)
    assert committed(kafka, group, topic) == (6 if commit else -1)


def test_old_clients_offsets_need_add_offsets_to_txn(kafka: Kafka) -> None:
    topic, group, me = kafka.topic(), new_group(), begin(kafka)
    assert commit_offsets(kafka, me, group, topic, 5, version=3) == ErrorCode.invalid_txn_state
    assert commit_offsets(kafka, me, group, topic, 5, version=4) == ErrorCode.transaction_abortable
    assert add_offsets(kafka, me, group, 4) == ErrorCode.none
    assert commit_offsets(kafka, me, group, topic, 5, version=4) == ErrorCode.none
    assert end(kafka, me) == ErrorCode.none
    assert committed(kafka, group, topic) == 5


def test_offsets_that_come_late_are_fenced(kafka: Kafka) -> None:
    topic, group, me = kafka.topic(), new_group(), begin(kafka)
    commit_offsets(kafka, me, group, topic, 5, version=5)
    end_and_bump(kafka, me)
    assert commit_offsets(kafka, me, group, topic, 4, version=5) == ErrorCode.invalid_producer_epoch
    assert committed(kafka, group, topic) == 5


# Both kinds of clients ------------------------------------------------------------------------------------------------


def test_transactional_id_moves_between_old_and_new_clients(kafka: Kafka) -> None:
    topic, old = kafka.topic(), begin(kafka)
    add_partitions(kafka, old, topic)
    write(kafka, old, topic)
    new = begin(kafka, name=old.transactional_id) if end(kafka, old) == ErrorCode.none else old
    assert new.epoch == old.epoch + 1
    write(kafka, new, topic, version=V2)
    new = end_and_bump(kafka, new)
    again = begin(kafka, name=old.transactional_id)
    assert again.epoch == new.epoch + 1
    assert write(kafka, new, topic, version=V2) == ErrorCode.invalid_producer_epoch
    assert end_error(kafka, new, False) == ErrorCode.producer_fenced
    add_partitions(kafka, again, topic)
    assert write(kafka, again, topic) == ErrorCode.none
    assert end(kafka, again) == ErrorCode.none
    assert stable(kafka, topic) == 6


def test_transactions_may_be_ended_by_the_other_flow(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    add_partitions(kafka, me, topic)
    write(kafka, me, topic)
    me = end_and_bump(kafka, me)
    write(kafka, me, topic, version=V2)
    assert end(kafka, me) == ErrorCode.none
    assert end(kafka, me) == ErrorCode.none
    add_partitions(kafka, me, topic)
    assert write(kafka, me, topic, sequence=1) == ErrorCode.none
    assert end(kafka, me, False) == ErrorCode.none
    assert stable(kafka, topic) == 6


# Several connections --------------------------------------------------------------------------------------------------


def test_concurrent_connections_add_batches_and_offsets_without_refusal(kafka: Kafka) -> None:
    topic, group, me = kafka.topic(8), new_group(), begin(kafka)
    answers: dict[Any, int] = {}
    barrier = threading.Barrier(9)

    def run(number: int) -> None:
        with Beside(kafka) as own:
            barrier.wait(10)
            if number == 8:
                answers[number] = commit_offsets(own, me, group, topic, 5, version=5)
            else:
                (answers[number],) = produce(own, (me, topic, number), transactional_id=me.transactional_id)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == dict.fromkeys(range(9), ErrorCode.none)
    end_and_bump(kafka, me)
    assert committed(kafka, group, topic) == 5


# AddPartitionsToTxn for several ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
def test_partitions_are_verified_and_not_added(kafka: Kafka, version: int) -> None:
    topic, me = kafka.topic(2), begin(kafka)
    absent = ErrorCode.transaction_abortable if version >= 5 else ErrorCode.invalid_txn_state
    assert add_partitions(kafka, me, topic, (0, 1), version, verify_only=True) == [absent] * 2
    assert end(kafka, me) == ErrorCode.invalid_txn_state
    assert add_partitions(kafka, me, topic, (0,), version) == [ErrorCode.none]
    assert add_partitions(kafka, me, topic, (0, 1), version, verify_only=True) == [ErrorCode.none, absent]
    fenced = me._replace(epoch=9)
    assert add_partitions(kafka, fenced, topic, (0,), version, verify_only=True) == [ErrorCode.producer_fenced]
    stranger = me._replace(producer_id=99_999)
    mapping = ErrorCode.invalid_producer_id_mapping
    assert add_partitions(kafka, stranger, topic, (0,), version, verify_only=True) == [mapping]
    unknown = me._replace(transactional_id="who")
    assert add_partitions(kafka, unknown, topic, (0,), version, verify_only=True) == [mapping]
    assert end(kafka, me) == ErrorCode.none


def test_one_request_may_be_about_several_transactions(kafka: Kafka) -> None:
    topic, one, two = kafka.topic(), begin(kafka), begin(kafka)
    topics = [{"name": topic, "partitions": [0]}]
    asked = [fields(me) | {"verify_only": False, "topics": topics} for me in (one, two._replace(epoch=5), two)]
    answer = kafka.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 4, transactions=asked)
    found = [
        (each.transactional_id, each.topic_results[0].results_by_partition[0].partition_error_code)
        for each in answer.results_by_transaction
    ]
    assert found == [
        (one.transactional_id, ErrorCode.none),
        (two.transactional_id, ErrorCode.producer_fenced),
        (two.transactional_id, ErrorCode.none),
    ]
    assert () == kafka.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 4, transactions=[]).results_by_transaction
    for me in (one, two):
        assert end(kafka, me) == ErrorCode.none
