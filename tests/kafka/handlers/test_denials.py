"""The answers of the data handlers to clients without permission: as Kafka's, and revealing nothing that exists."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from broker.kafka.authorization import SUPPORTED_BITS
from broker.kafka.fetches import ParkedFetch
from broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from tests.kafka.handlers.group_client import ask_join, ask_sync, commit, heartbeat, join_fields, new_group, stable
from tests.kafka.handlers.kafka_client import Beside, Kafka
from tests.security.grants import Grant, Grants
from tests.waiting import wait_for

READ, WRITE, DESCRIBE, CREATE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
DENIED = ErrorCode.topic_authorization_failed
BATCH = bytes(build_batch([(b"key", b"value", [], 1_000_000)]))


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka(auto_create_topics_enable=True) as kafka:
        kafka.inside.authorizer = Grants()
        yield kafka


@pytest.fixture
def grants(kafka: Kafka) -> Grants:
    authorizer = kafka.inside.authorizer
    assert isinstance(authorizer, Grants)
    return authorizer


def grant(operation: Operation, *topics: str) -> list[Grant]:
    return [(operation, TOPIC, topic) for topic in topics]


# -- produce ------------------------------------------------------------------------------------------------------------


def produce_fields(*topics: str, acks: int = 1, partitions: int = 1) -> dict[str, Any]:
    data = [{"index": index, "records": BATCH} for index in range(partitions)]
    return {
        "acks": acks,
        "timeout": 30_000,
        "topic_data": [{"name": topic, "partition_data": data} for topic in topics],
    }


def produce(kafka: Kafka, *topics: str, acks: int = 1, partitions: int = 1) -> dict[str, list[int]]:
    """The error codes of each topic's partitions."""
    answer = kafka.ask(ApiKey.PRODUCE, 9, **produce_fields(*topics, acks=acks, partitions=partitions))
    return {response.name: [each.error_code for each in response.partition_responses] for response in answer.responses}


@pytest.mark.parametrize("acks", [1, -1])
def test_records_reach_only_the_permitted_topics(kafka: Kafka, grants: Grants, acks: int) -> None:
    open_to_all, closed = kafka.topic(2), kafka.topic(2)
    with grants.only(*grant(WRITE, open_to_all)):
        assert produce(kafka, closed, open_to_all, acks=acks, partitions=2) == {
            open_to_all: [0, 0],
            closed: [DENIED, DENIED],
        }
        assert produce(kafka, closed, acks=acks) == {closed: [DENIED]}
        assert produce(kafka, "no-such-topic", acks=acks) == {"no-such-topic": [DENIED]}
    assert [end_of(kafka, topic) for topic in (open_to_all, closed)] == [1, 0]


def end_of(kafka: Kafka, topic: str) -> int:
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    return log.log_end_offset


def test_topic_is_authorized_once_for_all_its_partitions(kafka: Kafka, grants: Grants) -> None:
    topic = kafka.topic(20)
    with grants.only(*grant(WRITE, topic), *grant(READ, topic)):
        produce(kafka, topic, partitions=20)
        fetch(kafka, topic, partitions=20)
        assert grants.asked == [*grant(WRITE, topic), *grant(READ, topic)]


def test_without_acks_a_denial_closes_the_connection(kafka: Kafka, grants: Grants) -> None:
    topic = kafka.topic()
    with grants.only(), Beside(kafka) as client:
        client.tell(ApiKey.PRODUCE, 9, **produce_fields(topic, acks=0))
        assert client.is_closed()
    assert end_of(kafka, topic) == 0


def transactional(kafka: Kafka, *topics: str, transactional_id: str | None, acks: int = 1) -> bytes:
    batch = build_batch(
        [(b"key", b"value", [], 1_000_000)], producer_id=1, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
    )
    fields = produce_fields(*topics, acks=acks) | {"transactional_id": transactional_id}
    for one in fields["topic_data"]:
        one["partition_data"] = [{"index": 0, "records": bytes(batch)}]
    return control.encode_request(ApiKey.PRODUCE, 9, 7, "test", fields)


def codes(frame: bytes) -> dict[str, int]:
    answer = control.parse_response(ApiKey.PRODUCE, 9, frame)[1]
    return {response.name: response.partition_responses[0].error_code for response in answer.responses}


def test_denied_transactional_id_prevents_producing(kafka: Kafka, grants: Grants) -> None:
    open_to_all, closed = kafka.topic(), kafka.topic()
    writes = grant(WRITE, open_to_all)
    for transactional_id in ("mine", None):
        with grants.only(*writes):
            frame = kafka.exchange(transactional(kafka, open_to_all, closed, transactional_id=transactional_id))
            assert codes(frame) == dict.fromkeys((open_to_all, closed), ErrorCode.transactional_id_authorization_failed)
    with grants.only(*writes, (WRITE, ResourceType.TRANSACTIONAL_ID, "mine")):
        frame = kafka.exchange(transactional(kafka, open_to_all, closed, transactional_id="mine"))
        refused = codes(frame)
        assert refused[closed] == DENIED
        assert refused[open_to_all] not in (
            0,
            DENIED,
            ErrorCode.transactional_id_authorization_failed,
        )  # no such producer
    with grants.only(*writes), Beside(kafka) as client:
        client.send(transactional(kafka, open_to_all, transactional_id="mine", acks=0))
        assert client.is_closed()


# -- fetch --------------------------------------------------------------------------------------------------------------


def fetch(kafka: Kafka, *topics: str, partitions: int = 1, wait_ms: int = 0) -> dict[str, list[tuple[int, int]]]:
    """(error code, high watermark) of each topic's partitions."""
    answer = kafka.ask(ApiKey.FETCH, 11, **fetch_fields(*topics, partitions=partitions, wait_ms=wait_ms))
    return {
        response.topic: [(each.error_code, each.high_watermark) for each in response.partitions]
        for response in answer.responses
    }


def fetch_fields(*topics: str, partitions: int = 1, wait_ms: int = 0) -> dict[str, Any]:
    wanted = [{"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in range(partitions)]
    return {
        "max_wait": wait_ms,
        "min_bytes": 1 << 20,
        "max_bytes": 1 << 20,
        "topics": [{"topic": topic, "partitions": wanted} for topic in topics],
    }


def test_fetch_of_denied_topics_is_answered_at_once(kafka: Kafka, grants: Grants) -> None:
    open_to_all, closed = kafka.topic(), kafka.topic()
    kafka.fill(closed, 1)
    a_day_ms = 24 * 3600 * 1000
    with grants.only(*grant(READ, open_to_all)):
        assert fetch(kafka, open_to_all, closed, "no-such-topic", wait_ms=a_day_ms) == {
            open_to_all: [(0, 0)],
            closed: [(DENIED, -1)],
            "no-such-topic": [(DENIED, -1)],
        }


def test_a_fetch_that_waits_is_authorized_again(kafka: Kafka, grants: Grants) -> None:
    topic = kafka.topic()
    with Beside(kafka) as consumer:
        with grants.only(*grant(READ, topic)):
            consumer.tell(ApiKey.FETCH, 11, **(fetch_fields(topic, wait_ms=60_000) | {"min_bytes": 1}))
            wait_for(lambda: grants.asked == grant(READ, topic))
            wait_for(lambda: parked(kafka) == 1)
        with grants.only():
            kafka.fill(topic, 1)
            (answered,) = consumer.answer(ApiKey.FETCH, 11).responses
            assert [partition.error_code for partition in answered.partitions] == [DENIED]


def parked(kafka: Kafka) -> int:
    return sum(
        isinstance(connection.data, ParkedFetch)
        for processor in kafka.broker.server.sockets.processors
        for connection in list(processor.connections)
    )


# -- groups -------------------------------------------------------------------------------------------------------------


def test_waiting_join_was_authorized_on_arrival(kafka: Kafka, grants: Grants) -> None:
    group = new_group()
    read = READ, ResourceType.GROUP, group
    denied = ErrorCode.group_authorization_failed
    with Beside(kafka) as first, Beside(kafka) as second:
        with grants.only(read):
            stable_member = stable(first, group)
            newcomer = ask_join(second, group).member_id  # it is given its id
            second.tell(ApiKey.JOIN_GROUP, 9, **join_fields(group, newcomer))
            wait_for(lambda: heartbeat(first, group, stable_member, 1) == ErrorCode.rebalance_in_progress)
            first.tell(ApiKey.JOIN_GROUP, 9, **join_fields(group, stable_member))
            for client in (first, second):
                joined = client.answer(ApiKey.JOIN_GROUP, 9)
                assert (joined.error_code, joined.generation_id) == (0, 2)
        with grants.only():
            for member in (stable_member, newcomer):
                assert heartbeat(first, group, member, 2) == denied
                assert ask_sync(first, group, member, 2).error_code == denied
                assert ask_join(first, group, member).error_code == denied
                members = [{"member_id": member}]
                assert first.ask(ApiKey.LEAVE_GROUP, 5, group_id=group, members=members).error_code == denied
        with grants.only(read):  # nothing has become of the group
            assert heartbeat(first, group, stable_member, 2) == 0


def test_committed_offsets_are_shown_for_describable_topics_only(kafka: Kafka, grants: Grants) -> None:
    group, shown, hidden = new_group(), kafka.topic(), kafka.topic()
    for topic in (shown, hidden):
        assert commit(kafka, group, topic, 5) == [0]
    read = READ, ResourceType.GROUP, group
    with grants.only(read, *grant(READ, shown)):
        assert commit(kafka, group, shown, 6) == [0]
        assert commit(kafka, group, hidden, 6) == [DENIED]
    with grants.only((DESCRIBE, ResourceType.GROUP, group), *grant(DESCRIBE, shown)):
        for topics in ([shown, hidden], [hidden, shown], None):
            wanted = topics and [{"name": topic, "partition_indexes": [0]} for topic in topics]
            (answered,) = kafka.ask(
                ApiKey.OFFSET_FETCH, 8, groups=[{"group_id": group, "topics": wanted}], require_stable=True
            ).groups
            found = {
                one.name: (one.partitions[0].error_code, one.partitions[0].committed_offset) for one in answered.topics
            }
            assert found == {shown: (0, 6)} | ({hidden: (DENIED, -1)} if topics else {})


# -- metadata -----------------------------------------------------------------------------------------------------------


def metadata(kafka: Kafka, topics: list[str] | None, create: bool = False) -> dict[str, int]:
    """The error code of each topic in the answer."""
    answer = kafka.ask(
        ApiKey.METADATA,
        9,
        topics=None if topics is None else [{"name": topic} for topic in topics],
        allow_auto_topic_creation=create,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return {topic.name: topic.error_code for topic in answer.topics}


def test_metadata_lists_denied_topics_only_if_requested(kafka: Kafka, grants: Grants) -> None:
    shown, hidden = kafka.topic(), kafka.topic()
    for _ in range(2):  # the second answer is the cached one
        with grants.only(*grant(DESCRIBE, shown)):
            assert metadata(kafka, None) == {shown: 0}
            assert metadata(kafka, [shown, hidden, "missing"]) == {shown: 0, hidden: DENIED, "missing": DENIED}
        with grants.only(*grant(DESCRIBE, hidden)):
            assert metadata(kafka, None) == {hidden: 0}
            assert metadata(kafka, [shown, hidden, "missing"]) == {shown: DENIED, hidden: 0, "missing": DENIED}
        with grants.only():
            assert metadata(kafka, None) == {}
        assert {shown, hidden} <= set(metadata(kafka, None))


def test_equally_permitted_clients_share_a_cached_answer(kafka: Kafka, grants: Grants) -> None:
    topic = kafka.topic()
    kafka.inside.metadata_cache._answers.clear()
    for other in range(3):
        with grants.only(*grant(DESCRIBE, topic), (READ, ResourceType.GROUP, f"group-{other}")):
            metadata(kafka, [topic])
            metadata(kafka, [topic, "missing"])
    assert len(kafka.inside.metadata_cache) == 2


def test_topics_are_auto_created_only_with_the_right(kafka: Kafka, grants: Grants) -> None:
    describe = grant(DESCRIBE, "made-1", "made-2", "made-3")
    with grants.only(*describe):
        assert metadata(kafka, ["made-1"], create=True) == {"made-1": DENIED}
        assert metadata(kafka, ["made-1"]) == {"made-1": ErrorCode.unknown_topic_or_partition}
    with grants.only(*describe, *grant(CREATE, "made-1")):
        assert metadata(kafka, ["made-1", "made-2"], create=True) == {"made-1": 0, "made-2": DENIED}
    with grants.only(*describe, (CREATE, CLUSTER, CLUSTER_NAME)):
        assert metadata(kafka, ["made-2"], create=True) == {"made-2": 0}
    with grants.only(*grant(CREATE, "made-3")):  # asking for an invisible topic does not create it
        assert metadata(kafka, ["made-3"], create=True) == {"made-3": DENIED}
    assert kafka.inside.logs.topic("made-3") is None


def test_hidden_and_missing_topics_are_indistinguishable(kafka: Kafka, grants: Grants) -> None:
    hidden = kafka.topic()
    missing = "x" * len(hidden)
    for version in range(1, 10):
        with grants.only():
            answers = {ask_for(kafka, version, name).replace(name.encode(), b"?") for name in (hidden, missing)}
        assert len(answers) == 1, version


def ask_for(kafka: Kafka, version: int, topic: str) -> bytes:
    fields = {
        "topics": [{"name": topic}],
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    frame = kafka.exchange(control.encode_request(ApiKey.METADATA, version, 7, "test", fields))
    assert struct.unpack(">i", frame[4:8]) == (7,)
    return frame


# -- authorized operations ----------------------------------------------------------------------------------------------


def bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


def test_clients_are_told_what_they_may_do(kafka: Kafka, grants: Grants) -> None:
    topic, group = kafka.topic(), new_group()
    commit(kafka, group, topic, 1)
    named = {"allow_auto_topic_creation": False, "topics": [{"name": topic}, {"name": "missing"}]}
    asked = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
    rules = [*grant(READ, topic), *grant(DESCRIBE, topic), *grant(CREATE, "missing")]
    described = DESCRIBE, ResourceType.GROUP, group
    with grants.only(*rules, (CREATE, CLUSTER, CLUSTER_NAME), described):
        for _ in range(2):  # such an answer is not kept
            answer = kafka.ask(ApiKey.METADATA, 8, **named, **asked)
            assert answer.cluster_authorized_operations == 0  # it may not describe the cluster
            assert {one.name: one.topic_authorized_operations for one in answer.topics} == {
                topic: bits(READ, DESCRIBE),
                "missing": bits(CREATE),
            }
        (found,) = kafka.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=True).groups
        assert found.authorized_operations == bits(DESCRIBE)
        answer = kafka.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": topic}, {"name": "missing"}],
            response_partition_limit=10,
            cursor=None,
        )
        assert {one.name: (one.error_code, one.topic_authorized_operations) for one in answer.topics} == {
            topic: (0, bits(READ, DESCRIBE)),
            "missing": (DENIED, bits(CREATE)),
        }
    with grants.only(*rules, (CREATE, CLUSTER, CLUSTER_NAME), (DESCRIBE, CLUSTER, CLUSTER_NAME)):
        answer = kafka.ask(ApiKey.METADATA, 8, **named, **asked)
        assert answer.cluster_authorized_operations == bits(CREATE, DESCRIBE)
    answer = kafka.ask(ApiKey.METADATA, 8, **named, **asked)
    assert [one.topic_authorized_operations for one in answer.topics] == [SUPPORTED_BITS[ResourceType.TOPIC]] * 2
