"""Topics named by their ids: one that is made again under its old name is another topic."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from broker.kafka.fetches import Reading
from broker.kafka.handlers import fetch, metadata, produce
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.fetch import FetchPartition, FetchRequest
from protocol.kafka.records.records import build_batch
from tests.kafka.handlers.consumer_group_client import id_of
from tests.kafka.handlers.kafka_client import Beside, Kafka
from tests.security.grants import Grants
from tests.waiting import wait_for

FETCH = pytest.mark.parametrize("version", range(13, fetch.API.max_version + 1))
METADATA = pytest.mark.parametrize("version", range(12, metadata.API.max_version + 1))
BATCH = bytes(build_batch([(b"key", b"value", [], 1_000_000)]))
UNKNOWN, DENIED = ErrorCode.unknown_topic_id, ErrorCode.topic_authorization_failed
NO_ID = UUID(int=0)


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


def make_again(kafka: Kafka, topic: str, partitions: int = 1) -> UUID:
    """The old id."""
    old = id_of(kafka, topic)
    kafka.inside.logs.delete_topic(topic)
    kafka.inside.logs.create_topic(topic, partitions)
    return old


def fetch_fields(*topics: tuple[UUID, list[int]], wait: int = 0) -> dict[str, Any]:
    wanted = [
        {
            "topic_id": topic_id,
            "partitions": [
                {"partition": number, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for number in partitions
            ],
        }
        for topic_id, partitions in topics
    ]
    return {"max_wait": wait, "min_bytes": 1, "max_bytes": 1 << 20, "topics": wanted}


def ask_fetch(kafka: Kafka, *topics: tuple[UUID, list[int]], version: int = 13) -> list[tuple[Any, int, int, int]]:
    """The topic, the partition, the error and the size of its records."""
    answer = kafka.ask(ApiKey.FETCH, version, **fetch_fields(*topics))
    return [
        (topic.topic_id, partition.partition_index, partition.error_code, len(partition.records or b""))
        for topic in answer.responses
        for partition in topic.partitions
    ]


def ask_produce(kafka: Kafka, *topics: tuple[UUID, list[int]], **fields: Any) -> list[tuple[Any, int, int]]:
    data = [
        {"topic_id": topic_id, "partition_data": [{"index": number, "records": BATCH} for number in partitions]}
        for topic_id, partitions in topics
    ]
    answer = kafka.ask(ApiKey.PRODUCE, 13, **{"acks": -1, "timeout": 9000, "topic_data": data} | fields)
    return [
        (topic.topic_id, response.index, response.error_code)
        for topic in answer.responses
        for response in topic.partition_responses
    ]


def ask_metadata(kafka: Kafka, *topics: UUID | str, version: int = 12, **fields: Any) -> list[tuple[Any, Any, int]]:
    wanted = [
        {"topic_id": topic, "name": None} if isinstance(topic, UUID) else {"name": topic, "topic_id": NO_ID}
        for topic in topics
    ]
    answer = kafka.ask(ApiKey.METADATA, version, topics=wanted, **fields)
    return [(topic.topic_id, topic.name, topic.error_code) for topic in answer.topics]


# -- fetch and produce ------------------------------------------------------------------------------------------------


@FETCH
def test_fetch_by_old_id_misses_the_recreated_topic(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    old = make_again(kafka, topic)
    kafka.fill(topic, 1)
    new = id_of(kafka, topic)
    ((_, _, gone, nothing), (_, _, error, size)) = ask_fetch(kafka, (old, [0]), (new, [0]), version=version)
    assert (gone, nothing) == (UNKNOWN, 0)
    assert error == ErrorCode.none
    assert size > 0


def test_records_for_the_old_topic_miss_the_new(kafka: Kafka) -> None:
    topic = kafka.topic()
    old = make_again(kafka, topic)
    assert ask_produce(kafka, (old, [0])) == [(old, 0, UNKNOWN)]
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    assert log.log_end_offset == 0
    new = id_of(kafka, topic)
    assert ask_produce(kafka, (new, [0])) == [(new, 0, ErrorCode.none)]


@pytest.mark.parametrize("partitions", [1, 300])
def test_waiting_fetch_ends_when_its_topic_is_recreated(kafka: Kafka, partitions: int) -> None:
    topic = kafka.topic(partitions)
    old = id_of(kafka, topic)
    with Beside(kafka) as client:
        client.tell(ApiKey.FETCH, 13, **fetch_fields((old, list(range(partitions))), wait=60_000))
        wait_for(lambda: kafka.inside.watches.taken == partitions)
        make_again(kafka, topic, partitions)
        kafka.fill(topic, 1)
        answer = client.answer(ApiKey.FETCH, 13)
        found = [
            (partition.error_code, len(partition.records or b""))
            for topic in answer.responses
            for partition in topic.partitions
        ]
        assert found == [(UNKNOWN, 0)] * partitions


def test_trace_of_fetch_by_id_names_the_topic(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = kafka.topic()
    kafka.fill(topic, 1)
    monkeypatch.setattr(kafka.inside, "traces", object())
    wanted = FetchPartition(id_of(kafka, topic).bytes, 0, -1, 0, -1, 1 << 20)
    request = FetchRequest(0, 1, 1 << 20, 0, 0, -1, [wanted], by_id=True)
    nobody: Any = None  # without an authorizer, nobody asks who reads
    reading = Reading(kafka.inside, nobody, request)
    reading.warm(kafka.inside)
    kafka.inside.logs.delete_topic(topic)
    reading.warm(kafka.inside)
    gone = bytes(wanted.topic).hex()
    assert [call[:3] for call in reading.log_calls] == [("read", topic, 0), ("load", topic, 0), ("load", gone, 0)]


def test_missing_partition_of_a_known_id_is_unknown(kafka: Kafka) -> None:
    topic = id_of(kafka, kafka.topic(2))
    unknown = ErrorCode.unknown_topic_or_partition
    assert [one[2] for one in ask_fetch(kafka, (topic, [0, 2, -1]))] == [ErrorCode.none, unknown, unknown]
    assert [one[2] for one in ask_produce(kafka, (topic, [1, 2, -1]))] == [ErrorCode.none, unknown, unknown]


def test_new_partitions_and_settings_keep_the_id(kafka: Kafka) -> None:
    name = kafka.topic()
    topic = id_of(kafka, name)
    kafka.inside.logs.add_partitions(name, 2)
    kafka.inside.logs.alter_topic_configs(name, {"retention.ms": "5"})
    assert id_of(kafka, name) == topic
    assert [one[2] for one in ask_produce(kafka, (topic, [0, 1]))] == [ErrorCode.none] * 2
    found = kafka.inside.logs.topic_by_id(topic)
    assert found is kafka.inside.logs.topic(name)


def test_repeated_id_is_answered_once_by_fetch(kafka: Kafka) -> None:
    topic = id_of(kafka, kafka.topic())
    assert len(ask_fetch(kafka, (topic, [0]), (topic, [0]), (topic, [0, 0]))) == 1
    unknown = uuid4()
    assert ask_fetch(kafka, (unknown, [0]), (unknown, [0])) == [(unknown, 0, UNKNOWN, 0)]


def test_no_id_is_an_unknown_id(kafka: Kafka) -> None:
    kafka.topic()
    assert [one[2] for one in ask_fetch(kafka, (NO_ID, [0]))] == [UNKNOWN]
    assert [one[2] for one in ask_produce(kafka, (NO_ID, [0]))] == [UNKNOWN]
    assert [one[2] for one in ask_metadata(kafka, NO_ID)] == [UNKNOWN]


def test_many_ids_that_nobody_knows_are_answered_each(kafka: Kafka) -> None:
    unknown = [UUID(int=number) for number in range(1, 50_001)]
    assert [one[2] for one in ask_fetch(kafka, *[(one, [0]) for one in unknown[:20_000]])] == [UNKNOWN] * 20_000
    assert [one[2] for one in ask_metadata(kafka, *unknown)] == [UNKNOWN] * 50_000


def test_deleted_topics_id_is_not_kept(kafka: Kafka) -> None:
    name = kafka.topic()
    topic = id_of(kafka, name)
    logs = kafka.inside.logs
    assert logs.topics_by_id == {topic.bytes: logs.topic(name)}
    assert logs.partitions_by_id == {(topic.bytes, 0): logs.get(name, 0)}
    logs.delete_topic(name)
    assert not logs.topics_by_id
    assert not logs.partitions_by_id


# -- committed offsets ------------------------------------------------------------------------------------------------


def ask_commit(kafka: Kafka, group: str, *topics: tuple[UUID, list[int]]) -> list[tuple[Any, int, int]]:
    listed = [
        {
            "topic_id": topic_id,
            "partitions": [
                {"partition_index": partition, "committed_offset": 7, "committed_metadata": ""}
                for partition in partitions
            ],
        }
        for topic_id, partitions in topics
    ]
    who = {"group_id": group}
    answer = kafka.ask(ApiKey.OFFSET_COMMIT, 10, **who, topics=listed)
    return [
        (topic.topic_id, partition.partition_index, partition.error_code)
        for topic in answer.topics
        for partition in topic.partitions
    ]


def ask_offsets(kafka: Kafka, group: str, *topics: tuple[UUID, list[int]]) -> list[tuple[Any, int, int, int]]:
    """Without topics: all that the group has."""
    listed = [{"topic_id": topic_id, "partition_indexes": partitions} for topic_id, partitions in topics] or None
    wanted = [{"group_id": group, "member_epoch": -1, "topics": listed}]
    (answer,) = kafka.ask(ApiKey.OFFSET_FETCH, 10, groups=wanted, require_stable=True).groups
    assert answer.error_code == ErrorCode.none
    return [
        (topic.topic_id, partition.partition_index, partition.committed_offset, partition.error_code)
        for topic in answer.topics
        for partition in topic.partitions
    ]


def test_offset_of_a_topic_is_not_its_successors(kafka: Kafka) -> None:
    name = kafka.topic()
    old, group, none = make_again(kafka, name), "g", ErrorCode.none
    new = id_of(kafka, name)
    assert ask_commit(kafka, group, (old, [0])) == [(old, 0, UNKNOWN)]
    assert ask_offsets(kafka, group, (new, [0]), (old, [0, 0])) == [(new, 0, -1, none), (old, 0, -1, UNKNOWN)]
    assert ask_commit(kafka, group, (old, [0]), (new, [0, 1])) == [
        (old, 0, UNKNOWN),
        (new, 0, none),
        (new, 1, ErrorCode.unknown_topic_or_partition),
    ]
    assert ask_offsets(kafka, group) == ask_offsets(kafka, group, (new, [0])) == [(new, 0, 7, none)]
    assert ask_offsets(kafka, group, (NO_ID, [3])) == [(None, 3, -1, UNKNOWN)]


def test_offsets_of_hidden_topics_are_refused_by_id(kafka: Kafka) -> None:
    seen, secret = kafka.topic(), kafka.topic()
    visible, hidden, unknown, group = id_of(kafka, seen), id_of(kafka, secret), uuid4(), "g"
    ask_commit(kafka, group, (visible, [0]), (hidden, [0]))
    kafka.inside.authorizer = grants = Grants()
    rights = [(Operation.READ, ResourceType.GROUP, group), (Operation.DESCRIBE, ResourceType.GROUP, group)]
    rights += [(operation, ResourceType.TOPIC, seen) for operation in (Operation.READ, Operation.DESCRIBE)]
    with grants.only(*rights):
        topics = (visible, [0]), (hidden, [0]), (unknown, [0])
        codes = {visible: ErrorCode.none, hidden: DENIED, unknown: UNKNOWN}
        assert {one[0]: one[2] for one in ask_commit(kafka, group, *topics)} == codes
        assert {offset[0]: offset[3] for offset in ask_offsets(kafka, group, *topics)} == codes
        assert [offset[0] for offset in ask_offsets(kafka, group)] == [visible]


# -- metadata -----------------------------------------------------------------------------------------------------------


@METADATA
def test_metadata_finds_a_topic_by_its_id(kafka: Kafka, version: int) -> None:
    name = kafka.topic(3)
    old, unknown = make_again(kafka, name, 3), uuid4()
    new = id_of(kafka, name)
    for _ in range(2):  # the second time from the cache
        assert ask_metadata(kafka, new, version=version) == [(new, name, ErrorCode.none)]
    assert ask_metadata(kafka, old, new, unknown, version=version) == [
        (old, None, UNKNOWN),
        (new, name, ErrorCode.none),
        (unknown, None, UNKNOWN),
    ]
    assert ask_metadata(kafka, new, new, version=version) == [(new, name, ErrorCode.none)]


@pytest.mark.parametrize("version", range(10, metadata.API.max_version + 1))
def test_metadata_names_the_id_of_each_topic(kafka: Kafka, version: int) -> None:
    name = kafka.topic()
    nowhere = ErrorCode.unknown_topic_or_partition
    assert ask_metadata(kafka, name, "nowhere", version=version, allow_auto_topic_creation=False) == [
        (id_of(kafka, name), name, ErrorCode.none),
        (None, "nowhere", nowhere),
    ]
    make_again(kafka, name)
    assert ask_metadata(kafka, name, version=version) == [(id_of(kafka, name), name, ErrorCode.none)]


@pytest.mark.parametrize("version", [10, 11])
def test_versions_with_ids_may_look_up_by_name(kafka: Kafka, version: int) -> None:
    topic = id_of(kafka, kafka.topic())
    wanted = [{"topic_id": topic, "name": "x"}]
    (answer,) = kafka.ask(ApiKey.METADATA, version, topics=wanted).topics
    assert (answer.error_code, answer.name, len(answer.partitions)) == (ErrorCode.invalid_request, "", 0)


def test_no_topic_is_made_for_an_id() -> None:
    with Kafka(auto_create_topics_enable=True) as kafka:
        assert [one[2] for one in ask_metadata(kafka, uuid4(), allow_auto_topic_creation=True)] == [UNKNOWN]
        assert not kafka.inside.logs.topics()


# -- rights -------------------------------------------------------------------------------------------------------------


def test_id_does_not_reveal_a_hidden_topics_name(kafka: Kafka) -> None:
    seen, secret = kafka.topic(), kafka.topic()
    kafka.inside.authorizer = grants = Grants()
    topic = ResourceType.TOPIC
    operations = [Operation.DESCRIBE, Operation.READ, Operation.WRITE]
    with grants.only(*[(operation, topic, seen) for operation in operations]):
        visible, hidden = id_of(kafka, seen), id_of(kafka, secret)
        operations_asked = {"include_topic_authorized_operations": True}
        wanted = [{"topic_id": one, "name": None} for one in (visible, hidden)]
        one, other = kafka.ask(ApiKey.METADATA, 12, topics=wanted, **operations_asked).topics
        assert (one.name, one.error_code) == (seen, ErrorCode.none)
        assert (other.name, other.topic_id, other.error_code) == (None, hidden, DENIED)
        assert (len(other.partitions), other.topic_authorized_operations) == (0, -(2**31))
        for asked in ([visible, hidden], [hidden]):
            expected = {visible: ErrorCode.none, hidden: DENIED}
            fetched = ask_fetch(kafka, *[(one, [0]) for one in asked])
            produced = ask_produce(kafka, *[(one, [0]) for one in asked])
            for answer in (fetched, produced):
                assert {one[0]: one[2] for one in answer} == {one: expected[one] for one in asked}
        unknown = uuid4()
        assert (unknown, 0, UNKNOWN, 0) in ask_fetch(kafka, (visible, [0]), (unknown, [0]))
        assert (unknown, 0, UNKNOWN) in ask_produce(kafka, (unknown, [0]), (visible, [0]))
        # A name that is given as well is not believed.
        (answer,) = kafka.ask(ApiKey.METADATA, 12, topics=[{"topic_id": hidden, "name": seen}]).topics
        assert (answer.name, answer.error_code) == (None, DENIED)


def test_the_newest_versions_are_those_of_the_schemas() -> None:
    assert (produce.API.max_version, fetch.API.max_version, metadata.API.max_version) == (13, 18, 13)
