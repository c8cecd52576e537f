"""The administrative APIs through the clients that people use: confluent-kafka (librdkafka) and kafka-python."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupType,
    ElectionType,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from broker.kafka.groups.offset_coordinator import Committer
from broker.kafka.groups.offsets import CommittedOffset
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka

with warnings.catch_warnings():
    # It reads its schemas in a way that is deprecated in Python 3.11 and was taken up again in 3.13.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka import TopicPartition as PythonTopicPartition
    from kafka.admin import ConfigResource as PythonConfigResource
    from kafka.admin import ConfigResourceType
    from kafka.admin import NewTopic as PythonNewTopic
    from kafka.errors import NoError, TopicAlreadyExistsError, UnknownTopicOrPartitionError


@pytest.fixture(scope="module")
def librdkafka(kafka: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.broker.bootstrap_servers})


@pytest.fixture(scope="module")
def kafka_python(kafka: Kafka) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=kafka.broker.bootstrap_servers)
    yield client
    client.close()


def only(futures: dict[Any, Any]) -> Any:
    """The result of the one future."""
    (future,) = futures.values()
    return future.result(10)


def code(futures: dict[Any, Any]) -> int:
    """The error code that the one future fails with."""
    with pytest.raises(KafkaException) as failure:
        only(futures)
    return int(failure.value.args[0].code())


def test_librdkafka_makes_grows_and_deletes_a_topic(kafka: Kafka, librdkafka: AdminClient) -> None:
    only(librdkafka.create_topics([NewTopic("through-librdkafka", 2, 1, config={"retention.ms": "1000"})]))
    assert code(librdkafka.create_topics([NewTopic("through-librdkafka", 2, 1)])) == ErrorCode.topic_already_exists
    only(librdkafka.create_partitions([NewPartitions("through-librdkafka", 4)]))
    metadata = librdkafka.list_topics("through-librdkafka", timeout=10)
    assert {0, 1, 2, 3} == metadata.topics["through-librdkafka"].partitions.keys()
    only(librdkafka.delete_topics(["through-librdkafka"]))
    assert kafka.inside.logs.topic("through-librdkafka") is None


def test_librdkafka_changes_settings_and_reads_them_back(kafka: Kafka, librdkafka: AdminClient) -> None:
    topic = kafka.topic()
    append = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    only(librdkafka.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=[append])]))
    configs = only(librdkafka.describe_configs([ConfigResource("topic", topic)]))
    assert configs["cleanup.policy"].value == "delete,compact"
    assert configs["cleanup.policy"].source == 1
    assert configs["retention.ms"].is_default
    broker = only(librdkafka.describe_configs([ConfigResource("broker", "1")]))
    assert broker["num.partitions"].value == "1"


def test_librdkafka_finds_offsets_and_deletes_records(kafka: Kafka, librdkafka: AdminClient) -> None:
    topic = kafka.topic()
    kafka.fill(topic, 1000, 3000, 2000)
    partition = TopicPartition(topic, 0)
    specs = {
        OffsetSpec.earliest(): 0,
        OffsetSpec.latest(): 3,
        OffsetSpec.for_timestamp(1500): 1,
        OffsetSpec.for_timestamp(9000): -1,
        OffsetSpec.max_timestamp(): 1,
    }
    for spec, expected in specs.items():
        assert expected == only(librdkafka.list_offsets({partition: spec})).offset
    assert only(librdkafka.delete_records([TopicPartition(topic, 0, 2)])).low_watermark == 2
    assert code(librdkafka.delete_records([TopicPartition(topic, 0, 9)])) == ErrorCode.offset_out_of_range


def test_librdkafka_describes_the_cluster_and_elects_nobody(kafka: Kafka, librdkafka: AdminClient) -> None:
    cluster = librdkafka.describe_cluster().result(10)
    assert (cluster.cluster_id, cluster.controller.id) == (kafka.inside.cluster_id, 1)
    partition = TopicPartition(kafka.topic(), 0)
    results = librdkafka.elect_leaders(ElectionType.PREFERRED, [partition]).result(10)
    assert results[partition].code() == ErrorCode.election_not_needed


def test_librdkafka_gets_an_id_for_an_idempotent_producer(kafka: Kafka) -> None:
    topic = kafka.topic()
    producer = Producer({"bootstrap.servers": kafka.broker.bootstrap_servers, "enable.idempotence": True})
    delivered: list[Any] = []
    producer.produce(topic, b"once", on_delivery=lambda error, message: delivered.append(error))
    producer.flush(10)
    assert [None] == delivered


def test_kafka_python_makes_and_describes_a_topic(kafka: Kafka, kafka_python: Any) -> None:
    kafka_python.create_topics([PythonNewTopic("through-kafka-python", 3, 1, topic_configs={"segment.ms": "7000"})])
    with pytest.raises(TopicAlreadyExistsError):
        kafka_python.create_topics([PythonNewTopic("through-kafka-python", 3, 1)])
    resource = PythonConfigResource(ConfigResourceType.TOPIC, "through-kafka-python")
    described = kafka_python.describe_configs([resource])
    (settings,) = next(iter(described.values())).values()
    # By default it asks for what differs from the defaults.
    assert {"segment.ms": "7000"} == {name: entry["value"] for name, entry in settings.items()}
    ((directory,),) = [broker["log_dirs"] for broker in kafka_python.describe_log_dirs()]
    assert "through-kafka-python" in [topic["name"] for topic in directory["topics"]]
    assert kafka_python.list_partition_reassignments() == {}
    kafka_python.delete_topics(["through-kafka-python"])
    assert kafka.inside.logs.topic("through-kafka-python") is None


def test_kafka_python_changes_the_brokers_defaults(kafka: Kafka, kafka_python: Any) -> None:
    topic = kafka.topic()
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    for value, expected in ((("SET", "123000"), 123_000), (("DELETE", None), 604_800_000)):
        resource = PythonConfigResource(ConfigResourceType.BROKER, "1", configs={"log.retention.ms": value})
        kafka_python.alter_configs([resource])
        assert expected == log.config.retention_ms


# What consoles ask of one node ------------------------------------------------------------------------------------------


def test_kafka_python_describes_and_moves_replicas(kafka: Kafka, kafka_python: Any) -> None:
    name = kafka.topic()
    node_id, partition = kafka.inside.node_id, PythonTopicPartition(name, 0)
    moved = kafka_python.alter_partition_reassignments({partition: [node_id], PythonTopicPartition(name, 9): [node_id]})
    assert moved[partition] is None
    assert moved[PythonTopicPartition(name, 9)] is UnknownTopicOrPartitionError
    ((directory,),) = [broker["log_dirs"] for broker in kafka_python.describe_log_dirs()]
    assert list(kafka_python.alter_replica_log_dirs({(name, 0, node_id): directory["log_dir"]}).values()) == [NoError]
    quorum = kafka_python.describe_metadata_quorum()
    (shown,) = quorum["topics"][0]["partitions"]
    assert (shown["error"], shown["leader_id"]) == (None, node_id)


def test_librdkafka_lists_groups_by_their_type(kafka: Kafka, librdkafka: AdminClient) -> None:
    kafka.inside.groups.offsets.commit(
        "by-type", Committer("", None, -1), {(kafka.topic(), 0): CommittedOffset(1, -1, "", 0)}, lambda errors: None
    )
    described = librdkafka.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result()
    assert {one.type for one in described.valid if one.group_id == "by-type"} == {ConsumerGroupType.CLASSIC}
    assert librdkafka.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result().valid == []


def test_librdkafka_is_told_what_it_may_do(kafka: Kafka, librdkafka: AdminClient) -> None:
    topics = TopicCollection([kafka.topic()])
    (future,) = librdkafka.describe_topics(topics, include_authorized_operations=True).values()
    assert AclOperation.ALTER_CONFIGS in future.result().authorized_operations
    cluster = librdkafka.describe_cluster(include_authorized_operations=True).result()
    assert AclOperation.CLUSTER_ACTION in cluster.authorized_operations


def test_both_clients_change_a_groups_settings(kafka: Kafka, librdkafka: AdminClient, kafka_python: Any) -> None:
    name = "consumer.session.timeout.ms"
    entry = ConfigEntry(name, "50000", incremental_operation=AlterConfigOpType.SET)
    only(librdkafka.incremental_alter_configs([ConfigResource(ResourceType.GROUP, "g", incremental_configs=[entry])]))
    found = only(librdkafka.describe_configs([ConfigResource(ResourceType.GROUP, "g")]))
    assert (found[name].value, found["share.session.timeout.ms"].value) == ("50000", "45000")
    described = kafka_python.describe_configs([PythonConfigResource(ConfigResourceType.GROUP, "g")])
    (settings,) = next(iter(described.values())).values()
    assert settings[name]["value"] == "50000"


def test_librdkafka_sets_what_means_nothing_here(kafka: Kafka, librdkafka: AdminClient) -> None:
    # As librdkafka's own test of this API does.
    name = "sasl.login.refresh.min.period.seconds"
    entry = ConfigEntry(name, "58000", incremental_operation=AlterConfigOpType.SET)
    only(librdkafka.incremental_alter_configs([ConfigResource("broker", "1", incremental_configs=[entry])]))
    described = only(librdkafka.describe_configs([ConfigResource("broker", "1")]))
    assert described[name].value == "58000"
