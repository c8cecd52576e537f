"""DescribeClientQuotas: filters against a slow model, and the questions that Kafka refuses."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from broker.kafka.handlers.describe_client_quotas import API
from broker.security.client_quotas import DEFAULT, Entity, Kind
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions

EXACT, ANY_DEFAULT, SPECIFIED = 0, 1, 2
NAMES = (None, DEFAULT, "a", "b")
ENTITIES = [Entity(user, client) for user in NAMES for client in NAMES if (user, client) != (None, None)]
ENTITIES += [Entity(ip="10.0.0.1"), Entity(ip=DEFAULT)]


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        quotas = kafka.inside.quotas
        quotas.alter([(each, each.kinds[0], number + 1) for number, each in enumerate(ENTITIES)])
        yield kafka


def ask(kafka: Kafka, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1) -> Any:
    fields = [dict(zip(("entity_type", "match_type", "match"), component, strict=True)) for component in components]
    return kafka.ask(API.key, version, components=fields, strict=strict)


def matches(entity: Entity, component: tuple[str, int, str | None]) -> bool:
    kind, match_type, match = component
    name = {"user": entity.user, "client-id": entity.client_id, "ip": entity.ip}[kind]
    if match_type == SPECIFIED:
        return name is not None
    return name == (match if match_type == EXACT else DEFAULT)


FILTERS = [
    [kind_match] for kind_match in itertools.product(("user", "client-id", "ip"), (EXACT, ANY_DEFAULT, SPECIFIED))
]
PAIRS = [
    [("user", first), ("client-id", second)]
    for first, second in itertools.product((EXACT, ANY_DEFAULT, SPECIFIED), repeat=2)
]


@pytest.mark.parametrize("version", versions(API))
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kinds", [[], *FILTERS, *PAIRS])
def test_the_entities_that_match_every_component_are_described(
    kafka: Kafka, kinds: list[tuple[str, int]], strict: bool, version: int
) -> None:
    name = {"user": "a", "client-id": "a", "ip": "10.0.0.1"}
    components = [(kind, match, name[kind] if match == EXACT else None) for kind, match in kinds]
    answer = ask(kafka, *components, strict=strict, version=version)
    expected = [
        (list(entity.names.items()), entity.kinds[0], number + 1)
        for number, entity in enumerate(ENTITIES)
        if all(matches(entity, component) for component in components)
        and (not strict or len(entity.names) == len(components))
    ]
    got = [
        ([(one.entity_type, one.entity_name) for one in entry.entity], Kind(value.key), value.value)
        for entry in answer.entries
        for value in entry.values
    ]
    assert answer.error_code == ErrorCode.none
    assert sorted(got, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", ANY_DEFAULT, None)], ErrorCode.invalid_request),
        ([("user", ANY_DEFAULT, None), ("user", EXACT, "a")], ErrorCode.invalid_request),
        ([("user", 3, None)], ErrorCode.invalid_request),
        ([("user", EXACT, None)], ErrorCode.invalid_request),
        ([("user", ANY_DEFAULT, "a")], ErrorCode.invalid_request),
        ([("user", SPECIFIED, "a")], ErrorCode.invalid_request),
        ([("user", ANY_DEFAULT, None), ("ip", ANY_DEFAULT, None)], ErrorCode.invalid_request),
        ([("planet", ANY_DEFAULT, None)], ErrorCode.unsupported_version),
    ],
)
def test_what_kafka_does_not_look_for_is_refused(kafka: Kafka, components: Any, code: ErrorCode) -> None:
    answer = ask(kafka, *components)
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message
