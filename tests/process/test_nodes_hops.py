"""A client that asks another of three nodes at each request, through all that clients do: each answer is right, or says that the
partition, group or transactional id is elsewhere and where. No node calls something unknown that another one has confirmed."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any
from uuid import UUID

import attrs
import pytest

from broker.cluster.nodes import coordinator_of
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import TRANSACTIONAL, batches
from protocol.kafka.records.records import build_batch
from tests.kafka.handlers.consumer_group_client import UNCHANGED
from tests.kafka.handlers.group_client import join_fields
from tests.kafka_connection import KafkaConnection, fetch_fields, produce_fields
from tests.process.nodes import COUNT, IDS, NOT_COORDINATOR, NOT_LEADER, Nodes
from tests.waiting import wait_for

SETTINGS = "authorizer_class_name=acl", "super_users=User:ANONYMOUS"
PARTITIONS = range(COUNT)
# Before a client is known, and between brokers.
NOT_ASKED = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.WRITE_TXN_MARKERS}
ANY, LITERAL, READ, ALLOW, TOPIC, BROKER, GROUP = 1, 3, 3, 3, 2, 4, 32
ACCEPT = 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes"), *SETTINGS) as running:
        yield running
        assert 0 == running.stop()
        assert {"node_ended"} >= {event["event"] for event in running.errors}


def fields_of(value: Any, name: str) -> Iterator[Any]:
    """What is under this name anywhere in a response. "error_code" stands for the names that end with it, too."""
    if isinstance(value, tuple):
        for each in value:
            yield from fields_of(each, name)
    elif hasattr(value, "__dataclass_fields__"):
        for field in value.__dataclass_fields__:
            inner = getattr(value, field)
            if field == name or (name == "error_code" and field.endswith(name)):
                yield inner
            else:
                yield from fields_of(inner, name)


def errors_in(response: Any) -> set[int]:
    return {int(code) for code in fields_of(response, "error_code")} - {0}


class Hopper:
    """Asks the next node at each request."""

    def __init__(self, addresses: Mapping[int, str]) -> None:
        """``addresses`` of the nodes by their ids."""
        self.addresses = addresses
        self.connections = {node_id: KafkaConnection(address) for node_id, address in addresses.items()}
        self.turn = itertools.cycle(addresses)
        self.asked: set[ApiKey] = set()

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()

    def one(self, node_id: int, key: ApiKey, version: int, /, **fields: Any) -> Any:
        self.asked.add(key)
        return self.connections[node_id].ask(key, version, **fields)

    def any(self, key: ApiKey, version: int, /, **fields: Any) -> Any:
        """For what any node answers."""
        response = self.one(next(self.turn), key, version, **fields)
        assert set() == errors_in(response), response
        return response

    def all(self, key: ApiKey, version: int, /, **fields: Any) -> list[Any]:
        """For what each node answers for itself."""
        return [self.any(key, version, **fields) for _ in self.addresses]

    def found(self, right: int, elsewhere: int, key: ApiKey, version: int, /, **fields: Any) -> Any:
        """One node after the other is asked, until it is the turn of the right one."""
        for node_id in self.turn:
            response = self.one(node_id, key, version, **fields)
            if node_id == right:
                assert elsewhere not in errors_in(response), response
                return response
            assert {elsewhere} == errors_in(response), (node_id, right, response)
            assert {right} >= {told.leader_id for told in fields_of(response, "current_leader")} - {-1}, response
            for told in itertools.chain(*fields_of(response, "node_endpoints")):
                assert (right, self.addresses[right]) == (told.node_id, f"{told.host}:{told.port}")
        raise AssertionError

    def leader(self, topic: str, partition: int) -> int:
        response = self.any(ApiKey.METADATA, 12, topics=[{"name": topic}], allow_auto_topic_creation=False)
        return int(response.topics[0].partitions[partition].leader_id)

    def at_leader(self, topic: str, partition: int, key: ApiKey, version: int, /, **fields: Any) -> Any:
        response = self.found(self.leader(topic, partition), NOT_LEADER, key, version, **fields)
        assert set() == errors_in(response), response
        return response

    def coordinator(self, name: str, key_type: int = 0) -> int:
        response = self.any(ApiKey.FIND_COORDINATOR, 6, key_type=key_type, coordinator_keys=[name])
        [found] = response.coordinators
        assert self.addresses[found.node_id] == f"{found.host}:{found.port}"
        return int(found.node_id)

    def at_coordinator(
        self, name: str, key: ApiKey, version: int, /, expects: int = 0, key_type: int = 0, **fields: Any
    ) -> Any:
        right = self.coordinator(name, key_type)
        response = self.found(right, NOT_COORDINATOR, key, version, **fields)
        assert {expects} - {0} == errors_in(response), response
        return response


@attrs.frozen
class Life:
    """What a client does, with names of its own. Each group and transactional id is at the node of this place."""

    hopper: Hopper
    place: int

    def name(self, stem: str) -> str:
        names = (f"{stem}-{self.place}-{number}" for number in itertools.count())
        return next(name for name in names if coordinator_of(name, COUNT) == self.place)

    def topic(self, stem: str) -> tuple[str, UUID]:
        name = f"{stem}-{self.place}"
        wanted = {"name": name, "num_partitions": COUNT, "replication_factor": 1, "assignments": [], "configs": []}
        made = self.hopper.any(ApiKey.CREATE_TOPICS, 7, topics=[wanted], timeout=30_000, validate_only=False)
        topic_id = made.topics[0].topic_id
        for _ in self.hopper.addresses:
            told = self.hopper.any(ApiKey.METADATA, 12, topics=[{"name": name}], allow_auto_topic_creation=False)
            assert topic_id == told.topics[0].topic_id
        return name, topic_id

    def write(self, topic: str, partition: int, value: bytes = b"value", **batch: Any) -> int:
        """The offset."""
        records = build_batch([(None, value, [], 1_000)], **batch)
        response = self.hopper.at_leader(
            topic, partition, ApiKey.PRODUCE, 12, **produce_fields(topic, records, partition)
        )
        return int(response.responses[0].partition_responses[0].base_offset)

    def read(self, topic: str, topic_id: UUID, partition: int, isolation_level: int = 0) -> tuple[int, int]:
        """How many records are sent, and how many there are up to the last stable offset."""
        fields = fetch_fields("", [partition]) | {"isolation_level": isolation_level, "forgotten_topics_data": []}
        [asked] = fields["topics"]
        response = self.hopper.at_leader(
            topic, partition, ApiKey.FETCH, 16, **fields | {"topics": [asked | {"topic_id": topic_id}]}
        )
        [data] = response.responses[0].partitions
        headers = [header for _, header in batches(data.records)] if data.records else []
        return sum(header.record_count for header in headers), data.last_stable_offset

    def offset(self, group: str, topic: str) -> list[int]:
        """What is committed, by partition."""
        topics = [{"name": topic, "partition_indexes": list(PARTITIONS)}]
        response = self.hopper.at_coordinator(
            group, ApiKey.OFFSET_FETCH, 9, groups=[{"group_id": group, "topics": topics}], require_stable=True
        )
        return [each.committed_offset for each in response.groups[0].topics[0].partitions]


def positions(topic: str, offset: int) -> list[dict[str, Any]]:
    partitions = [
        {"partition_index": each, "committed_offset": offset, "committed_metadata": ""} for each in PARTITIONS
    ]
    return [{"name": topic, "partitions": partitions}]


def records(life: Life) -> None:
    topic, topic_id = life.topic("records")
    ask = life.hopper.at_leader
    producer_id = life.hopper.any(
        ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=1000
    ).producer_id
    for partition in PARTITIONS:
        for sequence in (0, 1, 1, 2):  # the second one comes twice, and is stored once
            offset = life.write(topic, partition, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            assert sequence == offset
        assert (3, 3) == life.read(topic, topic_id, partition)
        for timestamp, expected in ((-1, 3), (-2, 0)):
            wanted = [{"partition_index": partition, "timestamp": timestamp}]
            fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": wanted}]}
            response = ask(topic, partition, ApiKey.LIST_OFFSETS, 7, **fields)
            assert expected == response.topics[0].partitions[0].offset
        told = life.hopper.any(ApiKey.METADATA, 12, topics=[{"name": topic}], allow_auto_topic_creation=False)
        epoch = told.topics[0].partitions[partition].leader_epoch
        epochs = [{"topic": topic, "partitions": [{"partition": partition, "leader_epoch": epoch}]}]
        response = ask(topic, partition, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=epochs)
        assert 3 == response.topics[0].partitions[0].end_offset
        producers = [{"name": topic, "partition_indexes": [partition]}]
        described = ask(topic, partition, ApiKey.DESCRIBE_PRODUCERS, 0, topics=producers)
        assert [producer_id] == [each.producer_id for each in described.topics[0].partitions[0].active_producers]
        cut = [{"name": topic, "partitions": [{"partition_index": partition, "offset": 2}]}]
        deleted = ask(topic, partition, ApiKey.DELETE_RECORDS, 2, topics=cut, timeout=30_000)
        assert 2 == deleted.topics[0].partitions[0].low_watermark


def a_classic_group(life: Life) -> None:
    topic, _ = life.topic("classic")
    group = life.name("classic")
    ask = life.hopper.at_coordinator
    refused = ask(group, ApiKey.JOIN_GROUP, 9, expects=ErrorCode.member_id_required, **join_fields(group))
    joined = ask(group, ApiKey.JOIN_GROUP, 9, **join_fields(group, refused.member_id, topics=[topic]))
    me = {"group_id": group, "member_id": joined.member_id, "group_instance_id": None}
    generation = {"generation_id": joined.generation_id}
    mine = {"member_id": joined.member_id, "assignment": b"all"}
    kind = {"protocol_type": "consumer", "protocol_name": "range"}
    synced = ask(group, ApiKey.SYNC_GROUP, 5, **me, **generation, **kind, assignments=[mine])
    assert b"all" == synced.assignment
    ask(group, ApiKey.HEARTBEAT, 4, **me, **generation)
    committed = {"generation_id_or_member_epoch": joined.generation_id, "topics": positions(topic, 7)}
    ask(group, ApiKey.OFFSET_COMMIT, 9, **me, **committed)
    assert [7] * COUNT == life.offset(group, topic)
    described = ask(group, ApiKey.DESCRIBE_GROUPS, 6, groups=[group], include_authorized_operations=False)
    assert [joined.member_id] == [each.member_id for each in described.groups[0].members]
    ask(group, ApiKey.LEAVE_GROUP, 5, group_id=group, members=[{"member_id": joined.member_id}])
    listed = life.hopper.all(ApiKey.LIST_GROUPS, 5, states_filter=[], types_filter=[])
    assert 1 == sum(each.group_id == group for response in listed for each in response.groups)
    forgotten = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    ask(group, ApiKey.OFFSET_DELETE, 0, group_id=group, topics=forgotten)
    assert [-1] + [7] * (COUNT - 1) == life.offset(group, topic)
    ask(group, ApiKey.DELETE_GROUPS, 2, groups_names=[group])
    assert [-1] * COUNT == life.offset(group, topic)


def a_group_of_kip_848(life: Life) -> None:
    topic, topic_id = life.topic("consumer")
    group = life.name("consumer")
    ask = life.hopper.at_coordinator

    def heartbeat(epoch: int, **how: Any) -> Any:
        fields = UNCHANGED | {"group_id": group, "member_id": "member", "member_epoch": epoch} | how
        return ask(group, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **fields)

    joined = heartbeat(0, rebalance_timeout=60_000, subscribed_topic_names=[topic], topic_partitions=[])
    [assigned] = joined.assignment.topic_partitions
    assert (topic_id, list(PARTITIONS)) == (assigned.topic_id, sorted(assigned.partitions))
    epoch = heartbeat(joined.member_epoch).member_epoch
    me = {"group_id": group, "member_id": "member", "generation_id_or_member_epoch": epoch}
    ask(group, ApiKey.OFFSET_COMMIT, 9, **me, group_instance_id=None, topics=positions(topic, 5))
    assert [5] * COUNT == life.offset(group, topic)
    described = ask(group, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group], include_authorized_operations=False)
    assert ["member"] == [each.member_id for each in described.groups[0].members]
    heartbeat(-1)
    described = ask(group, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group], include_authorized_operations=False)
    assert () == described.groups[0].members


def transactions(life: Life, version_2: bool) -> None:
    topic, topic_id = life.topic(f"transactions-{version_2}")
    name, group = life.name("writer"), Life(life.hopper, (life.place + 1) % COUNT).name("offsets")
    ask = life.hopper.at_coordinator
    init = {"transactional_id": name, "transaction_timeout": 60_000}
    begun = ask(name, ApiKey.INIT_PRODUCER_ID, 4, key_type=1, **init)
    producer_id, epoch, sequence = begun.producer_id, begun.producer_epoch, 0
    assert [-1] * COUNT == life.offset(group, topic)
    kept = 0
    for turn, commit in enumerate((True, False, True), start=1):
        me = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch}
        if not version_2:
            old = {f"v3_and_below_{field}": value for field, value in me.items()}
            topics = [{"name": topic, "partitions": list(PARTITIONS)}]
            ask(name, ApiKey.ADD_PARTITIONS_TO_TXN, 3, key_type=1, **old, v3_and_below_topics=topics)
            ask(name, ApiKey.ADD_OFFSETS_TO_TXN, 4, key_type=1, **me, group_id=group)
        batch = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        records = build_batch([(None, b"value", [], 1_000)], **batch, attributes=TRANSACTIONAL)
        for partition in PARTITIONS:
            fields = produce_fields(topic, records, partition, transactional_id=name)
            life.hopper.at_leader(topic, partition, ApiKey.PRODUCE, 12 if version_2 else 11, **fields)
            assert kept == life.read(topic, topic_id, partition, isolation_level=1)[0]
        ask(group, ApiKey.TXN_OFFSET_COMMIT, 5 if version_2 else 4, **me, group_id=group, topics=positions(topic, turn))
        described = ask(name, ApiKey.DESCRIBE_TRANSACTIONS, 0, key_type=1, transactional_ids=[name])
        assert "Ongoing" == described.transaction_states[0].transaction_state
        listed = life.hopper.all(ApiKey.LIST_TRANSACTIONS, 1, state_filters=["Ongoing"], producer_id_filters=[])
        assert [name] == [each.transactional_id for response in listed for each in response.transaction_states]
        ended = ask(name, ApiKey.END_TXN, 5 if version_2 else 4, key_type=1, **me, committed=commit)
        if version_2:
            producer_id, epoch = ended.producer_id, ended.producer_epoch
        else:
            sequence += 1
        kept += commit
        wait_for(lambda: [{1: 1, 2: 1, 3: 3}[turn]] * COUNT == life.offset(group, topic), "offsets")  # noqa: B023
        for partition in PARTITIONS:
            # Aborted records are sent, too, and the client drops them; markers are batches of one.
            wait_for(lambda: 2 * turn == life.read(topic, topic_id, partition, 1)[1], "still open")  # noqa: B023
        kept = 2 * turn


def a_share_group(life: Life) -> None:
    topic, topic_id = life.topic("share")
    group, member_id = life.name("share"), str(UUID(int=1 + life.place))
    ask = life.hopper.at_coordinator
    earliest = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": GROUP, "resource_name": group, "configs": [earliest]}
    life.hopper.any(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    me = {"group_id": group, "member_id": member_id}
    joined = ask(group, ApiKey.SHARE_GROUP_HEARTBEAT, 1, **me, member_epoch=0, subscribed_topic_names=[topic])
    [assigned] = joined.assignment.topic_partitions
    assert (topic_id, list(PARTITIONS)) == (assigned.topic_id, sorted(assigned.partitions))
    bounds = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 10, "batch_size": 10}
    for partition in PARTITIONS:
        life.write(topic, partition)

        def topics(*acks: dict[str, Any], partition: int = partition) -> list[dict[str, Any]]:
            one = {"partition_index": partition, "acknowledgement_batches": list(acks)}
            return [{"topic_id": topic_id, "partitions": [one]}]

        fetch = me | bounds | {"share_session_epoch": 0, "topics": topics(), "forgotten_topics_data": []}
        leader = life.hopper.leader(topic, partition)
        response = life.hopper.found(leader, NOT_LEADER, ApiKey.SHARE_FETCH, 2, **fetch)
        [got] = response.responses[0].partitions
        assert [(0, 0)] == [(each.first_offset, each.last_offset) for each in got.acquired_records], response
        done = topics({"first_offset": 0, "last_offset": 0, "acknowledge_types": [ACCEPT]})
        for node_id in sorted(life.hopper.addresses, key=lambda each: each == leader):
            acknowledged = life.hopper.one(
                node_id, ApiKey.SHARE_ACKNOWLEDGE, 2, **me, share_session_epoch=1, topics=done
            )
            if node_id == leader:
                assert set() == errors_in(acknowledged), acknowledged
            else:  # where nothing was fetched, there is no session
                assert errors_in(acknowledged) in ({NOT_LEADER}, {ErrorCode.share_session_not_found}), acknowledged
        for node_id in life.hopper.addresses:
            life.hopper.one(node_id, ApiKey.SHARE_ACKNOWLEDGE, 2, **me, share_session_epoch=-1, topics=[])
    wanted = {"group_id": group, "topics": [{"topic_name": topic, "partitions": list(PARTITIONS)}]}

    def starts() -> list[int]:
        response = ask(group, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=[wanted])
        return [each.start_offset for each in response.groups[0].topics[0].partitions]

    assert [1] * COUNT == starts()
    described = ask(group, ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=[group], include_authorized_operations=False)
    assert [member_id] == [each.member_id for each in described.groups[0].members]
    ask(group, ApiKey.SHARE_GROUP_HEARTBEAT, 1, **me, member_epoch=-1, subscribed_topic_names=None)
    altered = {"topic_name": topic, "partitions": [{"partition_index": each, "start_offset": 0} for each in PARTITIONS]}
    ask(group, ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=[altered])
    assert [0] * COUNT == starts()
    ask(group, ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=[{"topic_name": topic}])
    assert [-1] * COUNT == starts()
    ask(group, ApiKey.DELETE_GROUPS, 2, groups_names=[group])


def topics_and_their_settings(life: Life) -> None:
    topic, topic_id = life.topic("topics")
    ask = life.hopper.any
    resource = {"resource_type": TOPIC, "resource_name": topic}
    entries = [{"name": "retention.ms", "value": str(1000 + life.place)}]
    ask(ApiKey.ALTER_CONFIGS, 2, resources=[resource | {"configs": entries}], validate_only=False)
    keys = {"configuration_keys": ["retention.ms"]}
    how = {"include_synonyms": False, "include_documentation": False}
    for response in life.hopper.all(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource | keys], **how):
        assert str(1000 + life.place) == response.results[0].configs[0].value
    grown = {"name": topic, "count": COUNT + 1, "assignments": None}
    ask(ApiKey.CREATE_PARTITIONS, 3, topics=[grown], timeout=30_000, validate_only=False)
    for response in life.hopper.all(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": topic}], response_partition_limit=9, cursor=None
    ):
        assert (topic_id, COUNT + 1) == (response.topics[0].topic_id, len(response.topics[0].partitions))
    assert 0 == life.write(topic, COUNT)
    dirs = life.hopper.all(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=[{"topic": topic, "partitions": list(range(COUNT + 1))}])
    held = [
        each for response in dirs for result in response.results for one in result.topics for each in one.partitions
    ]
    assert list(range(COUNT + 1)) == sorted(each.partition_index for each in held)
    for _ in life.hopper.addresses:
        elected = life.hopper.one(
            next(life.hopper.turn),
            ApiKey.ELECT_LEADERS,
            2,
            election_type=0,
            topic_partitions=[{"topic": topic, "partitions": [0]}],
            timeout=30_000,
        )
        assert {int(ErrorCode.election_not_needed)} == errors_in(elected)
        leader = life.hopper.leader(topic, 0)
        kept = {"name": topic, "partitions": [{"partition_index": 0, "replicas": [leader]}]}
        life.hopper.any(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, topics=[kept], timeout=30_000)
    for response in life.hopper.all(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout=30_000):
        assert () == response.topics
    directory = dirs[0].results[0].log_dir
    ask_dirs = [{"path": directory, "topics": [{"name": topic, "partitions": list(PARTITIONS)}]}]
    for _ in life.hopper.addresses:
        told = life.hopper.one(next(life.hopper.turn), ApiKey.ALTER_REPLICA_LOG_DIRS, 2, dirs=ask_dirs)
        assert not {ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id} & errors_in(told), told
    ask(ApiKey.DELETE_TOPICS, 6, topics=[{"name": topic, "topic_id": None}], timeout=30_000)
    for node_id in life.hopper.addresses:
        gone = life.hopper.one(node_id, ApiKey.METADATA, 12, topics=[{"name": topic}], allow_auto_topic_creation=False)
        assert {int(ErrorCode.unknown_topic_or_partition)} == errors_in(gone)
    _, again = life.topic("topics")  # under the same name, and it is another one
    assert topic_id != again
    assert (0, 0) == life.read(topic, again, 0)


def a_topic_that_a_question_has_made(life: Life) -> None:
    name = f"asked-{life.place}"
    for _ in life.hopper.addresses:
        life.hopper.any(ApiKey.METADATA, 12, topics=[{"name": name}], allow_auto_topic_creation=True)
    assert 0 == life.write(name, 0)


def who_may_do_what(life: Life) -> None:
    user = f"user-{life.place}"
    rule = {"principal": f"User:{user}", "host": "*", "operation": READ, "permission_type": ALLOW}
    of = {"resource_type": TOPIC, "resource_name": user, "resource_pattern_type": LITERAL}
    life.hopper.any(ApiKey.CREATE_ACLS, 3, creations=[rule | of])
    wanted = {"resource_type_filter": TOPIC, "resource_name_filter": user, "pattern_type_filter": LITERAL}
    wanted |= {"principal_filter": None, "host_filter": None, "operation": ANY, "permission_type": ANY}
    for expected in (1, 0):
        for response in life.hopper.all(ApiKey.DESCRIBE_ACLS, 3, **wanted):
            assert expected == len(response.resources)
        life.hopper.any(ApiKey.DELETE_ACLS, 3, filters=[wanted])
    secret = {"name": user, "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": bytes(32)}
    life.hopper.any(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[secret])
    life.hopper.all(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=[{"name": user}])
    entity, ops = {"entity_type": "user", "entity_name": user}, {"key": "producer_byte_rate", "value": 1e9}
    entries = [{"entity": [entity], "ops": [ops | {"remove": False}]}]
    life.hopper.any(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=entries, validate_only=False)
    component = {"entity_type": "user", "match_type": 0, "match": user}
    for response in life.hopper.all(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=[component], strict=True):
        assert [1e9] == [value.value for entry in response.entries for value in entry.values]


def the_cluster(life: Life) -> None:
    hopper = life.hopper
    update = {"feature": "share.version", "max_version_level": 1, "upgrade_type": 1}
    hopper.all(ApiKey.UPDATE_FEATURES, 1, timeout=30_000, feature_updates=[update], validate_only=True)
    assert 1 == len({str(each.brokers) for each in hopper.all(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1)})
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    hopper.all(ApiKey.DESCRIBE_QUORUM, 2, topics=asked)
    hopper.all(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[])


def live(addresses: Mapping[int, str], place: int) -> None:
    """All that clients do, with groups and transactional ids at the node of this place."""
    with closing(Hopper(addresses)) as hopper:
        life = Life(hopper, place)
        records(life)
        a_classic_group(life)
        a_group_of_kip_848(life)
        transactions(life, False)
        transactions(life, True)
        a_share_group(life)
        topics_and_their_settings(life)
        a_topic_that_a_question_has_made(life)
        who_may_do_what(life)
        the_cluster(life)
        software = {"client_software_name": "test", "client_software_version": "1"}
        told = hopper.any(ApiKey.API_VERSIONS, 3, **software)
        assert set() == {ApiKey(each.api_key) for each in told.api_keys} - NOT_ASKED - hopper.asked


@pytest.mark.parametrize("place", range(COUNT))
def test_a_client_that_hops_lives_as_well_as_any_other(cluster: Nodes, place: int) -> None:
    live(cluster.nodes(), place)


@pytest.mark.parametrize("node_id", IDS)
def test_a_node_that_comes_back_knows_the_topics_that_were_made_meanwhile(cluster: Nodes, node_id: int) -> None:
    name, maker = f"missed-{node_id}", IDS[node_id % COUNT]
    cluster.crash_node(node_id)
    assert 0 == cluster.make(maker, name, COUNT).error_code
    answers: list[set[int]] = []

    def answers_now() -> bool:
        try:
            told = cluster.ask(node_id, ApiKey.METADATA, 12, topics=[{"name": name}], allow_auto_topic_creation=False)
        except OSError:
            return False
        answers.append(errors_in(told) - {ErrorCode.leader_not_available})
        return True

    wait_for(answers_now, f"node {node_id} does not come back")
    assert [set()] == answers
    cluster.wait_for_all()
