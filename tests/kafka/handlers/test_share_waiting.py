"""ShareFetch waits: for new records, for released records, for expiring locks; and the events that end the wait."""

from functools import partial

import attrs
import pytest

from broker.kafka.share.fetch_call import FetchCall
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.handlers.share_client import ACCEPT, EARLIEST, RELEASE, Member, write
from tests.waiting import wait_for

# Longer than any test waits: the answer comes because something has happened.
LONG = 60_000


@pytest.fixture
def kafka(kafka: Kafka) -> Kafka:
    kafka.inside.share.settings = lambda _: EARLIEST
    return kafka


def parked(kafka: Kafka, group: str) -> int:
    return sum(one.group_id == group and one.waiter is not None for one in kafka.inside.share.sessions.all())


def test_new_records_wake_it(kafka: Kafka) -> None:
    topic = kafka.topic()
    with Member(kafka, topic, group=topic) as member:
        member.send_fetch(max_wait=LONG)
        wait_for(lambda: parked(kafka, topic))
        write(kafka, topic, 2)
        assert [(0, 1, 1)] == member.receive_fetch().ranges()
        assert 0 == parked(kafka, topic)


def test_records_arriving_just_before_the_wait_are_seen(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic()
    park = FetchCall._park
    parked_calls: list[FetchCall] = []

    def late(call: FetchCall) -> None:
        parked_calls.append(call)
        if len(parked_calls) == 1:
            write(kafka, topic, 2)
        park(call)

    with Member(kafka, topic, group=topic) as member:
        member.fetch()
        monkeypatch.setattr(FetchCall, "_park", late)
        assert [(0, 1, 1)] == member.fetch(max_wait=LONG).ranges()
        assert 1 == len(parked_calls)
        parked_calls.clear()
        assert [(2, 3, 1)] == member.fetch(max_wait=LONG, min_bytes=10).ranges()


def test_waiting_fetches_get_records_one_after_another(kafka: Kafka) -> None:
    topic = kafka.topic()
    members = [Member(kafka, topic, group=topic, member_id=f"m{number}") for number in range(4)]
    for member in members:
        member.send_fetch(max_wait=LONG, max_records=1)
    wait_for(lambda: parked(kafka, topic) == 4)
    for number in range(4):
        write(kafka, topic)
        wait_for(partial(lambda left: parked(kafka, topic) == left, 3 - number))
    got = [offset for member in members for _, offset in member.receive_fetch().all()]
    assert [0, 1, 2, 3] == sorted(got)
    for member in members:
        member.__exit__(None, None, None)


def test_what_one_leaves_the_next_one_gets(kafka: Kafka) -> None:
    """Four wait, each for one record; four records come at once, in one batch."""
    topic = kafka.topic()
    members = [Member(kafka, topic, group=topic, member_id=f"m{number}") for number in range(4)]
    for member in members:
        member.send_fetch(max_wait=LONG, max_records=1, share_acquire_mode=1)
    wait_for(lambda: parked(kafka, topic) == 4)
    write(kafka, topic, 4)
    got = [offset for member in members for _, offset in member.receive_fetch().all()]
    assert [0, 1, 2, 3] == sorted(got)
    for member in members:
        member.__exit__(None, None, None)


def test_woken_fetch_may_be_gone(kafka: Kafka) -> None:
    topic = kafka.topic()
    with Member(kafka, topic, group=topic) as gone, Member(kafka, topic, group=topic, member_id="b") as member:
        gone.send_fetch(max_wait=LONG)
        wait_for(lambda: parked(kafka, topic) == 1)
        member.send_fetch(max_wait=LONG)
        wait_for(lambda: parked(kafka, topic) == 2)
        gone.socket.close()
        write(kafka, topic)
        assert [(0, 0)] == list(member.receive_fetch().all())


def test_records_that_are_released_wake_it(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 3)
    with Member(kafka, topic, group=topic) as holder, Member(kafka, topic, group=topic, member_id="b") as member:
        holder.fetch()
        member.send_fetch(max_wait=LONG)
        wait_for(lambda: parked(kafka, topic))
        assert {0: 0} == holder.acknowledged({0: [(0, 0, [ACCEPT]), (1, 1, [RELEASE]), (2, 2, [ACCEPT])]})
        assert [(1, 1, 2)] == member.receive_fetch().ranges()


def test_records_of_a_connection_that_ends_wake_it(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, 3)
    with Member(kafka, topic, group=topic) as holder, Member(kafka, topic, group=topic, member_id="b") as member:
        holder.fetch()
        member.send_fetch(max_wait=LONG)
        wait_for(lambda: parked(kafka, topic))
        holder.socket.close()
        assert [(0, 2, 1)] == member.receive_fetch().ranges()


def test_a_lock_that_ends_wakes_it(kafka: Kafka) -> None:
    kafka.inside.share.settings = lambda _: attrs.evolve(EARLIEST, record_lock_duration_ms=300)
    topic = kafka.topic()
    write(kafka, topic, 3)
    with Member(kafka, topic, group=topic) as holder, Member(kafka, topic, group=topic, member_id="b") as member:
        assert 0.3 == holder.fetch().lock_s
        member.send_fetch(max_wait=LONG)
        assert [(0, 2, 2)] == member.receive_fetch().ranges()
        assert {0: ErrorCode.invalid_record_state} == holder.acknowledged({0: [(0, 2, [ACCEPT])]})


def test_room_that_comes_free_wakes_it(kafka: Kafka) -> None:
    kafka.inside.share.settings = lambda _: attrs.evolve(EARLIEST, max_record_locks=5)
    topic = kafka.topic()
    write(kafka, topic, 5)
    write(kafka, topic, 5)
    with Member(kafka, topic, group=topic) as holder, Member(kafka, topic, group=topic, member_id="b") as member:
        holder.fetch()
        member.send_fetch(max_wait=LONG)
        wait_for(lambda: parked(kafka, topic))
        holder.acknowledged({0: [(0, 1, [ACCEPT])]})
        assert [(5, 6, 1)] == member.receive_fetch().ranges()


def test_fetch_waits_for_its_minimum_of_bytes(kafka: Kafka) -> None:
    topic = kafka.topic()
    with Member(kafka, topic, group=topic) as member:
        member.send_fetch(max_wait=LONG, min_bytes=5_000)
        wait_for(lambda: parked(kafka, topic))
        for _ in range(5):
            write(kafka, topic, value=bytes(1_000))
        assert [(0, 4, 1)] == member.receive_fetch().ranges()


def test_smaller_minimum_does_not_wait_for_a_larger(kafka: Kafka) -> None:
    topic = kafka.topic()
    with Member(kafka, topic, group=topic) as much, Member(kafka, topic, group=topic, member_id="b") as little:
        much.send_fetch(max_wait=LONG, min_bytes=1_000_000)
        wait_for(lambda: parked(kafka, topic) == 1)
        little.send_fetch(max_wait=LONG)
        wait_for(lambda: parked(kafka, topic) == 2)
        write(kafka, topic)
        assert [(0, 0)] == list(little.receive_fetch().all())
        little.send_fetch(max_wait=LONG)
        wait_for(lambda: parked(kafka, topic) == 2)
        write(kafka, topic)
        assert [(0, 1)] == list(little.receive_fetch().all())


def test_at_its_deadline_it_gets_what_there_is(kafka: Kafka) -> None:
    topic = kafka.topic()
    with Member(kafka, topic, group=topic) as member:
        write(kafka, topic)
        assert [(0, 0, 1)] == member.fetch(max_wait=50, min_bytes=1_000_000).ranges()
        assert {} == member.fetch(max_wait=50).partitions


def test_a_topic_that_is_deleted_ends_the_wait(kafka: Kafka) -> None:
    topic = kafka.topic()
    with Member(kafka, topic, group=topic) as member:
        member.send_fetch(max_wait=LONG)
        wait_for(lambda: parked(kafka, topic))
        kafka.inside.logs.delete_topic(topic)
        assert (ErrorCode.unknown_topic_id, 0) == member.receive_fetch().errors()


def test_a_log_that_goes_offline_ends_the_wait(kafka: Kafka) -> None:
    topic = kafka.topic()
    with Member(kafka, topic, group=topic) as member:
        member.send_fetch(max_wait=LONG)
        wait_for(lambda: parked(kafka, topic))
        kafka.take_offline(topic)
        assert (ErrorCode.kafka_storage_error, 0) == member.receive_fetch().errors()


def test_session_takeover_ends_the_wait(kafka: Kafka) -> None:
    topic = kafka.topic()
    with Member(kafka, topic, group=topic) as member, Member(kafka, topic, group=topic) as again:
        member.send_fetch(max_wait=LONG)
        wait_for(lambda: parked(kafka, topic))
        assert 0 == again.fetch().error
        assert {} == member.receive_fetch().partitions


def test_a_committed_transaction_wakes_those_that_read_committed(kafka: Kafka) -> None:
    kafka.inside.share.settings = lambda _: attrs.evolve(EARLIEST, isolation_level="read_committed")
    topic = kafka.topic()
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    with Member(kafka, topic, group=topic) as member:
        for producer_id in (1, 2):
            log.transactions.allow(producer_id, 0)
            records = [(None, b"value", [], 1_000_000)] * 3
            batch = build_batch(
                records, producer_id=producer_id, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
            )
            log.append(memoryview(batch), now_ms=1_000_000)
        member.send_fetch(max_wait=LONG)
        wait_for(lambda: parked(kafka, topic))
        log.transactions.append_marker(1, 0, commit=False, coordinator_epoch=0, now_ms=1)
        log.transactions.append_marker(2, 0, commit=True, coordinator_epoch=0, now_ms=1)
        answer = member.receive_fetch()
        assert [(3, 5, 1)] == answer.ranges()
        assert [3, 5] == answer.offsets()
        assert {0: 0} == member.acknowledged({0: [(3, 5, [ACCEPT])]})
        member.fetch()
        assert kafka.inside.share.offsets(topic)[topic, 0] == (8, 0)


def test_those_that_read_uncommitted_get_no_markers(kafka: Kafka) -> None:
    topic = kafka.topic()
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    log.transactions.allow(1, 0)
    records = [(None, b"value", [], 1_000_000)] * 3
    log.append(
        memoryview(build_batch(records, producer_id=1, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)),
        now_ms=1,
    )
    log.transactions.append_marker(1, 0, commit=False, coordinator_epoch=0, now_ms=1)
    write(kafka, topic)
    with Member(kafka, topic, group=topic) as member:
        assert [(0, 2, 1), (4, 4, 1)] == member.fetch().ranges()


def test_a_broker_that_stops_answers_those_that_wait() -> None:
    with Kafka() as kafka:
        topic = kafka.topic()
        with Member(kafka, topic, group=topic) as member:
            member.send_fetch(max_wait=LONG)
            wait_for(lambda: parked(kafka, topic))
            kafka.broker.stop()
            assert {} == member.receive_fetch().partitions
