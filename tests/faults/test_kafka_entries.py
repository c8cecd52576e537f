"""Every array of every request: repeating an element costs the broker no more than repeating it costs the client.

Each request names a thing with much content: a topic of many partitions, a group with a large member and many committed
offsets, a transaction in many partitions, a broker. Its response may grow by a short entry for each repetition.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.kafka.handlers import load
from broker.network.work import REQUEST_ENTRIES_MAX
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema import control
from protocol.kafka.schema.schema_reader import FieldSpec, Message, field_specs
from tests.kafka.handlers.group_client import commit, stable
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka_connection import KafkaConnection
from tests.loops import loop_over
from tests.protocol.kafka.message_strategies import REQUEST, SERVED, schema_of
from tests.protocol.kafka.schema.test_budget import arrays

PARTITIONS = 200
TIMES = 1000
# Bytes of a response for each repetition: an error with a sentence.
ENTRY_MAX = 250
# Fields that determine the kind of the request.
VALUES = {"resource_type": 2, "acks": 1, "isolation_level": 1, "timestamp": -1, "partition_max_bytes": 1 << 20}


class Tempting:
    """A broker and the things that requests name."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.name = kafka.topic(PARTITIONS)
        group = self.name  # strings of a request are all the same
        stable(kafka, group, protocols=[{"name": "range", "metadata": bytes(20_000)}], session_timeout=1_800_000)
        commit(
            kafka, self.name + "-offsets", self.name, *range(PARTITIONS), partition={"committed_metadata": "m" * 500}
        )

    def exchange(self, request: bytes) -> int:
        """Size of the response; 0: the broker has closed the connection."""
        with KafkaConnection(self.kafka.address) as client:
            client.send(request)
            try:
                return len(client.frame())
            except ConnectionError:
                return 0


@pytest.fixture(scope="module")
def tempting() -> Iterator[Tempting]:
    with Kafka() as kafka:
        yield Tempting(kafka)


def value_of(spec: FieldSpec, name: str, nulls: bool) -> Any:
    if nulls and spec.nullable:
        return None
    if spec.entity is not None:
        return message(spec.entity, name, nulls)
    if spec.kafka_type == "string":
        return name
    if spec.kafka_type in ("bytes", "records"):
        return b""
    if spec.kafka_type == "uuid":
        return None
    return VALUES.get(spec.name, 0)


def message(cls: Message, name: str, nulls: bool) -> dict[str, Any]:
    """Every array has one element, or is null where that is allowed: null often means "all of them"."""
    made: dict[str, Any] = {}
    for spec in field_specs(cls):
        value = value_of(spec, name, nulls)
        made[spec.name] = [value] if spec.is_array and value is not None else value
    return made


def repeated(cls: Message, path: tuple[str, ...], name: str, nulls: bool, times: int) -> dict[str, Any]:
    """A message with the same element so many times in the array at ``path``."""
    made = message(cls, name, nulls)
    spec = next(spec for spec in field_specs(cls) if spec.name == path[0])
    if len(path) > 1:
        inner = repeated(spec.entity, path[1:], name, nulls, times)
        made[spec.name] = [inner] if spec.is_array else inner
    else:
        element = message(spec.entity, name, nulls) if spec.entity is not None else value_of(spec, name, False)
        made[spec.name] = [element] * times
    return made


# By API.
ARRAYS = {
    key.name.lower(): [
        (key, version, path) for version in versions for path in arrays(schema_of(REQUEST, key, version))
    ]
    for key, versions in SERVED.items()
    if key in load()
}
# The outer arrays; the others are charged by the same reader. One version of each encoding.
OUTER = {
    name: [
        (key, version, path)
        for key, version, path in every
        if len(path) == 1 and version in (min(SERVED[key]), max(SERVED[key]))
    ]
    for name, every in ARRAYS.items()
}


def without_empty(cases: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: turns for name, turns in cases.items() if turns}


@loop_over("group", ["", "-offsets"])
@loop_over("nulls", [False, True])
@loop_over(("key", "version", "path"), without_empty(ARRAYS))
def test_naming_a_thing_again_costs_an_entry(
    tempting: Tempting, key: ApiKey, version: int, path: tuple[str, ...], nulls: bool, group: str
) -> None:
    cls = schema_of(REQUEST, key, version)
    name = tempting.name + group

    def response(times: int) -> int:
        return tempting.exchange(control.encode_request(key, version, 7, "x", repeated(cls, path, name, nulls, times)))

    # Twice: with a single element, some requests, such as deleting a topic, would succeed.
    few, many = response(2), response(TIMES)
    assert many - few <= ENTRY_MAX * TIMES


def test_nothing_was_deleted_meanwhile(tempting: Tempting) -> None:
    info = tempting.kafka.inside.logs.topic(tempting.name)
    assert info is not None
    assert info.partitions == PARTITIONS
    (group,) = tempting.kafka.ask(ApiKey.DESCRIBE_GROUPS, 5, groups=[tempting.name]).groups
    assert len(group.members) == 1


@loop_over(("key", "version", "path"), without_empty(OUTER))
def test_too_many_entries_close_the_connection(
    tempting: Tempting, key: ApiKey, version: int, path: tuple[str, ...]
) -> None:
    fields = repeated(schema_of(REQUEST, key, version), path, "", False, REQUEST_ENTRIES_MAX + 1)
    assert tempting.exchange(control.encode_request(key, version, 7, "x", fields)) == 0


def test_too_long_answer_closes_the_connection(tempting: Tempting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.kafka.api.RESPONSE_MAX_BYTES", 2000)
    monkeypatch.setattr("broker.kafka.handlers.metadata.RESPONSE_MAX_BYTES", 2000)
    described = {"topics": [{"name": tempting.name}], "response_partition_limit": 200}
    asked = control.encode_request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 7, "x", described)
    assert tempting.exchange(asked) == 0
    every = control.encode_request(ApiKey.METADATA, 9, 7, "x", {"topics": None})
    assert tempting.exchange(every) == 0
    # Shorter ones are answered.
    short = control.encode_request(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 7, "x", described | {"response_partition_limit": 5}
    )
    assert tempting.exchange(short) > 0
