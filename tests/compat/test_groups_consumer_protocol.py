"""Consumer groups whose coordinator assigns the partitions (KIP-848), with librdkafka and Java: joining, static members, regular
expressions, fencing, a broker that is killed, and groups that change from the classic protocol and back one member after the
other."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tests.compat.clients import java
from tests.compat.clients.librdkafka import settings
from tests.compat.conftest import new_name
from tests.compat.served import Served

PARTITIONS = 6
# Short, so that nobody waits for long. Sessions are as long as they may be: a member may have to wait for a turn.
SETTINGS = (
    "group_min_session_timeout_ms=500",
    "group_consumer_min_heartbeat_interval_ms=100",
    "group_consumer_heartbeat_interval_ms=100",
    "group_consumer_min_session_timeout_ms=1000",
    "group_consumer_session_timeout_ms=60000",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("consumer-protocol"), *SETTINGS) as broker:
        yield broker
        assert broker.stop() == 0
        assert [] == broker.errors


@pytest.fixture
def topic(broker: Served) -> str:
    return make_topic(broker, new_name("consumer"))


def make_topic(broker: Served, name: str, partitions: int = PARTITIONS) -> str:
    admin = AdminClient(settings(broker.address))
    admin.create_topics([NewTopic(name, partitions)])[name].result(30)
    return name


class Member:
    """A consumer that keeps book of what it owns and what it has read."""

    def __init__(self, servers: str, group: str, subscription: str, protocol: str = "consumer", **more: object) -> None:
        if protocol == "classic":
            more = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 100, **more}
            more.setdefault("partition_assignment_strategy", "cooperative-sticky")
        self.owned: set[tuple[str, int]] = set()
        self.values: list[bytes] = []
        self.consumer = Consumer(
            settings(
                servers,
                group_id=group,
                group_protocol=protocol,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                topic_metadata_refresh_interval_ms=200,
                **more,
            )
        )
        self.consumer.subscribe(
            [subscription], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None and message.error() is None:
            self.values.append(message.value())

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned |= {(partition.topic, partition.partition) for partition in partitions}

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.owned -= {(partition.topic, partition.partition) for partition in partitions}


class Group:
    def __init__(self, broker: Served, topic: str) -> None:
        self.broker, self.topic = broker, topic
        self.name = f"group-of-{topic}"
        self.members: list[Member] = []

    def join(self, subscription: str = "", protocol: str = "consumer", **more: object) -> Member:
        member = Member(self.broker.address, self.name, subscription or self.topic, protocol, **more)
        self.members.append(member)
        return member

    def leave(self, member: Member) -> None:
        member.consumer.close()
        self.members.remove(member)

    def settle(self, *topics: str, until: Callable[[], bool] = lambda: True) -> None:
        """Until every partition has exactly one owner, every member has equally many, and ``until``. pytest's timeout is the
        limit. Each partition can have its owner before the counts are equal: one member has given partitions up, another not.
        """
        everything = {(topic, partition) for topic in topics or (self.topic,) for partition in range(PARTITIONS)}
        while not (self._settled(everything) and until()):
            for member in self.members:
                member.poll()

    def _settled(self, everything: set[tuple[str, int]]) -> bool:
        owned = [partition for member in self.members for partition in member.owned]
        equally = all(len(member.owned) * len(self.members) == len(everything) for member in self.members)
        return equally and sorted(owned) == sorted(everything)

    def close(self) -> None:
        for member in self.members:
            member.consumer.close()

    @property
    def values(self) -> set[int]:
        """What the present members have read, some of it perhaps twice."""
        return {int(value) for member in self.members for value in member.values}

    @property
    def type(self) -> ConsumerGroupType:
        """As an administrator is told."""
        admin = AdminClient(settings(self.broker.address))
        listed = admin.list_consumer_groups().result(30)
        (mine,) = [listing for listing in listed.valid if listing.group_id == self.name]
        return mine.type


@pytest.fixture
def group(broker: Served, topic: str) -> Iterator[Group]:
    group = Group(broker, topic)
    yield group
    group.close()


def alter_group(broker: Served, group: str, **changes: str) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = AdminClient(settings(broker.address))
    admin.incremental_alter_configs([resource])[resource].result(30)


def write(broker: Served, topic: str, *values: int) -> None:
    producer = Producer(settings(broker.address))
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % PARTITIONS)
    assert producer.flush(30) == 0


def test_members_join_and_leave(group: Group) -> None:
    group.join()
    group.settle()
    group.join()
    group.join()
    group.settle(until=lambda: [len(member.owned) for member in group.members] == [2, 2, 2])
    assert group.type == ConsumerGroupType.CONSUMER
    group.leave(group.members[0])
    group.settle(until=lambda: [len(member.owned) for member in group.members] == [3, 3])


def test_a_member_that_vanishes_is_replaced(group: Group, broker: Served) -> None:
    alter_group(broker, group.name, **{"consumer.session.timeout.ms": "1000"})
    group.join()
    program = (
        "import sys, confluent_kafka as k\n"
        f"c = k.Consumer({{'bootstrap.servers': '{broker.address}', 'group.id': '{group.name}', "
        "'group.protocol': 'consumer'})\n"
        f"c.subscribe(['{group.topic}'])\n"
        "while not c.assignment(): c.poll(0.1)\n"
        "print('there', flush=True)\n"
        "while True: c.poll(0.1)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        lines: list[bytes] = []
        assert process.stdout is not None
        while not lines:
            group.members[0].poll()
            if len(group.members[0].owned) == PARTITIONS // 2:
                lines.append(process.stdout.readline())
        process.kill()
    group.settle()


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_the_assignor_is_the_members_choice(group: Group, assignor: str) -> None:
    for _ in range(2):
        group.join(group_remote_assignor=assignor)
    group.settle(until=lambda: [len(member.owned) for member in group.members] == [3, 3])


def test_static_member_gets_its_partitions_back(group: Group) -> None:
    first, second = (group.join(group_instance_id=name) for name in ("one", "two"))
    group.settle()
    had, kept = set(first.owned), set(second.owned)
    group.leave(first)
    again = group.join(group_instance_id="one")
    group.settle()
    assert (again.owned, second.owned) == (had, kept)


def test_regular_expression_matches_later_topics(broker: Served, group: Group) -> None:
    first = make_topic(broker, f"{group.topic}-a")
    group.join(f"^{group.topic}-.*")
    group.settle(first)
    second = make_topic(broker, f"{group.topic}-b")
    group.settle(first, second)


def test_committed_offsets_are_kept_and_read(broker: Served, group: Group) -> None:
    write(broker, group.topic, *range(60))
    member = group.join()
    group.settle(until=lambda: len(member.values) == 60)
    member.consumer.commit(asynchronous=False)
    group.leave(member)
    write(broker, group.topic, *range(60, 66))
    member = group.join()
    group.settle(until=lambda: len(member.values) == 6)
    assert sorted(map(int, member.values)) == list(range(60, 66))


def test_client_refuses_settings_of_the_other_protocol(broker: Served) -> None:
    """So the broker need not say it: the client names them itself."""
    with pytest.raises(KafkaException, match=r"session\.timeout\.ms"):
        Member(broker.address, "g", "t", session_timeout_ms=3000)


def test_group_changes_its_protocol_and_back(broker: Served, group: Group) -> None:
    write(broker, group.topic, *range(60))
    for _ in range(3):
        group.join(protocol="classic")
    group.settle(until=lambda: len(group.values) == 60)
    for member in group.members:
        member.consumer.commit(asynchronous=False)
    assert group.type == ConsumerGroupType.CLASSIC
    for to in ("consumer", "classic"):
        for _ in range(3):
            group.leave(group.members[0])
            group.join(protocol=to)
            group.settle()
        assert group.type == ConsumerGroupType[to.upper()]
    write(broker, group.topic, *range(60, 66))
    group.settle(until=lambda: len(group.values) >= 6)
    assert group.values == set(range(60, 66)), "what was committed is not read again"


def test_members_live_on_while_the_broker_is_killed(tmp_path: Path) -> None:
    with Served(tmp_path, *SETTINGS) as broker:
        group = Group(broker, make_topic(broker, new_name("killed")))
        for _ in range(3):
            group.join()
        group.settle()
        write(broker, group.topic, *range(60))
        group.settle(until=lambda: sum(len(member.values) for member in group.members) == 60)
        for member in group.members:
            member.consumer.commit(asynchronous=False)
        owned = [set(member.owned) for member in group.members]
        broker.kill()
        broker.start()
        write(broker, group.topic, *range(60, 120))
        group.settle(until=lambda: sum(len(member.values) for member in group.members) == 120)
        assert [set(member.owned) for member in group.members] == owned
        values = sorted(int(value) for member in group.members for value in member.values)
        assert values == list(range(120)), "nothing lost and nothing read twice"
        group.close()


def test_paused_member_is_fenced_and_comes_back(broker: Served, group: Group) -> None:
    """A member that does not poll for too long: its partitions go to the others, and it gets some when it is back."""
    slow = group.join(max_poll_interval_ms=1000)
    other = group.join()
    group.settle()
    while len(other.owned) < PARTITIONS:
        other.poll()
    group.settle()
    assert slow.owned and other.owned


JAVA = ["rebalance", "static", "regex", "admin", "upgrade", "settings"]


def test_java(broker: Served) -> None:
    assert java.run(java.jars_or_skip(), "ConsumerGroups", broker.address, new_name("java")) == JAVA
