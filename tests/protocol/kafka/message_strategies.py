"""Messages of every API for the tests: strategies from Kafka's schemas, and kio's own reader and writer.

kio's native reader is used here on valid bytes only; this project's readers must agree with it.
"""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema.schema_reader import FieldSpec, field_specs

# The served versions: Kafka's own ranges where the recommended set exceeds kio's.
SERVED: dict[ApiKey, range] = {
    ApiKey.PRODUCE: range(3, 14),
    ApiKey.FETCH: range(4, 19),
    ApiKey.LIST_OFFSETS: range(1, 12),
    ApiKey.METADATA: range(14),
    ApiKey.OFFSET_COMMIT: range(2, 11),
    ApiKey.OFFSET_FETCH: range(1, 11),
    ApiKey.FIND_COORDINATOR: range(7),
    ApiKey.JOIN_GROUP: range(10),
    ApiKey.HEARTBEAT: range(5),
    ApiKey.LEAVE_GROUP: range(6),
    ApiKey.SYNC_GROUP: range(6),
    ApiKey.DESCRIBE_GROUPS: range(7),
    ApiKey.LIST_GROUPS: range(5),
    ApiKey.API_VERSIONS: range(5),
    ApiKey.CREATE_TOPICS: range(2, 8),
    ApiKey.DELETE_TOPICS: range(1, 7),
    ApiKey.DELETE_RECORDS: range(3),
    ApiKey.INIT_PRODUCER_ID: range(6),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: range(2, 5),
    ApiKey.DESCRIBE_CONFIGS: range(1, 5),
    ApiKey.ALTER_CONFIGS: range(3),
    ApiKey.CREATE_PARTITIONS: range(4),
    ApiKey.DELETE_GROUPS: range(3),
    ApiKey.ELECT_LEADERS: range(3),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: range(2),
    ApiKey.OFFSET_DELETE: range(1),
    ApiKey.DESCRIBE_CLUSTER: range(3),
    ApiKey.DESCRIBE_PRODUCERS: range(1),
    ApiKey.DESCRIBE_LOG_DIRS: range(1, 6),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: range(1),
    # Not served yet, but read and written by the same code: tagged structures, floats, durations of 64 bits.
    ApiKey.DESCRIBE_CLIENT_QUOTAS: range(2),
    ApiKey.DESCRIBE_TRANSACTIONS: range(1),
    ApiKey.LIST_TRANSACTIONS: range(3),
    ApiKey.DESCRIBE_QUORUM: range(3),
    ApiKey.FETCH_SNAPSHOT: range(2),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: range(2),
    ApiKey.SHARE_FETCH: range(1, 3),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: range(1),
}

# For a test of each of many versions with few layouts. A share of the profile, so that `make fuzz` runs more.
few_examples = settings(max_examples=settings().max_examples // 3)

REQUEST, RESPONSE = "request", "response"
MESSAGES = [
    (kind, key, version) for key, versions in SERVED.items() for version in versions for kind in (REQUEST, RESPONSE)
]

_TEXT = st.text(max_size=12)
_BYTES = st.binary(max_size=12)
_MILLISECOND = timedelta(milliseconds=1)


def _ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _ints(8),
    "int16": _ints(16),
    "int32": _ints(32),
    "int64": _ints(64),
    "uint16": st.integers(0, 65535),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "string": _TEXT,
    "bytes": _BYTES,
    "records": _BYTES,
    "uuid": st.none() | st.uuids().filter(lambda value: value.int != 0),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": _ints(32).map(lambda ms: ms * _MILLISECOND),
    "timedelta_i64": st.integers(-(2**45), 2**45).map(lambda ms: ms * _MILLISECOND),
    # To 2109: beyond that, kio loses milliseconds in a float.
    "datetime_i64": st.integers(0, 2**42).map(lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + ms * _MILLISECOND),
}


def schema_of(kind: str, key: int, version: int) -> Any:
    return load_request_schema(key, version) if kind == REQUEST else load_response_schema(key, version)


def mappings(cls: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Every field of a message as the nested mapping for the writer."""
    return st.fixed_dictionaries({spec.name: _values(spec) for spec in field_specs(cls)})


def _values(spec: FieldSpec) -> st.SearchStrategy[Any]:
    element = mappings(spec.entity) if spec.entity is not None else _PRIMITIVES[spec.kafka_type or ""]
    if spec.is_array:
        element = st.lists(element, max_size=2)
    # kio cannot write null into a tag that has another default.
    return st.none() | element if spec.nullable and (spec.tag is None or spec.default is None) else element


def instance(cls: Any, mapping: dict[str, Any]) -> Any:
    """The same as an instance of kio's dataclass."""
    return cls(**{spec.name: _instance(spec, mapping[spec.name]) for spec in field_specs(cls)})


def _instance(spec: FieldSpec, value: Any) -> Any:
    if value is None:
        return None
    if spec.is_array:
        return tuple(instance(spec.entity, item) if spec.entity is not None else item for item in value)
    return instance(spec.entity, value) if spec.entity is not None else value


def written_by_kio(message: Any) -> bytes:
    """Without header or length."""
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def read_by_kio(cls: Any, body: bytes) -> Any:
    message, size = entity_reader(cls)(body, 0)
    assert len(body) == size
    return message
