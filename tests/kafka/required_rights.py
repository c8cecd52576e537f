"""What each API requires of its client, as Kafka's KafkaApis and ControllerApis have it, with a request that needs exactly that.

``ROWS`` is the whole of it: ``tests/kafka/test_authorization_matrix.py`` sends every request in every version with everything
denied, with exactly these rights, and with each of them missing. An API without a row fails a test there.

Tests: tests/kafka/test_authorization_matrix.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from broker import expressions
from broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import TRANSACTIONAL
from protocol.kafka.records.records import build_batch
from tests.kafka_connection import fetch_fields, produce_fields
from tests.security.grants import Grant

_BATCH = bytes(build_batch([(b"key", b"value", [], 1_000_000)]))
# A producer id that nobody has.
_NOBODY = 1 << 40
# Kafka's codes of resources in requests about configs.
_TOPIC_CONFIG, _BROKER_CONFIG, _CLIENT_METRICS_CONFIG, _GROUP_CONFIG = 2, 4, 16, 32


@attrs.frozen
class Names:
    """The resources of one request."""

    topic: str
    group: str
    txn: str
    topic_id: bytes = b"there is no such topic"


@attrs.frozen
class Right:
    """One operation on one of the resources, and the error without it; None: invisible resources are left out.

    ``or_else``: another right that is as good.
    """

    operation: Operation
    resource_type: ResourceType
    error: ErrorCode | None
    or_else: "Right | None" = None

    def grant(self, names: Names) -> Grant:
        name = {
            ResourceType.TOPIC: names.topic,
            ResourceType.GROUP: names.group,
            ResourceType.TRANSACTIONAL_ID: names.txn,
            ResourceType.CLUSTER: CLUSTER_NAME,
        }[self.resource_type]
        return self.operation, self.resource_type, name

    def __or__(self, other: "Right") -> "Right":
        return attrs.evolve(self, or_else=other)


def topic(operation: Operation) -> Right:
    return Right(operation, ResourceType.TOPIC, ErrorCode.topic_authorization_failed)


def group(operation: Operation) -> Right:
    return Right(operation, ResourceType.GROUP, ErrorCode.group_authorization_failed)


def txn(operation: Operation) -> Right:
    return Right(operation, ResourceType.TRANSACTIONAL_ID, ErrorCode.transactional_id_authorization_failed)


def cluster(operation: Operation) -> Right:
    return Right(operation, ResourceType.CLUSTER, ErrorCode.cluster_authorization_failed)


def silent(right: Right) -> Right:
    return attrs.evolve(right, error=None)


@attrs.frozen
class Row:
    """``rights``: all are needed; they are in the order in which Kafka asks for them, so that the first one that is missing
    decides the error. ``since``, ``until``: the versions that require this. ``silent_before``: versions before this one have no
    field for the error, and answer nothing. ``inside``: needed as well, but no single request shows it."""

    key: ApiKey
    rights: tuple[Right, ...]
    fields: Callable[[Names], Mapping[str, Any]]
    label: str = ""
    since: int = 0
    until: int = 1 << 15
    silent_before: int = 0
    inside: tuple[Right, ...] = ()

    @property
    def id(self) -> str:
        return self.key.name.lower() + (f"-{self.label}" if self.label else "")


def _produce(names: Names) -> Mapping[str, Any]:
    return produce_fields(names.topic, _BATCH, acks=1)


def _produce_in_transaction(names: Names) -> Mapping[str, Any]:
    batch = build_batch([(b"key", b"value", [], 1_000_000)], producer_id=_NOBODY, attributes=TRANSACTIONAL)
    return produce_fields(names.topic, batch, acks=1, transactional_id=names.txn)


def _fetch(names: Names) -> Mapping[str, Any]:
    return fetch_fields(names.topic, min_bytes=0)


def _share_session(names: Names, epoch: int) -> dict[str, Any]:
    partition = {"partition_index": 0}
    return {
        "group_id": names.group,
        "member_id": "a-member",
        "share_session_epoch": epoch,
        "topics": [{"topic": names.topic, "partitions": [partition]}],
    }


def _share_fetch(names: Names) -> Mapping[str, Any]:
    return _share_session(names, 0) | {
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "max_records": 500,
        "batch_size": 500,
        "share_acquire_mode": 0,
        "forgotten_topics_data": [],
    }


def _list_offsets(names: Names) -> Mapping[str, Any]:
    partitions = [{"partition_index": 0, "timestamp": -1}]
    return {"replica_id": -1, "topics": [{"name": names.topic, "partitions": partitions}]}


def _metadata(names: Names) -> Mapping[str, Any]:
    return _all_metadata(names) | {"topics": [{"name": names.topic}]}


def _all_metadata(_: Names) -> dict[str, Any]:
    return {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def _offset(offset: int = 5) -> dict[str, Any]:
    return {"partition_index": 0, "committed_offset": offset}


def _offset_commit(names: Names) -> Mapping[str, Any]:
    return {"group_id": names.group, "topics": [{"name": names.topic, "partitions": [_offset()]}]}


def _offset_fetch(names: Names) -> Mapping[str, Any]:
    topics = [{"name": names.topic, "partition_indexes": [0]}]
    one = {"group_id": names.group, "topics": topics}
    return {**one, "groups": [one], "require_stable": False}


def _all_offsets(names: Names) -> Mapping[str, Any]:
    one = {"group_id": names.group, "topics": None}
    return {**one, "groups": [one], "require_stable": False}


def _find(key: str, key_type: int) -> Mapping[str, Any]:
    return {"key": key, "key_type": key_type, "coordinator_keys": [key]}


def _join(names: Names) -> Mapping[str, Any]:
    return {
        "group_id": names.group,
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        # For a missing member: the answer comes at once and leaves the group unchanged.
        "member_id": "nobody",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


def _sync(names: Names) -> Mapping[str, Any]:
    return {
        "group_id": names.group,
        "generation_id": 1,
        "member_id": "nobody",
        "protocol_type": "consumer",
        "protocol_name": "range",
    }


def _share_heartbeat(names: Names) -> Mapping[str, Any]:
    return {"group_id": names.group, "member_id": "m", "member_epoch": 0, "subscribed_topic_names": [names.topic]}


def _heartbeat(names: Names) -> Mapping[str, Any]:
    return {"group_id": names.group, "generation_id": 1, "member_id": "nobody"}


def _unchanged_heartbeat(names: Names) -> Mapping[str, Any]:
    return {"group_id": names.group, "member_id": "nobody", "member_epoch": 3}


def _consumer_heartbeat(names: Names) -> Mapping[str, Any]:
    return {**_unchanged_heartbeat(names), "subscribed_topic_names": [names.topic]}


def _leave(names: Names) -> Mapping[str, Any]:
    members = [{"member_id": "nobody"}]
    return {"group_id": names.group, "member_id": "nobody", "members": members}


def _create_topics(names: Names) -> Mapping[str, Any]:
    one = {"name": names.topic, "num_partitions": 1, "replication_factor": 1}
    return {"topics": [one], "timeout": 30_000, "validate_only": True}


def _delete_topics(names: Names) -> Mapping[str, Any]:
    return {
        "topics": [{"name": names.topic, "topic_id": None}],
        "topic_names": [names.topic],
        "timeout": 30_000,
    }


def _delete_records(names: Names) -> Mapping[str, Any]:
    partitions = [{"partition_index": 0, "offset": 0}]
    return {"topics": [{"name": names.topic, "partitions": partitions}], "timeout": 30_000}


def _producer(transactional_id: str | None) -> Mapping[str, Any]:
    return {
        "transactional_id": transactional_id,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }


def _leader_epoch(names: Names) -> Mapping[str, Any]:
    partitions = [{"partition": 0, "leader_epoch": 0}]
    return {"replica_id": -1, "topics": [{"topic": names.topic, "partitions": partitions}]}


def _add_partitions(names: Names) -> Mapping[str, Any]:
    topics = [{"name": names.topic, "partitions": [0]}]
    return {
        "transactions": [_txn(names) | {"verify_only": False, "topics": topics}],
        "v3_and_below_transactional_id": names.txn,
        "v3_and_below_producer_id": _NOBODY,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": topics,
    }


def _txn(names: Names) -> dict[str, Any]:
    return {"transactional_id": names.txn, "producer_id": _NOBODY, "producer_epoch": 0}


def _txn_offsets(names: Names) -> Mapping[str, Any]:
    return _txn(names) | {
        "group_id": names.group,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": names.topic, "partitions": [_offset()]}],
    }


def _markers(names: Names) -> Mapping[str, Any]:
    marker = {
        "producer_id": _NOBODY,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": names.topic, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    return {"markers": [marker]}


def _describe_configs(kind: int, name: str) -> Mapping[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    return {"resources": [resource]}


def _push(_: Names) -> Mapping[str, Any]:
    return {
        "client_instance_id": None,
        "subscription_id": 0,
        "terminating": False,
        "compression_type": 0,
        "metrics": b"",
    }


def _alter_configs(kind: int, name: str, setting: str, value: str, **how: int) -> Mapping[str, Any]:
    configs = [{"name": setting, "value": value, **how}]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return {"resources": [resource], "validate_only": True}


def _partitions(names: Names) -> Mapping[str, Any]:
    one = {"name": names.topic, "count": 2}
    return {"topics": [one], "timeout": 30_000, "validate_only": True}


def _elect(names: Names) -> Mapping[str, Any]:
    return {
        "election_type": 0,
        "topic_partitions": [{"topic": names.topic, "partitions": [0]}],
        "timeout": 30_000,
    }


def _reassign(names: Names) -> Mapping[str, Any]:
    one = {"name": names.topic, "partitions": [{"partition_index": 0, "replicas": None}]}
    return {"timeout": 30_000, "allow_replication_factor_change": True, "topics": [one]}


def _offset_delete(names: Names) -> Mapping[str, Any]:
    return {
        "group_id": names.group,
        "topics": [{"name": names.topic, "partitions": [{"partition_index": 0}]}],
    }


def _acl_filter() -> dict[str, Any]:
    return {
        "resource_type_filter": 2,
        "resource_name_filter": "of-nobody",
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }


_ACL = {
    "resource_type": 2,
    "resource_name": "of-nobody",
    "resource_pattern_type": 3,
    "principal": "User:nobody",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
_QUOTA = {
    "entity": [{"entity_type": "user", "entity_name": "nobody"}],
    "ops": [{"key": "producer_byte_rate", "value": 1e6, "remove": False}],
}

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS

ROWS = [
    # Records
    Row(ApiKey.PRODUCE, (topic(WRITE),), _produce),
    Row(ApiKey.PRODUCE, (txn(WRITE), topic(WRITE)), _produce_in_transaction, label="of a transaction"),
    Row(ApiKey.FETCH, (topic(READ),), _fetch),
    Row(ApiKey.SHARE_FETCH, (group(READ), topic(READ)), _share_fetch),
    # The right to the topic is asked in a session only: tests/kafka/handlers/test_share_fetch.py.
    Row(ApiKey.SHARE_ACKNOWLEDGE, (group(READ),), lambda names: _share_session(names, 1), inside=(topic(READ),)),
    Row(ApiKey.LIST_OFFSETS, (topic(DESCRIBE),), _list_offsets),
    Row(ApiKey.OFFSET_FOR_LEADER_EPOCH, (topic(DESCRIBE) | cluster(CLUSTER_ACTION),), _leader_epoch),
    Row(ApiKey.DELETE_RECORDS, (topic(DELETE),), _delete_records),
    # Topics and the cluster
    Row(ApiKey.METADATA, (topic(DESCRIBE),), _metadata),
    Row(ApiKey.METADATA, (silent(topic(DESCRIBE)),), _all_metadata, label="all", since=1),
    Row(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        (topic(DESCRIBE),),
        lambda names: {"topics": [{"name": names.topic}], "response_partition_limit": 2000, "cursor": None},
    ),
    Row(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        (silent(topic(DESCRIBE)),),
        lambda _: {"topics": [], "response_partition_limit": 2000, "cursor": None},
        label="all",
    ),
    Row(ApiKey.CREATE_TOPICS, (topic(CREATE) | cluster(CREATE),), _create_topics),
    Row(
        ApiKey.DELETE_TOPICS,
        (topic(DESCRIBE) | cluster(DELETE), topic(DELETE) | cluster(DELETE)),
        _delete_topics,
    ),
    Row(ApiKey.CREATE_PARTITIONS, (topic(ALTER),), _partitions),
    Row(
        ApiKey.DESCRIBE_PRODUCERS,
        (topic(READ),),
        lambda names: {"topics": [{"name": names.topic, "partition_indexes": [0]}]},
    ),
    Row(ApiKey.ELECT_LEADERS, (cluster(ALTER),), _elect),
    Row(ApiKey.ALTER_PARTITION_REASSIGNMENTS, (cluster(ALTER),), _reassign),
    Row(ApiKey.LIST_PARTITION_REASSIGNMENTS, (cluster(DESCRIBE),), lambda _: {"timeout": 30_000, "topics": None}),
    Row(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        (cluster(ALTER),),
        lambda names: {"dirs": [{"path": "/elsewhere", "topics": [{"name": names.topic, "partitions": [0]}]}]},
    ),
    Row(
        ApiKey.DESCRIBE_LOG_DIRS,
        (cluster(DESCRIBE),),
        lambda names: {"topics": [{"topic": names.topic, "partitions": [0]}]},
        silent_before=3,
    ),
    Row(ApiKey.DESCRIBE_CLUSTER, (), lambda _: {"include_cluster_authorized_operations": False, "endpoint_type": 1}),
    Row(
        ApiKey.DESCRIBE_QUORUM,
        (cluster(DESCRIBE),),
        lambda _: {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
    ),
    Row(
        ApiKey.UPDATE_FEATURES,
        (cluster(ALTER),),
        lambda _: {"feature_updates": [{"feature": "group.version", "max_version_level": 1}], "validate_only": True},
    ),
    Row(ApiKey.API_VERSIONS, (), lambda _: {"client_software_name": "a", "client_software_version": "1"}),
    # Settings
    Row(
        ApiKey.DESCRIBE_CONFIGS,
        (topic(DESCRIBE_CONFIGS),),
        lambda names: _describe_configs(_TOPIC_CONFIG, names.topic),
        label="topic",
    ),
    Row(
        ApiKey.DESCRIBE_CONFIGS,
        (group(DESCRIBE_CONFIGS),),
        lambda names: _describe_configs(_GROUP_CONFIG, names.group),
        label="group",
    ),
    Row(
        ApiKey.DESCRIBE_CONFIGS,
        (cluster(DESCRIBE_CONFIGS),),
        lambda _: _describe_configs(_BROKER_CONFIG, "1"),
        label="broker",
    ),
    Row(
        ApiKey.ALTER_CONFIGS,
        (topic(ALTER_CONFIGS),),
        lambda names: _alter_configs(_TOPIC_CONFIG, names.topic, "retention.ms", "1000"),
        label="topic",
    ),
    Row(
        ApiKey.ALTER_CONFIGS,
        (group(ALTER_CONFIGS),),
        lambda names: _alter_configs(_GROUP_CONFIG, names.group, "consumer.session.timeout.ms", "50000"),
        label="group",
    ),
    Row(
        ApiKey.ALTER_CONFIGS,
        (cluster(ALTER_CONFIGS),),
        lambda _: _alter_configs(_BROKER_CONFIG, "", "log.retention.ms", "1000"),
        label="broker",
    ),
    Row(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        (topic(ALTER_CONFIGS),),
        lambda names: _alter_configs(_TOPIC_CONFIG, names.topic, "retention.ms", "1000", config_operation=0),
        label="topic",
    ),
    Row(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        (group(ALTER_CONFIGS),),
        lambda names: _alter_configs(
            _GROUP_CONFIG, names.group, "consumer.session.timeout.ms", "50000", config_operation=0
        ),
        label="group",
    ),
    Row(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        (cluster(ALTER_CONFIGS),),
        lambda _: _alter_configs(_BROKER_CONFIG, "", "log.retention.ms", "1000", config_operation=0),
        label="broker",
    ),
    Row(
        ApiKey.DESCRIBE_CONFIGS,
        (cluster(DESCRIBE_CONFIGS),),
        lambda _: _describe_configs(_CLIENT_METRICS_CONFIG, "all"),
        label="client metrics",
    ),
    Row(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        (cluster(ALTER_CONFIGS),),
        lambda _: _alter_configs(_CLIENT_METRICS_CONFIG, "all", "interval.ms", "1000", config_operation=0),
        label="client metrics",
    ),
    Row(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, (), lambda _: {"client_instance_id": None}),
    Row(ApiKey.PUSH_TELEMETRY, (), _push),
    Row(ApiKey.LIST_CONFIG_RESOURCES, (cluster(DESCRIBE_CONFIGS),), lambda _: {"resource_types": []}),
    # Groups
    Row(ApiKey.FIND_COORDINATOR, (group(DESCRIBE),), lambda names: _find(names.group, 0), label="group"),
    Row(ApiKey.FIND_COORDINATOR, (txn(DESCRIBE),), lambda names: _find(names.txn, 1), label="transaction", since=1),
    Row(ApiKey.JOIN_GROUP, (group(READ),), _join),
    Row(ApiKey.SYNC_GROUP, (group(READ),), _sync),
    Row(ApiKey.HEARTBEAT, (group(READ),), _heartbeat),
    Row(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        (group(DESCRIBE), topic(DESCRIBE)),
        lambda names: {
            "groups": [{"group_id": names.group, "topics": [{"topic_name": names.topic, "partitions": [0]}]}]
        },
    ),
    Row(
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        (group(READ), topic(READ)),
        lambda names: {
            "group_id": names.group,
            "topics": [{"topic_name": names.topic, "partitions": [{"partition_index": 0, "start_offset": 0}]}],
        },
    ),
    Row(
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        (group(DELETE), topic(READ)),
        lambda names: {"group_id": names.group, "topics": [{"topic_name": names.topic}]},
    ),
    Row(ApiKey.SHARE_GROUP_HEARTBEAT, (group(READ), topic(DESCRIBE)), _share_heartbeat),
    Row(
        ApiKey.SHARE_GROUP_DESCRIBE,
        (group(DESCRIBE),),
        lambda names: {"group_ids": [names.group], "include_authorized_operations": False},
    ),
    Row(ApiKey.LEAVE_GROUP, (group(READ),), _leave),
    Row(ApiKey.CONSUMER_GROUP_HEARTBEAT, (group(READ), topic(DESCRIBE)), _consumer_heartbeat),
    Row(ApiKey.CONSUMER_GROUP_HEARTBEAT, (group(READ),), _unchanged_heartbeat, label="unchanged"),
    Row(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        (group(DESCRIBE),),
        lambda names: {"group_ids": [names.group], "include_authorized_operations": False},
    ),
    Row(ApiKey.OFFSET_COMMIT, (group(READ), topic(READ)), _offset_commit),
    Row(ApiKey.OFFSET_FETCH, (group(DESCRIBE), topic(DESCRIBE)), _offset_fetch),
    Row(ApiKey.OFFSET_FETCH, (group(DESCRIBE), silent(topic(DESCRIBE))), _all_offsets, label="all", since=2),
    Row(ApiKey.OFFSET_DELETE, (group(DELETE), topic(READ)), _offset_delete),
    Row(
        ApiKey.DESCRIBE_GROUPS,
        (group(DESCRIBE),),
        lambda names: {"groups": [names.group], "include_authorized_operations": False},
    ),
    Row(
        ApiKey.LIST_GROUPS,
        (silent(group(DESCRIBE) | cluster(DESCRIBE)),),
        lambda _: {"states_filter": [], "types_filter": []},
    ),
    Row(ApiKey.DELETE_GROUPS, (group(DELETE),), lambda names: {"groups_names": [names.group]}),
    # Transactions
    Row(
        ApiKey.INIT_PRODUCER_ID,
        (cluster(Operation.IDEMPOTENT_WRITE) | topic(WRITE),),  # KIP-679: WRITE to any topic
        lambda _: _producer(None),
        label="idempotent",
    ),
    Row(ApiKey.INIT_PRODUCER_ID, (txn(WRITE),), lambda names: _producer(names.txn), label="transactional"),
    Row(ApiKey.ADD_PARTITIONS_TO_TXN, (txn(WRITE), topic(WRITE)), _add_partitions, until=3),
    # In Kafka only CLUSTER_ACTION.
    Row(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        (txn(WRITE) | cluster(CLUSTER_ACTION), topic(WRITE) | cluster(CLUSTER_ACTION)),
        _add_partitions,
        label="several",
        since=4,
    ),
    Row(ApiKey.ADD_OFFSETS_TO_TXN, (txn(WRITE), group(READ)), lambda names: _txn(names) | {"group_id": names.group}),
    Row(ApiKey.TXN_OFFSET_COMMIT, (txn(WRITE), group(READ), topic(READ)), _txn_offsets),
    Row(ApiKey.END_TXN, (txn(WRITE),), lambda names: _txn(names) | {"committed": False}),
    Row(ApiKey.END_TXNS, (txn(WRITE),), _txn),
    Row(ApiKey.BACKUP, (cluster(ALTER),), lambda _: {"action": 2, "backup_id": "none"}),
    Row(ApiKey.WRITE_TXN_MARKERS, (cluster(CLUSTER_ACTION) | cluster(ALTER),), _markers),
    Row(ApiKey.DESCRIBE_TRANSACTIONS, (txn(DESCRIBE),), lambda names: {"transactional_ids": [names.txn]}),
    Row(
        ApiKey.LIST_TRANSACTIONS,
        (silent(txn(DESCRIBE)),),
        lambda _: {
            "state_filters": [],
            "producer_id_filters": [],
            "duration_filter": -1,
            # Where there is no google-re2, expressions are refused, whatever the rights.
            "transactional_id_pattern": ".*" if expressions.available() else None,
        },
    ),
    # Security
    Row(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        (cluster(DESCRIBE_CONFIGS),),
        lambda _: {"components": [], "strict": False},
    ),
    Row(ApiKey.ALTER_CLIENT_QUOTAS, (cluster(ALTER_CONFIGS),), lambda _: {"entries": [_QUOTA], "validate_only": True}),
    Row(ApiKey.DESCRIBE_ACLS, (cluster(DESCRIBE),), lambda _: _acl_filter()),
    Row(ApiKey.CREATE_ACLS, (cluster(ALTER),), lambda _: {"creations": [_ACL]}),
    Row(ApiKey.DELETE_ACLS, (cluster(ALTER),), lambda _: {"filters": [_acl_filter()]}),
    Row(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (cluster(DESCRIBE),), lambda _: {"users": [{"name": "nobody"}]}),
    Row(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        (cluster(ALTER),),
        lambda _: {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []},
    ),
    Row(ApiKey.SASL_HANDSHAKE, (), lambda _: {"mechanism": "PLAIN"}),
    Row(ApiKey.SASL_AUTHENTICATE, (), lambda _: {"auth_bytes": b""}),
]
