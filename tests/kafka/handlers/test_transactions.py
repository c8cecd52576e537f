"""The transactional APIs over a socket, in every version that is served."""

import time
from typing import Any

import pytest

from broker.kafka import handlers
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import new_group
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.kafka.handlers.txn_client import add_offsets, add_partitions, begin, commit_offsets, end, fetch, write

APIS = handlers.load()
UNCOMMITTED, COMMITTED = 0, 1


def in_all(key: ApiKey) -> Any:
    return pytest.mark.parametrize("version", versions(APIS[key]))


@in_all(ApiKey.ADD_PARTITIONS_TO_TXN)
def test_partitions_are_added_all_or_none(kafka: Kafka, version: int) -> None:
    topic, me = kafka.topic(2), begin(kafka)
    assert add_partitions(kafka, me, topic, (0, 1), version) == [ErrorCode.none] * 2
    assert add_partitions(kafka, me, topic, (1, 2), version) == [
        ErrorCode.operation_not_attempted,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert end(kafka, me) == ErrorCode.none


def fenced(version: int, since: int = 2) -> ErrorCode:
    return ErrorCode.producer_fenced if version >= since else ErrorCode.invalid_producer_epoch


@pytest.mark.parametrize("version", range(4))
def test_old_epochs_and_strangers_are_refused(kafka: Kafka, version: int) -> None:
    topic, me, group = kafka.topic(), begin(kafka), new_group()
    old, stranger = me._replace(epoch=5), me._replace(producer_id=999)
    unknown, nobody = me._replace(transactional_id="who"), me._replace(transactional_id="")
    mapping = ErrorCode.invalid_producer_id_mapping
    for who, error in (
        (old, fenced(version)),
        (stranger, mapping),
        (unknown, mapping),
        (nobody, ErrorCode.invalid_request),
    ):
        assert add_partitions(kafka, who, topic, version=version) == [error]
        assert add_offsets(kafka, who, group, version) == error
        assert end(kafka, who, version=version) == error
        of_offsets = ErrorCode.invalid_producer_epoch if error == fenced(version) else error
        assert commit_offsets(kafka, who, group, topic, 1, version) == of_offsets


@in_all(ApiKey.END_TXN)
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_ended(kafka: Kafka, version: int, commit: bool) -> None:
    if version >= 5:
        return  # test_transactions_version_2.py
    topic, me = kafka.topic(), begin(kafka)
    assert end(kafka, me, commit, version) == ErrorCode.invalid_txn_state
    assert write(kafka, me, topic) == ErrorCode.invalid_txn_state
    add_partitions(kafka, me, topic)
    assert write(kafka, me, topic) == ErrorCode.none
    assert end(kafka, me, commit, version) == ErrorCode.none
    assert end(kafka, me, commit, version) == ErrorCode.none
    assert end(kafka, me, not commit, version) == ErrorCode.invalid_txn_state
    assert write(kafka, me, topic, sequence=1) == ErrorCode.invalid_txn_state


@in_all(ApiKey.FETCH)
def test_fetch_stops_at_open_transactions_and_lists_aborted(kafka: Kafka, version: int) -> None:
    topic, me = kafka.topic(), begin(kafka)
    add_partitions(kafka, me, topic)
    write(kafka, me, topic)
    size, high_watermark, stable, aborted = fetch(kafka, topic, UNCOMMITTED, version)
    assert (size > 0, high_watermark, stable, aborted) == (True, 1, 0, None)
    assert fetch(kafka, topic, COMMITTED, version) == (0, 1, 0, [])
    end(kafka, me, False)
    size, high_watermark, stable, aborted = fetch(kafka, topic, COMMITTED, version)
    assert (size > 78, high_watermark, stable, aborted) == (True, 2, 2, [(me.producer_id, 0)])
    assert fetch(kafka, topic, UNCOMMITTED, version)[1:] == (2, 2, None)


@pytest.mark.parametrize("version", range(2, 8))
def test_list_offsets_by_isolation_level(kafka: Kafka, version: int) -> None:
    topic, me = kafka.topic(), begin(kafka)
    kafka.fill(topic, kafka.inside.clock.time_ms())
    add_partitions(kafka, me, topic)
    write(kafka, me, topic)

    def ask(level: int, timestamp: int) -> int:
        wanted = {"partition_index": 0, "timestamp": timestamp}
        topics = [{"name": topic, "partitions": [wanted]}]
        answer = kafka.ask(ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=level, topics=topics)
        return int(answer.topics[0].partitions[0].offset)

    assert (ask(UNCOMMITTED, -1), ask(COMMITTED, -1)) == (2, 1)
    assert (ask(UNCOMMITTED, -2), ask(COMMITTED, -2)) == (0, 0)
    assert (ask(COMMITTED, 0)) == 0
    if version >= 7:
        assert (ask(UNCOMMITTED, -3), ask(COMMITTED, -3)) in {(1, -1), (0, 0)}
    end(kafka, me)
    assert ask(COMMITTED, -1) == 3


@pytest.mark.parametrize("version", range(3, 10))
def test_a_zombie_is_told_so_by_produce(kafka: Kafka, version: int) -> None:
    topic, old = kafka.topic(), begin(kafka)
    begin(kafka, name=old.transactional_id)
    assert write(kafka, old, topic, version=version) == ErrorCode.invalid_producer_epoch
    assert (
        write(kafka, old._replace(producer_id=9_999), topic, version=version) == ErrorCode.invalid_producer_id_mapping
    )


@pytest.mark.parametrize("version", range(3, 10))
def test_transactional_batch_needs_its_producers_transactional_id(kafka: Kafka, version: int) -> None:
    topic, me, other = kafka.topic(), begin(kafka), begin(kafka)
    for producer in (me, other):
        add_partitions(kafka, producer, topic)
    for name, error in (
        (None, ErrorCode.transactional_id_authorization_failed),
        ("", ErrorCode.invalid_producer_id_mapping),
        ("who", ErrorCode.invalid_producer_id_mapping),
        (other.transactional_id, ErrorCode.invalid_producer_id_mapping),
    ):
        for acks in (-1, 1):
            assert write(kafka, me, topic, version=version, transactional_id=name, acks=acks) == error
    assert fetch(kafka, topic, UNCOMMITTED)[1] == 0
    assert write(kafka, me, topic, version=version) == ErrorCode.none
    for producer in (me, other):
        assert end(kafka, producer) == ErrorCode.none


def test_a_batch_outside_of_transactions_needs_none(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    for sequence, name in enumerate((None, me.transactional_id, "who")):
        assert write(kafka, me, topic, sequence=sequence, attributes=0, transactional_id=name) == ErrorCode.none


# Offsets --------------------------------------------------------------------------------------------------------------


def committed(kafka: Kafka, group: str, topic: str, stable: bool, version: int = 7) -> tuple[int, int]:
    """Error code and offset."""
    topics = [{"name": topic, "partition_indexes": [0]}]
    if version < 8:
        answer = kafka.ask(ApiKey.OFFSET_FETCH, version, group_id=group, topics=topics, require_stable=stable)
        found = answer.topics
    else:
        groups = [{"group_id": group, "topics": topics}]
        answer = kafka.ask(ApiKey.OFFSET_FETCH, version, groups=groups, require_stable=stable)
        found = answer.groups[0].topics
    ((one,),) = [each.partitions for each in found]
    return one.error_code, one.committed_offset


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_count_with_the_transaction(kafka: Kafka, version: int, commit: bool) -> None:
    topic, me, group = kafka.topic(), begin(kafka), new_group()
    assert commit_offsets(kafka, me, group, topic, 5, version) == ErrorCode.invalid_txn_state
    assert add_offsets(kafka, me, group, version) == ErrorCode.none
    assert commit_offsets(kafka, me, group, topic, 5, version) == ErrorCode.none
    for fetch_version in (7, 8):
        assert committed(kafka, group, topic, True, fetch_version) == (ErrorCode.unstable_offset_commit, -1)
        assert committed(kafka, group, topic, False, fetch_version) == (ErrorCode.none, -1)
    assert end(kafka, me, commit) == ErrorCode.none
    for stable in (True, False):
        assert committed(kafka, group, topic, stable) == (ErrorCode.none, 5 if commit else -1)


def test_what_offsets_are_refused(kafka: Kafka) -> None:
    topic, me, group = kafka.topic(), begin(kafka), new_group()
    add_offsets(kafka, me, group)
    assert commit_offsets(kafka, me, group, "no-topic", 1) == ErrorCode.unknown_topic_or_partition
    assert commit_offsets(kafka, me, group, topic, 1, partition=3) == ErrorCode.unknown_topic_or_partition
    assert commit_offsets(kafka, me, group, topic, 1, metadata="m" * 5_000) == ErrorCode.offset_metadata_too_large
    assert commit_offsets(kafka, me, group, topic, 1, generation_id=3, member_id="me") == ErrorCode.illegal_generation
    assert commit_offsets(kafka, me, "", topic, 1) == ErrorCode.invalid_group_id
    assert add_offsets(kafka, me, "") == ErrorCode.invalid_group_id


# Administration -------------------------------------------------------------------------------------------------------


def describe(kafka: Kafka, name: str) -> Any:
    (state,) = kafka.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[name]).transaction_states
    return state


def test_transactions_are_described(kafka: Kafka) -> None:
    topic, me = kafka.topic(2), begin(kafka, timeout_ms=30_000)
    add_partitions(kafka, me, topic, (1, 0))
    state = describe(kafka, me.transactional_id)
    assert (state.transaction_state, state.producer_id, state.producer_epoch) == ("Ongoing", me.producer_id, me.epoch)
    assert [(one.topic, one.partitions) for one in state.topics] == [(topic, (0, 1))]
    end(kafka, me, False)
    assert describe(kafka, me.transactional_id).transaction_state == "CompleteAbort"
    assert describe(kafka, "who").error_code == ErrorCode.transactional_id_not_found


def listed(kafka: Kafka, version: int, **filters: Any) -> dict[str, str]:
    request = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1} | filters
    if version < 1:
        del request["duration_filter"]
    request.setdefault("transactional_id_pattern", None)
    answer = kafka.ask(ApiKey.LIST_TRANSACTIONS, version, **request)
    assert answer.error_code == ErrorCode.none
    return {state.transactional_id: state.transaction_state for state in answer.transaction_states}


@in_all(ApiKey.LIST_TRANSACTIONS)
def test_transactions_are_listed(kafka: Kafka, version: int) -> None:
    topic, idle, busy = kafka.topic(), begin(kafka), begin(kafka)
    add_partitions(kafka, busy, topic)
    everything = listed(kafka, version)
    assert (everything[idle.transactional_id], everything[busy.transactional_id]) == ("Empty", "Ongoing")
    assert idle.transactional_id not in listed(kafka, version, state_filters=["Ongoing"])
    assert listed(kafka, version, producer_id_filters=[idle.producer_id]) == {idle.transactional_id: "Empty"}
    if version >= 1:
        assert listed(kafka, version, duration_filter=1_000_000) == {}
        time.sleep(0.01)
        assert busy.transactional_id in listed(kafka, version, duration_filter=1)
    answer = kafka.ask(ApiKey.LIST_TRANSACTIONS, 0, state_filters=["Sleeping"], producer_id_filters=[])
    assert (answer.unknown_state_filters, answer.transaction_states) == (("Sleeping",), ())
    end(kafka, busy)


def test_transactions_are_listed_by_a_regular_expression(kafka: Kafka) -> None:
    names = [begin(kafka, name=name).transactional_id for name in ("list.one", "list-two", "list.three")]

    def matching(pattern: str | None, **filters: Any) -> set[str]:
        return set(listed(kafka, 2, transactional_id_pattern=pattern, **filters)) & set(names)

    assert matching(None) == matching("") == matching("list.*") == set(names)
    assert matching(r"list\.\w+") == {"list.one", "list.three"}
    assert matching("list") == matching("one") == set()  # the whole id has to match
    assert matching("list.*", state_filters=["Ongoing"]) == set()


@pytest.mark.parametrize("pattern", ["(", "a{1001}", r"(a)\1", "(?=a)", "x" * 10_000, "((a{1,100}){1,10}){1,100}"])
def test_invalid_re2_expression_is_refused(kafka: Kafka, pattern: str) -> None:
    request = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
    answer = kafka.ask(ApiKey.LIST_TRANSACTIONS, 2, **request, transactional_id_pattern=pattern)
    assert (answer.error_code, answer.transaction_states) == (ErrorCode.invalid_regular_expression, ())


def test_producers_are_described(kafka: Kafka) -> None:
    topic, me = kafka.topic(), begin(kafka)
    add_partitions(kafka, me, topic)
    write(kafka, me, topic)

    def ask(index: int = 0) -> Any:
        topics = [{"name": topic, "partition_indexes": [index]}]
        return kafka.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=topics).topics[0].partitions[0]

    (one,) = ask().active_producers
    assert (one.producer_id, one.producer_epoch, one.last_sequence) == (me.producer_id, 0, 0)
    assert (one.coordinator_epoch, one.current_txn_start_offset) == (-1, 0)
    end(kafka, me)
    (one,) = ask().active_producers
    assert (one.coordinator_epoch, one.current_txn_start_offset) == (0, -1)
    assert ask(5).error_code == ErrorCode.unknown_topic_or_partition
