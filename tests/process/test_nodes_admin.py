"""Three nodes: what one has changed is in force at each other one when the client is answered; what only one can answer, others
say who can."""

import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.records import build_batch
from tests.kafka.handlers.group_client import join_fields
from tests.kafka_connection import KafkaConnection, fetch_fields, produce_fields
from tests.process.nodes import IDS, NOT_COORDINATOR, NOT_LEADER, Nodes

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
SET = {"topic_name": "membership", "partitions": [{"partition_index": 0, "start_offset": 0}]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes")) as running:
        yield running
        assert 0 == running.stop()
        assert {"node_ended"} >= {event["event"] for event in running.errors}


def others(node_id: int) -> list[int]:
    return [each for each in IDS if each != node_id]


def set_config(cluster: Nodes, node_id: int, kind: int, name: str, key: str, value: str) -> int:
    resource = {
        "resource_type": kind,
        "resource_name": name,
        "configs": [{"name": key, "config_operation": 0, "value": value}],
    }
    response = cluster.ask(node_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    return int(response.responses[0].error_code)


def config(cluster: Nodes, node_id: int, kind: int, name: str, key: str) -> str | int:
    """The value, or an error code."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
    response = cluster.ask(
        node_id,
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=[resource],
        include_synonyms=False,
        include_documentation=False,
    )
    [result] = response.results
    return int(result.error_code) or str(result.configs[0].value)


def test_topics_are_made_changed_and_deleted_by_any_node(cluster: Nodes) -> None:
    for turn in range(6):
        one, another, third = random.Random(turn).sample(IDS, 3)
        assert 0 == cluster.make(one, "again", 2).error_code
        assert [0, 1] == sorted(cluster.leaders(another, "again"))
        grown = {"name": "again", "count": 5, "assignments": None}
        response = cluster.ask(
            another, ApiKey.CREATE_PARTITIONS, 3, topics=[grown], timeout=30_000, validate_only=False
        )
        assert 0 == response.results[0].error_code
        assert cluster.leaders(one, "again") == cluster.leaders(third, "again")
        assert 5 == len(cluster.leaders(third, "again"))
        assert 0 == set_config(cluster, third, TOPIC, "again", "retention.ms", str(1000 + turn))
        assert str(1000 + turn) == config(cluster, one, TOPIC, "again", "retention.ms")
        response = cluster.ask(
            one, ApiKey.DELETE_TOPICS, 6, topics=[{"name": "again", "topic_id": None}], timeout=30_000
        )
        assert 0 == response.responses[0].error_code
        assert {} == cluster.leaders(another, "again")


@pytest.mark.parametrize(
    ("kind", "name", "key", "values"),
    [
        (BROKER, "", "log.retention.ms", ("5000", "6000", "7000")),
        (GROUP, "g", "share.record.lock.duration.ms", ("20000", "21000", "22000")),
        (CLIENT_METRICS, "m", "interval.ms", ("5000", "6000", "7000")),
    ],
)
def test_settings_are_those_of_the_cluster(
    cluster: Nodes, kind: int, name: str, key: str, values: tuple[str, ...]
) -> None:
    for node_id, value in zip(IDS, values, strict=True):
        assert 0 == set_config(cluster, node_id, kind, name, key, value)
        assert [value] * 3 == [config(cluster, each, kind, name, key) for each in IDS]


def test_any_node_changes_settings_of_any_broker_and_that_one_tells_them(cluster: Nodes) -> None:
    for node_id in IDS:
        for asked in IDS:
            value = str(100_000 + 10 * node_id + asked)
            assert 0 == set_config(cluster, asked, BROKER, str(node_id), "log.retention.ms", value)
            assert value == config(cluster, node_id, BROKER, str(node_id), "log.retention.ms")
        for other in others(node_id):
            assert ErrorCode.invalid_request == config(cluster, other, BROKER, str(node_id), "log.retention.ms")
    assert ErrorCode.invalid_request == set_config(cluster, 1, BROKER, "4", "log.retention.ms", "1")
    assert ErrorCode.invalid_request == set_config(cluster, 1, BROKER, "2", "log.retention.ms", "many")


def test_users_quotas_and_features_are_those_of_the_cluster(cluster: Nodes) -> None:
    upsert = {"name": "u", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": bytes(32)}
    for node_id in IDS:
        response = cluster.ask(
            node_id, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[upsert | {"name": f"u{node_id}"}]
        )
        assert 0 == response.results[0].error_code
        entity = [{"entity_type": "client-id", "entity_name": f"c{node_id}"}]
        ops = [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]
        response = cluster.ask(
            node_id, ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[{"entity": entity, "ops": ops}], validate_only=False
        )
        assert 0 == response.entries[0].error_code
        level = {1: 0, 2: 1, 3: 1}[node_id]
        update = {"feature": "share.version", "max_version_level": level, "upgrade_type": 1 if level else 2}
        response = cluster.ask(
            node_id, ApiKey.UPDATE_FEATURES, 1, timeout=30_000, feature_updates=[update], validate_only=False
        )
        assert 0 == response.error_code
        for asked in IDS:
            described = cluster.ask(asked, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=[{"name": f"u{node_id}"}])
            assert 0 == described.results[0].error_code
            component = {"entity_type": "client-id", "match_type": 0, "match": f"c{node_id}"}
            quotas = cluster.ask(asked, ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=[component], strict=True)
            assert [1e9] == [value.value for entry in quotas.entries for value in entry.values]
            told = cluster.ask(asked, ApiKey.API_VERSIONS, 3, client_software_name="test", client_software_version="1")
            assert level == {each.name: each.max_version_level for each in told.finalized_features}.get(
                "share.version", 0
            )


def test_all_nodes_tell_the_same_cluster(cluster: Nodes) -> None:
    clusters = [cluster.ask(each, ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1) for each in IDS]
    assert [list(IDS)] * 3 == [[broker.broker_id for broker in each.brokers] for each in clusters]
    assert 1 == len({(each.cluster_id, each.controller_id) for each in clusters})
    wanted = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    for node_id in IDS:
        quorum = cluster.ask(node_id, ApiKey.DESCRIBE_QUORUM, 2, topics=wanted)
        [partition] = quorum.topics[0].partitions
        assert clusters[0].controller_id == partition.leader_id
        assert [partition.leader_id] == [each.replica_id for each in partition.current_voters]
        assert others(partition.leader_id) == [each.replica_id for each in partition.observers]
        assert list(IDS) == [each.node_id for each in quorum.nodes]


def test_three_replicas_may_be_asked_for_and_the_answer_says_that_there_is_one(cluster: Nodes) -> None:
    made = cluster.make(1, "three", 2, replication_factor=3)
    assert (0, 1) == (made.error_code, made.replication_factor)
    assert "one replica" in made.error_message
    assert ErrorCode.invalid_replication_factor == cluster.make(1, "four", 2, replication_factor=4).error_code
    assignments = [{"partition_index": 0, "broker_ids": [1, 2, 3]}, {"partition_index": 1, "broker_ids": [3, 1]}]
    made = cluster.make(2, "assigned", -1, replication_factor=-1, assignments=assignments)
    assert 0 == made.error_code
    assert "one replica" in made.error_message
    for more, expected in (([[2, 3], [1]], 0), ([[2, 4]], ErrorCode.invalid_replica_assignment)):
        count = 2 + len(more) + 2 * bool(expected)
        grown = {"name": "assigned", "count": count, "assignments": [{"broker_ids": each} for each in more]}
        response = cluster.ask(3, ApiKey.CREATE_PARTITIONS, 3, topics=[grown], timeout=30_000, validate_only=False)
        assert expected == response.results[0].error_code
        assert ("There is no broker 4" if expected else "one replica") in response.results[0].error_message
    stranger = [{"partition_index": 0, "broker_ids": [1, 4]}]
    made = cluster.make(2, "stranger", -1, replication_factor=-1, assignments=stranger)
    assert ErrorCode.invalid_replica_assignment == made.error_code


def test_partitions_stay_where_they_are(cluster: Nodes) -> None:
    cluster.make(1, "staying", 3)
    leaders = cluster.leaders(1, "staying")
    for node_id in IDS:
        wanted = [{"partition_index": number, "replicas": [leader]} for number, leader in leaders.items()]
        wanted[0]["replicas"] = others(leaders[0])
        response = cluster.ask(
            node_id,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            timeout=30_000,
            topics=[{"name": "staying", "partitions": wanted}],
        )
        [topic] = response.responses
        assert [ErrorCode.invalid_replica_assignment, 0, 0] == [each.error_code for each in topic.partitions]
        response = cluster.ask(
            node_id,
            ApiKey.ELECT_LEADERS,
            2,
            election_type=0,
            topic_partitions=[{"topic": "staying", "partitions": [0, 1, 2]}],
            timeout=30_000,
        )
        [topic] = response.replica_election_results
        assert [ErrorCode.election_not_needed] * 3 == [each.error_code for each in topic.partition_result]


def test_only_the_owner_answers_for_a_partition(cluster: Nodes) -> None:
    cluster.make(1, "owned", 3)
    leaders = cluster.leaders(1, "owned")
    records = build_batch([(None, b"value", [], 1_000)])
    for node_id in IDS:
        for number, leader in leaders.items():
            expected = 0 if leader == node_id else NOT_LEADER
            errors = errors_of(cluster, node_id, "owned", number, records)
            assert [expected] * len(errors) == errors, (node_id, number)
        dirs = cluster.ask(node_id, ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None)
        own = {
            each.partition_index
            for topic in dirs.results[0].topics
            if topic.name == "owned"
            for each in topic.partitions
        }
        assert {number for number, leader in leaders.items() if leader == node_id} == own


def errors_of(cluster: Nodes, node_id: int, topic: str, number: int, records: bytes) -> list[int]:
    """Of each request about one partition, at this node."""
    produced = cluster.ask(node_id, ApiKey.PRODUCE, 9, **produce_fields(topic, records, number))
    fetched = cluster.ask(node_id, ApiKey.FETCH, 12, **fetch_fields(topic, [number]))
    position = {"partition_index": number, "current_leader_epoch": -1, "timestamp": -1}
    listed = cluster.ask(
        node_id,
        ApiKey.LIST_OFFSETS,
        7,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": topic, "partitions": [position]}],
    )
    epoch = {"partition": number, "current_leader_epoch": -1, "leader_epoch": 0}
    ended = cluster.ask(
        node_id, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=[{"topic": topic, "partitions": [epoch]}]
    )
    cut = {"name": topic, "partitions": [{"partition_index": number, "offset": 0}]}
    deleted = cluster.ask(node_id, ApiKey.DELETE_RECORDS, 2, topics=[cut], timeout=30_000)
    producers = cluster.ask(
        node_id, ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": topic, "partition_indexes": [number]}]
    )
    return [
        produced.responses[0].partition_responses[0].error_code,
        fetched.responses[0].partitions[0].error_code,
        listed.topics[0].partitions[0].error_code,
        ended.topics[0].partitions[0].error_code,
        deleted.topics[0].partitions[0].error_code,
        producers.topics[0].partitions[0].error_code,
    ]


@pytest.mark.parametrize("group", ["", "a", "b", "c", "d"])
def test_only_the_coordinator_answers_for_a_group(cluster: Nodes, group: str) -> None:
    cluster.make(1, "grouped", 1)
    coordinator = cluster.coordinator(group)
    offset = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    for node_id in IDS:
        expected = 0 if node_id == coordinator else NOT_COORDINATOR
        committed = cluster.ask(
            node_id,
            ApiKey.OFFSET_COMMIT,
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[{"name": "grouped", "partitions": [offset]}],
        )
        assert expected == committed.topics[0].partitions[0].error_code
        fetched = cluster.ask(
            node_id,
            ApiKey.OFFSET_FETCH,
            8,
            groups=[{"group_id": group, "topics": None}],
            require_stable=False,
        )
        assert expected == fetched.groups[0].error_code
        if not group:
            continue
        described = cluster.ask(node_id, ApiKey.DESCRIBE_GROUPS, 5, groups=[group], include_authorized_operations=False)
        assert expected == described.groups[0].error_code
        of_group = {"group_id": group, "topics": None}
        shares = cluster.ask(node_id, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, groups=[of_group])
        assert expected == shares.groups[0].error_code
        listed = cluster.ask(node_id, ApiKey.LIST_GROUPS, 4, states_filter=[])
        assert (node_id == coordinator) == (group in {each.group_id for each in listed.groups})
    deletions = [
        cluster.ask(node_id, ApiKey.DELETE_GROUPS, 2, groups_names=[group]).results[0].error_code
        for node_id in sorted(IDS, key=lambda each: each == coordinator)
    ]
    assert [NOT_COORDINATOR, NOT_COORDINATOR, 0] == deletions


JOIN = {"group_id": "elsewhere", "member_id": "", "member_epoch": 0, "rebalance_timeout": 1000}
NOTHING = {"group_id": "elsewhere", "member_id": "m", "group_instance_id": None}
MEMBERSHIP: list[tuple[ApiKey, int, dict[str, Any]]] = [
    (ApiKey.JOIN_GROUP, 5, join_fields("elsewhere")),
    (ApiKey.SYNC_GROUP, 3, NOTHING | {"generation_id": 1, "assignments": []}),
    (ApiKey.HEARTBEAT, 3, NOTHING | {"generation_id": 1}),
    (ApiKey.LEAVE_GROUP, 3, {"group_id": "elsewhere", "members": [{"member_id": "m", "group_instance_id": None}]}),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, {"group_id": "elsewhere", "member_id": "m", "member_epoch": 1}),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, JOIN | {"subscribed_topic_names": ["membership"], "topic_partitions": []}),
    (ApiKey.SHARE_GROUP_HEARTBEAT, 1, {"group_id": "elsewhere", "member_id": str(UUID(int=1)), "member_epoch": 1}),
    (ApiKey.OFFSET_DELETE, 0, {"group_id": "elsewhere", "topics": []}),
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, {"group_id": "elsewhere", "topics": [SET]}),
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, {"group_id": "elsewhere", "topics": [{"topic_name": "membership"}]}),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": ["elsewhere"], "include_authorized_operations": False}),
    (ApiKey.SHARE_GROUP_DESCRIBE, 1, {"group_ids": ["elsewhere"], "include_authorized_operations": False}),
]


@pytest.mark.parametrize(("key", "version", "fields"), MEMBERSHIP, ids=lambda each: getattr(each, "name", ""))
def test_no_other_node_takes_a_member_or_describes_a_group(
    cluster: Nodes, key: ApiKey, version: int, fields: dict[str, Any]
) -> None:
    cluster.make(1, "membership", 1)
    for node_id in others(cluster.coordinator("elsewhere")):
        response = cluster.ask(node_id, key, version, **fields)
        code = response.groups[0].error_code if hasattr(response, "groups") else response.error_code
        assert NOT_COORDINATOR == code


def test_producer_ids_are_given_once_whoever_is_asked_and_whoever_is_killed(cluster: Nodes) -> None:
    given: list[int] = []
    for round_number in range(3):
        for node_id in IDS * 10:
            response = cluster.ask(
                node_id,
                ApiKey.INIT_PRODUCER_ID,
                4,
                transactional_id=None,
                transaction_timeout=1000,
                producer_id=-1,
                producer_epoch=-1,
            )
            assert 0 == response.error_code
            given.append(response.producer_id)
        cluster.kill_node(1 + round_number)
    assert len(given) == len(set(given))


def test_a_client_that_asks_any_node_gets_the_truth_or_is_told_that_it_is_elsewhere(cluster: Nodes) -> None:
    drawn = random.Random(7)
    cluster.make(1, "hop", 4)
    leaders = cluster.leaders(1, "hop")
    written: dict[int, int] = dict.fromkeys(leaders, 0)
    connections = {node_id: KafkaConnection(address) for node_id, address in cluster.nodes().items()}
    answered = 0
    for _ in range(600):
        node_id, number = drawn.choice(IDS), drawn.randrange(4)
        connection, is_there = connections[node_id], leaders[number] == node_id
        if drawn.random() < 0.5:
            records = build_batch([(None, b"%d" % written[number], [], 1_000)])
            response = connection.ask(ApiKey.PRODUCE, 9, **produce_fields("hop", records, number))
            [result] = response.responses[0].partition_responses
            assert (0 if is_there else NOT_LEADER) == result.error_code
            if is_there:
                assert written[number] == result.base_offset
                written[number] += 1
        else:
            response = connection.ask(ApiKey.FETCH, 12, **fetch_fields("hop", [number]))
            [data] = response.responses[0].partitions
            assert (0 if is_there else NOT_LEADER) == data.error_code
            assert (written[number] if is_there else -1) == data.high_watermark
        answered += is_there
    assert answered
    for connection in connections.values():
        connection.close()
