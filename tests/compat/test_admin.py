"""Administration: groups and offsets with each admin client, and whole sessions of the Node clients and aiokafka.

Topics, settings and the cluster through confluent-kafka and kafka-python are in tests/kafka/handlers/test_admin_clients.py.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.compat.clients.kafka_python import kafka
from tests.compat.clients.kcat import Kcat
from tests.compat.clients.kcat import run as kcat
from tests.compat.clients.librdkafka import consume, settings
from tests.compat.clients.node import Kafkajs, Platformatic
from tests.compat.served import NODES
from tests.compat.test_groups_librdkafka import write


def refused(future: Any) -> int:
    """The code of the error that the future fails with."""
    with pytest.raises(KafkaException) as failure:
        future.result(30)
    return int(failure.value.args[0].code())


@pytest.fixture
def group(topic: str, servers: str) -> str:
    """A group of that name, without members, that has committed offset 2 of a topic of three records."""
    write(servers, topic, b"0", b"1", b"2")
    consumer = Consumer(settings(servers, group_id=topic, auto_offset_reset="earliest"))
    consumer.subscribe([topic])
    message = consume(consumer, 2)[-1]
    consumer.commit(message=message, asynchronous=False)
    consumer.unsubscribe()
    consumer.close()
    return topic


def test_groups_are_listed_and_described(group: str, servers: str, admin: AdminClient) -> None:
    listed = admin.list_consumer_groups().result(30).valid
    assert [ConsumerGroupState.EMPTY] == [entry.state for entry in listed if entry.group_id == group]
    only_stable = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(30).valid
    assert group not in {entry.group_id for entry in only_stable}

    consumer = Consumer(settings(servers, group_id=group, client_id="who", group_instance_id="instance"))
    consumer.subscribe([group])
    while not consumer.assignment():
        consumer.poll(0.1)
    described = admin.describe_consumer_groups([group])[group].result(30)
    assert (ConsumerGroupState.STABLE, "range") == (described.state, described.partition_assignor)
    assert 1 <= described.coordinator.id <= NODES
    (member,) = described.members
    assert ("who", "instance", "/127.0.0.1") == (member.client_id, member.group_instance_id, member.host)
    assert [(group, 0)] == [(assigned.topic, assigned.partition) for assigned in member.assignment.topic_partitions]
    assert KafkaError.NON_EMPTY_GROUP == refused(admin.delete_consumer_groups([group])[group])
    consumer.close()


def test_a_group_that_is_not_there_is_dead(name: str, admin: AdminClient) -> None:
    assert ConsumerGroupState.DEAD == admin.describe_consumer_groups([name])[name].result(30).state
    assert KafkaError.GROUP_ID_NOT_FOUND == refused(admin.delete_consumer_groups([name])[name])


def test_group_offsets_are_read_altered_and_deleted(group: str, admin: AdminClient) -> None:
    def offsets() -> list[int]:
        (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        return [partition.offset for partition in future.result(30).topic_partitions]

    assert [2] == offsets()
    change = ConsumerGroupTopicPartitions(group, [TopicPartition(group, 0, 1)])
    (changed,) = admin.alter_consumer_group_offsets([change]).values()
    assert [None] == [partition.error for partition in changed.result(30).topic_partitions]
    assert [1] == offsets()
    admin.delete_consumer_groups([group])[group].result(30)
    assert [] == offsets()


def test_active_group_s_offsets_are_not_altered(group: str, servers: str, admin: AdminClient) -> None:
    consumer = Consumer(settings(servers, group_id=group))
    consumer.subscribe([group])
    while not consumer.assignment():
        consumer.poll(0.1)
    change = ConsumerGroupTopicPartitions(group, [TopicPartition(group, 0, 1)])
    (changed,) = admin.alter_consumer_group_offsets([change]).values()
    errors = [partition.error for partition in changed.result(30).topic_partitions]
    assert [KafkaError.UNKNOWN_MEMBER_ID] == [error.code() for error in errors]
    consumer.close()


def test_kafka_python_reads_resets_and_deletes_a_group(group: str, servers: str) -> None:
    client = kafka.KafkaAdminClient(bootstrap_servers=servers)
    partition = kafka.TopicPartition(group, 0)
    assert group in {listed["group_id"] for listed in client.list_groups()}
    assert "Empty" == client.describe_groups([group])[group]["group_state"]
    assert 2 == client.list_group_offsets(group)[group][partition].offset
    client.alter_group_offsets(group, {partition: kafka.OffsetAndMetadata(1, "", -1)})
    assert 1 == client.list_group_offsets(group)[group][partition].offset
    client.delete_group_offsets(group, [partition])
    assert {group: {}} == client.list_group_offsets(group)
    client.close()


def test_records_are_deleted_up_to_an_offset(topic: str, servers: str, admin: AdminClient) -> None:
    write(servers, topic, b"0", b"1", b"2")
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 2)]).values()
    assert 2 == deleted.result(30).low_watermark
    (beyond,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    assert KafkaError.OFFSET_OUT_OF_RANGE == refused(beyond)
    assert [b"2"] == kcat_values(servers, topic) if Kcat().missing() is None else True
    consumer = Consumer(settings(servers, group_id=topic, auto_offset_reset="earliest"))
    consumer.assign([TopicPartition(topic, 0, 0)])  # deleted: it has to begin where there is something
    assert [b"2"] == [message.value() for message in consume(consumer, 1)]
    consumer.close()


def kcat_values(servers: str, topic: str) -> list[bytes]:
    return kcat(servers, "-C", "-t", topic, "-o", "beginning", "-e", "-q").split()


def test_offsets_are_listed_by_every_kind_of_time(topic: str, servers: str, admin: AdminClient) -> None:
    write(servers, topic, b"0", b"1", b"2")
    partition = TopicPartition(topic, 0)
    for spec, expected in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 3),
        (OffsetSpec.for_timestamp(0), 0),
        (OffsetSpec.for_timestamp(2**62), -1),
    ):
        (listed,) = admin.list_offsets({partition: spec}).values()
        assert expected == listed.result(30).offset
    (listed,) = admin.list_offsets({partition: OffsetSpec.max_timestamp()}).values()
    assert listed.result(30).offset in (0, 1, 2)  # three records of one millisecond or of two


def test_aiokafka_administers(name: str, servers: str) -> None:
    async def test() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=servers)
        await client.start()
        try:
            await client.create_topics([AioNewTopic(name, 2, 1, topic_configs={"retention.ms": "60000"})])
            await client.create_partitions({name: AioNewPartitions(3)})
            (described,) = await client.describe_topics([name])
            assert (0, 3) == (described["error_code"], len(described["partitions"]))
            resource = AioConfigResource(AioConfigResourceType.TOPIC, name, configs={"cleanup.policy": "compact"})
            await client.alter_configs([resource])
            (response,) = await client.describe_configs([AioConfigResource(AioConfigResourceType.TOPIC, name)])
            configs = {entry[0]: entry[1] for entry in response.resources[0][4]}
            # The old AlterConfigs replaces all that was set.
            assert ("compact", "604800000") == (configs["cleanup.policy"], configs["retention.ms"])
            assert NODES == len((await client.describe_cluster())["brokers"])
            await client.delete_topics([name])
            assert name not in await client.list_topics()
        finally:
            await client.close()

    asyncio.run(test())


def test_kafkajs_administers(group: str, servers: str) -> None:
    client = Kafkajs()
    if reason := client.missing():
        pytest.skip(reason)
    expected = {
        "created": True,
        "twice": False,
        "partitions": 3,
        "configs": {"cleanup.policy": "compact", "retention.ms": "604800000"},
        "brokers": NODES,
        "offsets": ["0", "0", "0"],
        "committed": ["2"],
        "groups": 1,
        "described": "Empty",
        "gone": True,
    }
    assert expected == client.run("admin", servers=servers, topic=f"new-{group}", group=group)


def test_platformatic_administers(name: str, servers: str) -> None:
    client = Platformatic()
    if reason := client.missing():
        pytest.skip(reason)
    expected = {
        "twice": "TOPIC_ALREADY_EXISTS",
        "partitions": 3,
        "configs": {"cleanup.policy": "compact", "retention.ms": "60000"},
        "brokers": NODES,
        "gone": True,
        "unknown": "UNKNOWN_TOPIC_OR_PARTITION",
    }
    assert expected == client.run("admin", servers=servers, topic=name)


def test_kcat_lists_and_asks_for_offsets(make_topic: Callable[..., str], servers: str) -> None:
    if reason := Kcat().missing():
        pytest.skip(reason)
    topic = make_topic(partitions=2)
    write(servers, topic, b"0", b"1", partition=1)
    listed = kcat(servers, "-L", "-t", topic).decode()
    assert f'topic "{topic}" with 2 partitions' in listed
    assert "broker 1 at 127.0.0.1" in listed
    assert f"{topic} [1] offset 0" == kcat(servers, "-Q", "-t", f"{topic}:1:1000000000000").decode().strip()
    assert f"{topic} [1] offset 2" == kcat(servers, "-Q", "-t", f"{topic}:1:-1").decode().strip()
