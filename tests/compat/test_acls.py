"""ACLs through confluent-kafka and kafka-python: administration, and what a user notices whose ACL is revoked."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.compat.clients.kafka_python import kafka
from tests.compat.clients.librdkafka import consume, settings
from tests.compat.served import Served

READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
EVERYTHING = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Anonymous clients of its first listener may do everything; users log in at the second one."""
    with Served(
        tmp_path_factory.mktemp("acls"),
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:ANONYMOUS",
        "sasl.enabled.mechanisms=SCRAM-SHA-256",
        "connection.failed.authentication.delay.ms=0",
        more_listeners=["kafka+sasl://127.0.0.1:0"],
    ) as broker:
        yield broker
        assert broker.stop() == 0
        assert [] == broker.errors


@pytest.fixture
def admin(broker: Served) -> Iterator[AdminClient]:
    admin = AdminClient(settings(broker.address))
    yield admin
    delete(admin, EVERYTHING)


@pytest.fixture
def alice(broker: Served, admin: AdminClient) -> dict[str, Any]:
    """The settings of a client that has logged in."""
    secret = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    changes = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", secret, b"wonderland")])
    changes["alice"].result(30)
    return settings(
        broker.addresses["kafka+sasl"],
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="alice",
        sasl_password="wonderland",
    )


@pytest.fixture
def topic(admin: AdminClient) -> str:
    name = "orders-eu"
    if name not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


def acl(
    name: str,
    operation: AclOperation,
    pattern: ResourcePatternType = LITERAL,
    kind: ResourceType = TOPIC,
    permission: AclPermissionType = ALLOW,
    principal: str = "User:alice",
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, "*", operation, permission)


def create(admin: AdminClient, *acls: AclBinding) -> None:
    for future in admin.create_acls(list(acls)).values():
        future.result(30)


def delete(admin: AdminClient, *filters: AclBindingFilter) -> list[AclBinding]:
    return [deleted for future in admin.delete_acls(list(filters)).values() for deleted in future.result(30)]


def exactly(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )


def code_of(failure: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(failure.value.args[0].code())


# -- administration -----------------------------------------------------------------------------------------------------


def test_confluent_kafka_creates_describes_and_deletes_acls(admin: AdminClient) -> None:
    reads, writes = acl("orders-", READ, PREFIXED), acl("*", WRITE, permission=DENY, principal="User:CN=ü, O=a;b")
    create(admin, reads, writes)
    assert {reads, writes} == set(admin.describe_acls(EVERYTHING).result(30))
    matching = AclBindingFilter(
        TOPIC, "orders-eu", ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert {reads, writes} == set(admin.describe_acls(matching).result(30))
    assert [writes] == delete(admin, exactly(writes))
    assert [reads] == admin.describe_acls(EVERYTHING).result(30)


def test_confluent_kafka_is_told_which_acl_is_wrong(admin: AdminClient) -> None:
    good, bad = acl("t", READ), acl("t", READ, kind=ResourceType.BROKER)  # BROKER: of the cluster, with its name only
    futures = admin.create_acls([good, bad])
    futures[good].result(30)
    with pytest.raises(KafkaException) as failure:
        futures[bad].result(30)
    assert KafkaError.INVALID_REQUEST == code_of(failure)


def test_kafka_python_creates_describes_and_deletes_acls(broker: Served, admin: AdminClient) -> None:
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourcePattern,
        ResourcePatternFilter,
    )
    from kafka.admin import ResourceType as Kind

    client = kafka.KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        pattern = ResourcePattern(Kind.GROUP, "g-", ACLResourcePatternType.PREFIXED)
        given = ACL("User:bob", "10.0.0.1", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)
        result = client.create_acls([given])
        assert ([given], []) == (result["succeeded"], result["failed"])
        everything = ACLFilter(
            None,
            None,
            ACLOperation.ANY,
            ACLPermissionType.ANY,
            ResourcePatternFilter(Kind.ANY, None, ACLResourcePatternType.ANY),
        )
        described, error = client.describe_acls(everything)
        assert [given] == described
        assert 0 == error.errno
        ((_, deleted, error),) = client.delete_acls([everything])
        assert [given] == deleted
        assert 0 == error.errno
    finally:
        client.close()


def test_a_user_without_rights_administers_nothing(admin: AdminClient, alice: dict[str, Any], topic: str) -> None:
    user = AdminClient(alice)
    create(admin, acl("secret", READ, principal="User:bob"))
    # It is refused, which librdkafka reports as an empty list.
    assert [] == user.describe_acls(EVERYTHING).result(30)
    for future, code in (
        (next(iter(user.create_acls([acl("*", READ)]).values())), KafkaError.CLUSTER_AUTHORIZATION_FAILED),
        (next(iter(user.delete_acls([EVERYTHING]).values())), KafkaError.CLUSTER_AUTHORIZATION_FAILED),
        (user.create_topics([NewTopic("new", 1, 1)])["new"], KafkaError.TOPIC_AUTHORIZATION_FAILED),
        (user.delete_topics([topic])[topic], KafkaError.TOPIC_AUTHORIZATION_FAILED),
    ):
        with pytest.raises(KafkaException) as failure:
            future.result(30)
        assert code == code_of(failure)
    assert topic not in user.list_topics(timeout=30).topics
    assert 1 == len(admin.describe_acls(EVERYTHING).result(30))


# -- use ----------------------------------------------------------------------------------------------------------------


def write(producer: Producer, topic: str) -> KafkaError | None:
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"value", partition=0, on_delivery=lambda error, _: errors.append(error))
    assert 0 == producer.flush(30)
    return errors[0]


def test_revoked_acl_stops_a_connected_producer(admin: AdminClient, alice: dict[str, Any], topic: str) -> None:
    allowed = acl("orders-", WRITE, PREFIXED)
    create(admin, allowed)
    producer = Producer(alice)
    assert write(producer, topic) is None
    assert [allowed] == delete(admin, exactly(allowed))
    error = write(producer, topic)
    assert error is not None
    assert KafkaError.TOPIC_AUTHORIZATION_FAILED == error.code()
    create(admin, allowed)
    assert write(Producer(alice), topic) is None


def test_new_denial_stops_a_connected_consumer(admin: AdminClient, alice: dict[str, Any], topic: str) -> None:
    create(admin, acl(topic, AclOperation.ALL), acl("readers", READ, kind=GROUP))
    assert write(Producer(alice), topic) is None
    consumer = Consumer(
        {**alice, "group.id": "readers", "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": -1}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consume(consumer, 1)
        create(admin, acl(topic, READ, permission=DENY))
        assert KafkaError.TOPIC_AUTHORIZATION_FAILED == first_error(consumer).code()
    finally:
        consumer.close()


def first_error(consumer: Consumer) -> KafkaError:
    for _ in range(60):
        message = consumer.poll(1)
        if message is not None and message.error() is not None:
            error: KafkaError = message.error()
            return error
    raise AssertionError("the consumer was told no error")
