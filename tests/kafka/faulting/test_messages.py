import dataclasses
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.faults.fault import Entity
from broker.kafka import handlers
from broker.kafka.faulting.messages import Located, entities_of, names_of, put_error, put_everywhere, without
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control
from tests.loops import loop_over
from tests.protocol.kafka.message_strategies import REQUEST, instance, mappings, schema_of

T1, T2 = UUID(int=1), UUID(int=2)
SERVED = [
    (api.key, version)
    for api in handlers.load().values()
    if api.key not in (ApiKey.END_TXNS, ApiKey.BACKUP)
    for version in range(api.min_version, api.max_version + 1)
]
every_request = loop_over(
    ("key", "version"), {key.name.lower(): [each for each in SERVED if each[0] == key] for key, _ in SERVED}
)
FENCED = ErrorCode.fenced_instance_id


def name_of(topic_id: UUID) -> str | None:
    return {T1: "t1", T2: "t2"}.get(topic_id)


def parsed(key: int, version: int, fields: Any) -> Any:
    body = control.encode_request(key, version, 5, None, fields)
    return control.parse_request(key, version, body[_header_size(key, version) :])


def _header_size(key: int, version: int) -> int:
    from protocol.kafka.messages.headers import request_header

    return 4 + len(request_header(key, version, 5, None))


@every_request
def test_a_request_falls_apart_into_entities(key: ApiKey, version: int) -> None:
    @settings(max_examples=4)
    @given(fields=mappings(schema_of(REQUEST, key, version)), data=st.data())
    def check(fields: dict[str, Any], data: st.DataObject) -> None:
        body = instance(schema_of(REQUEST, key, version), fields)
        located = entities_of(key, body, name_of)
        assert located
        named = {field for each in located for field, value in each.entity._asdict().items() if value is not None}
        assert named <= names_of(key)
        assert without(body, located) is None or located[0].steps != ()
        gone = [each for each in located if data.draw(st.booleans())]
        left = without(body, gone)
        kept = [each for each in located if each not in gone]
        if left is None:
            assert not kept
        elif gone and kept:
            again = entities_of(key, parsed(key, version, left), name_of)
            assert [each.entity for each in kept] == [each.entity for each in again if each.entity != Entity()] or (
                Entity() in [each.entity for each in kept]
            )

    check()


@every_request
def test_every_answer_can_bear_an_error(key: ApiKey, version: int) -> None:
    cls = control.response_class(key, version)

    @settings(max_examples=4)
    @given(fields=mappings(schema_of(REQUEST, key, version)))
    def check(fields: dict[str, Any]) -> None:
        body = instance(schema_of(REQUEST, key, version), fields)
        answer: dict[str, Any] = {}
        placed = [put_error(answer, cls, each, FENCED) for each in entities_of(key, body, name_of)]
        counted: dict[int, int] = {}
        frame = control.encode_response(key, version, 5, answer, on_errors=counted.update)
        assert any(placed) == (FENCED in counted)
        control.parse_response(key, version, frame)

    check()


PARTITIONS = [
    (ApiKey.PRODUCE, 3, "topic_data", "name", "partition_data", "index"),
    (ApiKey.PRODUCE, 13, "topic_data", "topic_id", "partition_data", "index"),
    (ApiKey.FETCH, 12, "topics", "topic", "partitions", "partition"),
    (ApiKey.FETCH, 17, "topics", "topic_id", "partitions", "partition"),
    (ApiKey.LIST_OFFSETS, 5, "topics", "name", "partitions", "partition_index"),
    (ApiKey.OFFSET_COMMIT, 9, "topics", "name", "partitions", "partition_index"),
    (ApiKey.OFFSET_COMMIT, 10, "topics", "topic_id", "partitions", "partition_index"),
    (ApiKey.OFFSET_FETCH, 5, "topics", "name", "partition_indexes", None),
    (ApiKey.TXN_OFFSET_COMMIT, 3, "topics", "name", "partitions", "partition_index"),
    (ApiKey.ADD_PARTITIONS_TO_TXN, 3, "v3_and_below_topics", "name", "partitions", None),
    (ApiKey.DELETE_RECORDS, 2, "topics", "name", "partitions", "partition_index"),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, "topics", "topic", "partitions", "partition"),
    (ApiKey.SHARE_FETCH, 1, "topics", "topic_id", "partitions", "partition_index"),
    (ApiKey.ELECT_LEADERS, 2, "topic_partitions", "topic", "partitions", None),
]


@pytest.mark.parametrize(("key", "version", "array", "named", "inner", "index"), PARTITIONS)
def test_one_of_several_partitions_is_answered(
    key: ApiKey, version: int, array: str, named: str, inner: str, index: str | None
) -> None:
    def topic(name: str, topic_id: UUID) -> dict[str, Any]:
        partitions = [number if index is None else {index: number} for number in (0, 1)]
        return {named: topic_id if named == "topic_id" else name, inner: partitions}

    body = parsed(key, version, {array: [topic("t1", T1), topic("t2", T2)]})
    located = entities_of(key, body, name_of)
    assert [("t1", 0), ("t1", 1), ("t2", 0), ("t2", 1)] == [each.entity[:2] for each in located]
    left = without(body, located[1:2])
    assert left is not None
    again = entities_of(key, parsed(key, version, left), name_of)
    assert [("t1", 0), ("t2", 0), ("t2", 1)] == [each.entity[:2] for each in again]

    answer: dict[str, Any] = {}
    cls = control.response_class(key, version)
    for each in again:
        assert put_error(answer, cls, each, 0)
    assert put_error(answer, cls, located[1], FENCED)
    _, response = control.parse_response(key, version, control.encode_response(key, version, 5, answer))
    assert [0, FENCED, 0, 0] == codes(dataclasses.asdict(response))


def codes(value: Any) -> list[int]:
    """All error codes of partitions, ordered as (t1, 0), (t1, 1), (t2, 0), (t2, 1)."""
    found: list[int] = []
    for inner in value.values():
        if not isinstance(inner, tuple) or not all(isinstance(each, dict) for each in inner):
            continue
        for each in sorted(inner, key=lambda each: str(next(iter(each.values())))):
            below = codes(each)
            own = [int(code) for name, code in each.items() if name in ("error_code", "partition_error_code")]
            found += below or own
    return found


@pytest.mark.parametrize(
    ("key", "version", "fields", "expected"),
    [
        (ApiKey.HEARTBEAT, 4, {"group_id": "g"}, [Entity(group="g")]),
        (ApiKey.JOIN_GROUP, 9, {"group_id": "g", "protocols": [{"name": "range"}]}, [Entity(group="g")]),
        (ApiKey.FIND_COORDINATOR, 0, {"key": "g"}, [Entity(group="g")]),
        (ApiKey.FIND_COORDINATOR, 3, {"key": "x", "key_type": 1}, [Entity(transactional_id="x")]),
        (
            ApiKey.FIND_COORDINATOR,
            6,
            {"key_type": 0, "coordinator_keys": ["g", "h"]},
            [Entity(group="g"), Entity(group="h")],
        ),
        (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"]}, [Entity(group="g")]),
        (ApiKey.END_TXN, 3, {"transactional_id": "x"}, [Entity(transactional_id="x")]),
        (
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            {"v3_and_below_transactional_id": "x", "v3_and_below_topics": [{"name": "t", "partitions": [3]}]},
            [Entity("t", 3, transactional_id="x")],
        ),
        (
            ApiKey.OFFSET_FETCH,
            8,
            {"groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [3]}]}, {"group_id": "h"}]},
            [Entity("t", 3, "g"), Entity(group="h")],
        ),
        (ApiKey.METADATA, 9, {"topics": [{"name": "t"}]}, [Entity("t")]),
        (ApiKey.METADATA, 9, {"topics": None}, [Entity()]),
        (ApiKey.DELETE_TOPICS, 3, {"topic_names": ["t"]}, [Entity("t")]),
        (
            ApiKey.DESCRIBE_CONFIGS,
            4,
            {"resources": [{"resource_type": 2, "resource_name": "t"}, {"resource_type": 4, "resource_name": "1"}]},
            [Entity("t"), Entity()],
        ),
        (
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            0,
            {"group_id": "g", "topic_partitions": [{"topic_id": T1, "partitions": [0]}]},
            [Entity(group="g")],
        ),
        (ApiKey.API_VERSIONS, 3, {}, [Entity()]),
    ],
)
def test_a_request_says_what_it_is_about(
    key: ApiKey, version: int, fields: dict[str, Any], expected: list[Entity]
) -> None:
    assert expected == [each.entity for each in entities_of(key, parsed(key, version, fields), name_of)]


@pytest.mark.parametrize(
    ("key", "names"),
    [
        (ApiKey.HEARTBEAT, {"group"}),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, {"group"}),
        (ApiKey.FIND_COORDINATOR, {"group", "transactional_id"}),
        (ApiKey.FETCH, {"topic", "partition"}),
        (ApiKey.CREATE_TOPICS, {"topic"}),
        (ApiKey.TXN_OFFSET_COMMIT, {"topic", "partition", "group", "transactional_id"}),
        (ApiKey.DESCRIBE_CONFIGS, {"topic", "group"}),
        (ApiKey.API_VERSIONS, set()),
    ],
)
def test_it_is_known_what_requests_may_be_about(key: ApiKey, names: set[str]) -> None:
    assert names == names_of(key)


def test_an_unknown_id_is_a_topic_without_name() -> None:
    body = parsed(ApiKey.FETCH, 17, {"topics": [{"topic_id": UUID(int=9), "partitions": [{"partition": 4}]}]})
    assert [(None, 4)] == [each.entity[:2] for each in entities_of(ApiKey.FETCH, body, name_of)]


def test_an_existing_element_gets_the_error() -> None:
    cls = control.response_class(ApiKey.PRODUCE, 9)
    element = {"index": 0, "error_code": 0, "base_offset": 7}
    answer = {"responses": ({"name": "t", "partition_responses": (element, {"index": 1, "error_code": 0})},)}
    assert put_error(answer, cls, Located(Entity("t", 0), (), None), FENCED)
    (topic,) = answer["responses"]
    assert [FENCED, 0] == [each["error_code"] for each in topic["partition_responses"]]
    assert -1 == element["base_offset"]


def test_all_that_an_answer_lists_gets_the_error() -> None:
    cls = control.response_class(ApiKey.METADATA, 9)
    answer = {"topics": [{"name": "t", "error_code": 0, "partitions": [{"error_code": 0}]}], "brokers": [{}]}
    assert not put_error(answer, cls, Located(Entity(), (), None), FENCED)
    put_everywhere(answer, cls, FENCED)
    assert [FENCED] == [each["error_code"] for each in answer["topics"]]
