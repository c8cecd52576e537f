"""Consumer groups of confluent-kafka members: joining, leaving, crashing, static members, every assignor, commits."""

import subprocess
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.compat.clients.kcat import Kcat
from tests.compat.clients.librdkafka import consume, settings

PARTITIONS = 4
ASSIGNORS = ("range", "roundrobin", "cooperative-sticky")


class Member:
    """A consumer that keeps book of what it owns. It is given up soon only if ``more`` says so: it may have to wait its turn."""

    def __init__(self, servers: str, group: str, topic: str, **more: object) -> None:
        self.owned: set[int] = set()
        self.rebalances = 0
        self.consumer = Consumer(
            settings(
                servers,
                **{
                    "group_id": group,
                    "auto_offset_reset": "earliest",
                    "session_timeout_ms": 60_000,
                    "heartbeat_interval_ms": 100,
                    **more,
                },
            )
        )
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        assert message is None or message.error() is None, message.error()

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned |= {partition.partition for partition in partitions}
        self.rebalances += 1

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned -= {partition.partition for partition in partitions}


class Group:
    def __init__(self, servers: str, topic: str) -> None:
        self.servers = servers
        self.topic = topic
        self.name = f"group-of-{topic}"
        self.members: list[Member] = []

    def join(self, **more: object) -> Member:
        member = Member(self.servers, self.name, self.topic, **more)
        self.members.append(member)
        return member

    def leave(self, member: Member) -> None:
        member.consumer.close()
        self.members.remove(member)

    def settle(self, until: Callable[[], bool] = lambda: True) -> None:
        """Until every partition has exactly one owner, every member has some, and ``until``. pytest's timeout is the limit."""
        while not (self._settled() and until()):
            for member in self.members:
                member.poll()

    def _settled(self) -> bool:
        owned = [partition for member in self.members for partition in member.owned]
        return sorted(owned) == list(range(PARTITIONS)) and all(member.owned for member in self.members)


@pytest.fixture
def group(name: str, make_topic: Callable[..., str], servers: str) -> Iterator[Group]:
    group = Group(servers, make_topic(name, partitions=PARTITIONS))
    yield group
    for member in group.members:
        member.consumer.close()


def write(servers: str, topic: str, *values: bytes, partition: int = 0) -> None:
    producer = Producer(settings(servers))
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert 0 == producer.flush(30)


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_members_that_join_and_leave_share_all_partitions(assignor: str, group: Group) -> None:
    first = group.join(partition_assignment_strategy=assignor)
    group.settle()
    assert PARTITIONS == len(first.owned)
    second = group.join(partition_assignment_strategy=assignor)
    group.settle()
    assert [2, 2] == [len(first.owned), len(second.owned)]
    third = group.join(partition_assignment_strategy=assignor)
    group.settle()
    assert [1, 1, 2] == sorted(len(member.owned) for member in group.members)
    group.leave(first)
    group.settle()
    group.leave(third)
    group.settle()
    assert PARTITIONS == len(second.owned)


def test_cooperative_members_keep_what_they_have(group: Group) -> None:
    first = group.join(partition_assignment_strategy="cooperative-sticky")
    group.settle()
    lost: set[int] = set()
    revoked = first._revoked
    first.consumer.subscribe(
        [group.topic],
        on_assign=first._assigned,
        on_revoke=lambda consumer, some: (
            lost.update(partition.partition for partition in some),
            revoked(consumer, some),
        ),
    )
    second = group.join(partition_assignment_strategy="cooperative-sticky")
    group.settle()
    # Only what the second one got was taken away; with the eager assignors all of it is.
    assert second.owned == lost


def test_a_group_without_a_common_assignor_is_refused(group: Group) -> None:
    group.join(partition_assignment_strategy="range")
    group.settle()
    other = Member(group.servers, group.name, group.topic, partition_assignment_strategy="roundrobin")
    message = None
    while message is None:
        for member in group.members:
            member.poll()
        message = other.consumer.poll(0.1)
    assert KafkaError.INCONSISTENT_GROUP_PROTOCOL == message.error().code()
    other.consumer.close()


def test_crashed_member_s_partitions_go_to_others(group: Group) -> None:
    reason = Kcat().missing()
    if reason:
        pytest.skip(reason)
    member = group.join(partition_assignment_strategy="range")
    group.settle()
    command = [
        "kcat",
        "-b",
        group.servers,
        "-G",
        group.name,
        "-X",
        "session.timeout.ms=1000",
        "-X",
        "heartbeat.interval.ms=100",
    ]
    crashing = subprocess.Popen([*command, group.topic], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while len(member.owned) != 2:
            member.poll()
    finally:
        crashing.kill()
        crashing.wait(30)
    group.settle()
    assert PARTITIONS == len(member.owned)


def test_member_that_does_not_poll_loses_partitions(group: Group) -> None:
    idle = group.join(max_poll_interval_ms=1000, session_timeout_ms=1000)
    group.settle()
    group.members.remove(idle)  # nobody polls it from now on
    busy = group.join()
    group.settle()
    assert PARTITIONS == len(busy.owned)
    message = idle.consumer.poll(60)
    assert message is not None
    assert KafkaError._MAX_POLL_EXCEEDED == message.error().code()
    group.members.append(idle)  # polled again, it is one of them again
    group.settle()
    assert 2 == len(idle.owned)


def test_static_member_returns_without_a_rebalance(group: Group) -> None:
    staying = group.join(group_instance_id="staying")
    going = group.join(group_instance_id="going")
    group.settle()
    before, rebalances = set(going.owned), staying.rebalances
    group.leave(going)  # static members do not say that they leave
    back = group.join(group_instance_id="going")
    group.settle()
    assert before == back.owned
    assert rebalances == staying.rebalances


def test_absent_static_member_is_given_up(group: Group) -> None:
    staying = group.join(group_instance_id="staying")
    going = group.join(group_instance_id="going", session_timeout_ms=1000)
    group.settle()
    group.leave(going)
    group.settle()
    assert PARTITIONS == len(staying.owned)


def test_same_static_name_fences_the_first_member(group: Group) -> None:
    first = group.join(group_instance_id="same")
    group.settle()
    second = group.join(group_instance_id="same")
    group.members.remove(first)
    error = None
    while error is None:
        second.poll()
        message = first.consumer.poll(0.02)
        error = message.error() if message is not None else None
    assert KafkaError._FATAL == error.code()
    assert "fenced by other consumer with same group.instance.id" in error.str()
    group.settle()
    assert PARTITIONS == len(second.owned)
    first.consumer.close()


def test_next_consumer_begins_at_the_committed_offset(topic: str, servers: str) -> None:
    write(servers, topic, b"0", b"1", b"2", b"3")
    first = Consumer(settings(servers, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False))
    first.subscribe([topic])
    messages = consume(first, 2)
    (committed,) = first.commit(message=messages[-1], asynchronous=False)
    assert 2 == committed.offset
    first.close()
    second = Consumer(settings(servers, group_id=topic, auto_offset_reset="earliest"))
    second.subscribe([topic])
    assert [b"2", b"3"] == [message.value() for message in consume(second, 2)]
    second.close()  # commits by itself
    third = Consumer(settings(servers, group_id=topic))
    (position,) = third.committed([TopicPartition(topic, 0)], 30)
    assert 4 == position.offset
    third.close()


def test_commit_keeps_metadata_and_leader_epoch(topic: str, servers: str) -> None:
    write(servers, topic, b"0", b"1")
    consumer = Consumer(settings(servers, group_id=topic))
    consumer.commit(offsets=[TopicPartition(topic, 0, 1, "a note \u00fc", 0)], asynchronous=False)
    (position,) = consumer.committed([TopicPartition(topic, 0)], 30)
    assert (1, "a note \u00fc") == (position.offset, position.metadata)
    assert 0 == position.leader_epoch
    consumer.close()


def test_commit_to_a_missing_topic_is_refused(servers: str, name: str) -> None:
    consumer = Consumer(settings(servers, group_id=name))
    with pytest.raises(KafkaException) as refusal:
        consumer.commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)
    assert KafkaError.UNKNOWN_TOPIC_OR_PART == refusal.value.args[0].code()
    consumer.close()


def test_nothing_committed_is_not_offset_zero(topic: str, servers: str) -> None:
    consumer = Consumer(settings(servers, group_id=topic))
    (position,) = consumer.committed([TopicPartition(topic, 0)], 30)
    assert -1001 == position.offset  # librdkafka's name for "none"
    consumer.close()


def test_a_reader_that_has_seeked_reads_from_there(topic: str, servers: str) -> None:
    write(servers, topic, *(b"%d" % number for number in range(10)))
    consumer = Consumer(settings(servers, group_id=topic, auto_offset_reset="earliest"))
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert 10 == len(consume(consumer, 10))
    consumer.seek(TopicPartition(topic, 0, 3))
    assert [b"3", b"4"] == [message.value() for message in consume(consumer, 2)]
    (position,) = consumer.position([TopicPartition(topic, 0)])
    assert 5 == position.offset
    consumer.close()


def test_offsets_are_found_by_time(topic: str, servers: str) -> None:
    producer = Producer(settings(servers))
    for number in range(10):
        producer.produce(topic, b"%d" % number, timestamp=1_700_000_000_000 + 1000 * number)
        producer.flush(30)
    consumer = Consumer(settings(servers, group_id=topic))
    times = (1_600_000_000_000, 1_700_000_003_000, 1_700_000_003_001, 1_700_000_009_000, 1_700_000_009_001)
    offsets = [consumer.offsets_for_times([TopicPartition(topic, 0, time)], 30)[0].offset for time in times]
    assert [0, 3, 4, 9, -1] == offsets
    assert (0, 10) == consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)
    consumer.close()


def test_missing_offset_leads_where_the_settings_say(topic: str, servers: str) -> None:
    write(servers, topic, b"0", b"1")
    for reset, expected in (("earliest", b"0"), ("latest", b"new"), ("error", None)):
        consumer = Consumer(settings(servers, group_id=topic, auto_offset_reset=reset))
        consumer.assign([TopicPartition(topic, 0, 1000)])
        message = None
        while message is None:
            message = consumer.poll(0.1)
            if message is None and reset == "latest":
                write(servers, topic, b"new")
        if expected is None:
            assert KafkaError._AUTO_OFFSET_RESET == message.error().code()
        else:
            assert expected == message.value()
        consumer.close()


def test_paused_partition_waits_while_others_go_on(make_topic: Callable[..., str], servers: str) -> None:
    topic = make_topic(partitions=2)
    consumer = Consumer(settings(servers, group_id=topic, auto_offset_reset="earliest"))
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    consumer.pause([TopicPartition(topic, 0)])
    write(servers, topic, b"paused", partition=0)
    write(servers, topic, b"going on", partition=1)
    assert [b"going on"] == [message.value() for message in consume(consumer, 1)]
    assert consumer.poll(0.3) is None
    consumer.resume([TopicPartition(topic, 0)])
    assert [b"paused"] == [message.value() for message in consume(consumer, 1)]
    consumer.close()


def test_waiting_reader_gets_new_records(topic: str, servers: str) -> None:
    consumer = Consumer(
        settings(
            servers, group_id=topic, auto_offset_reset="earliest", fetch_min_bytes=50_000, fetch_wait_max_ms=59_000
        )
    )
    consumer.committed([TopicPartition(topic, 0)], 30)  # it knows its coordinator, and has a connection for it
    consumer.assign([TopicPartition(topic, 0, 0)])
    write(servers, topic, b"too little")
    assert consumer.poll(0.5) is None
    # Meanwhile it can commit: only the connection with the fetch waits.
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    write(servers, topic, b"enough" * 10_000)
    assert [10, 60_000] == [len(message.value()) for message in consume(consumer, 2)]
    consumer.close()
