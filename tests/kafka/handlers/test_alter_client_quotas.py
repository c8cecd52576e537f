"""AlterClientQuotas: changes and refusals, and that DescribeClientQuotas and the next broker see both."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from broker.errors import StorageError
from broker.kafka.handlers.alter_client_quotas import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions

OK, INVALID = ErrorCode.none, ErrorCode.invalid_request
Entity = dict[str, str | None]


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


def entry(entity: Entity | list[tuple[str, str | None]], **ops: float | None) -> dict[str, Any]:
    names = entity.items() if isinstance(entity, dict) else entity
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in names],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops.items()],
    }


def alter(kafka: Kafka, *entries: dict[str, Any], validate_only: bool = False, version: int = 1) -> list[ErrorCode]:
    answer = kafka.ask(API.key, version, entries=entries, validate_only=validate_only)
    for asked, told in zip(entries, answer.entries, strict=True):
        assert [(each.entity_type, each.entity_name) for each in told.entity] == [
            (each["entity_type"], each["entity_name"]) for each in asked["entity"]
        ]
        assert (told.error_message is None) == (told.error_code == OK)
    return [each.error_code for each in answer.entries]


def described(kafka: Kafka) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    answer = kafka.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=[], strict=False)
    return {
        tuple((each.entity_type, each.entity_name) for each in entry.entity): {
            each.key: each.value for each in entry.values
        }
        for entry in answer.entries
    }


@pytest.mark.parametrize("version", versions(API))
def test_quotas_are_set_changed_and_removed(kafka: Kafka, version: int) -> None:
    both = {"user": "CN=a,b=c", "client-id": None}
    first = entry(both, producer_byte_rate=1e6, request_percentage=12.5)
    address = entry({"ip": "10.0.0.1"}, connection_creation_rate=3)
    assert alter(kafka, first, address, version=version) == [OK, OK]
    assert alter(kafka, entry(both, request_percentage=None, consumer_byte_rate=5), version=version) == [OK]
    assert alter(kafka, entry({"user": "nobody"}, consumer_byte_rate=None), version=version) == [OK]
    assert described(kafka) == {
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 3},
        (("user", "CN=a,b=c"), ("client-id", None)): {"producer_byte_rate": 1e6, "consumer_byte_rate": 5},
    }


@pytest.mark.parametrize(
    "refused",
    [
        entry({}, producer_byte_rate=1),
        entry({"planet": "x"}, producer_byte_rate=1),
        entry({"user": ""}, producer_byte_rate=1),
        entry({"user": "a", "ip": "10.0.0.1"}, producer_byte_rate=1),
        entry([("user", "a"), ("user", "b")], producer_byte_rate=1),
        entry({"ip": "localhost"}, connection_creation_rate=1),
        entry({"ip": "10.0.0.1"}, producer_byte_rate=1),
        entry({"user": "a"}, connection_creation_rate=1),
        entry({"user": "a"}, producer_byte_rate=0.0),
        entry({"user": "a"}, producer_byte_rate=-1),
        entry({"user": "a"}, producer_byte_rate=1.5),
        entry({"user": "a"}, producer_byte_rate=1e-7),
        entry({"user": "a"}, producer_byte_rate=1e19),
        entry({"ip": "10.0.0.1"}, connection_creation_rate=2.0**31),
        entry({"user": "a"}, request_percentage=float("nan")),
        entry({"user": "a"}, request_percentage=float("inf")),
        entry({"user": "a"}, consumer_byte_rate=5, leader_byte_rate=1),
        {**entry({"user": "a"}), "ops": entry({}, producer_byte_rate=1)["ops"] * 2},
    ],
)
def test_invalid_quota_changes_are_refused_and_others_made(kafka: Kafka, refused: dict[str, Any]) -> None:
    good = entry({"client-id": "good"}, producer_byte_rate=1)
    assert alter(kafka, refused, good) == [INVALID, OK]
    assert described(kafka) == {(("client-id", "good"),): {"producer_byte_rate": 1}}


def test_repeated_entity_is_not_changed(kafka: Kafka) -> None:
    first, second = (entry({"user": "a"}, producer_byte_rate=rate) for rate in (1, 2))
    assert alter(kafka, first, entry({"user": "b"}, producer_byte_rate=3), second) == [INVALID, OK, INVALID]
    assert described(kafka) == {(("user", "b"),): {"producer_byte_rate": 3}}


def test_an_address_has_one_spelling(kafka: Kafka) -> None:
    long, short = "2001:0db8:0000:0000:0000:0000:0000:0001", "2001:db8::1"
    both = [entry({"ip": name}, connection_creation_rate=1) for name in (long, short)]
    assert alter(kafka, *both) == [INVALID, INVALID]
    assert alter(kafka, both[0]) == [OK]
    assert list(described(kafka)) == [(("ip", short),)]
    assert kafka.inside.quotas.connection_rate(short) == 1


def test_validating_changes_nothing(kafka: Kafka) -> None:
    good, bad = entry({"user": "a"}, producer_byte_rate=1), entry({"user": "b"}, producer_byte_rate=0)
    assert alter(kafka, good, bad, validate_only=True) == [OK, INVALID]
    assert described(kafka) == {}


def test_unstorable_quota_change_is_not_applied(kafka: Kafka) -> None:
    assert alter(kafka, entry({"user": "a"}, producer_byte_rate=1)) == [OK]
    with mock.patch.object(kafka.inside.catalogue, "alter_quotas", side_effect=StorageError("the disk is full")):
        failing = entry({"user": "a"}, producer_byte_rate=2), entry({"user": "b"}, producer_byte_rate=0)
        assert alter(kafka, *failing) == [ErrorCode.kafka_storage_error, INVALID]
    assert described(kafka) == {(("user", "a"),): {"producer_byte_rate": 1}}
