"""DescribeClientQuotas: none, to questions that Kafka would answer."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.kafka.handlers.describe_client_quotas import API
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions

EXACT, DEFAULT, SPECIFIED = 0, 1, 2


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


def ask(kafka: Kafka, *components: tuple[str, int, str | None], version: int = API.max_version) -> Any:
    fields = [dict(zip(("entity_type", "match_type", "match"), one, strict=True)) for one in components]
    return kafka.ask(API.key, version, components=fields, strict=False)


@pytest.mark.parametrize("version", versions(API))
def test_nobody_has_a_quota(kafka: Kafka, version: int) -> None:
    for components in (
        [],
        [("user", EXACT, "alice")],
        [("user", SPECIFIED, None), ("client-id", DEFAULT, None)],
        [("ip", EXACT, "127.0.0.1")],
    ):
        answer = ask(kafka, *components, version=version)
        assert (answer.error_code, answer.error_message, answer.entries) == (ErrorCode.none, None, ())


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", DEFAULT, None)], ErrorCode.invalid_request),
        ([("user", DEFAULT, None), ("user", EXACT, "a")], ErrorCode.invalid_request),
        ([("user", 3, None)], ErrorCode.invalid_request),
        ([("user", EXACT, None)], ErrorCode.invalid_request),
        ([("user", SPECIFIED, "a")], ErrorCode.invalid_request),
        ([("user", DEFAULT, None), ("ip", DEFAULT, None)], ErrorCode.invalid_request),
        ([("planet", DEFAULT, None)], ErrorCode.unsupported_version),
    ],
)
def test_what_kafka_does_not_look_for_is_refused(kafka: Kafka, components: Any, code: ErrorCode) -> None:
    answer = ask(kafka, *components)
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message
