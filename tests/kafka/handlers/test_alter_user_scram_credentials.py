"""AlterUserScramCredentials and DescribeUserScramCredentials: Kafka's rules, and users who log in with what was stored."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from broker.errors import StorageError, UnknownOutcome
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.sasl.scram import salted_password
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.sasl_client import SaslBroker

SHA_256, SHA_512 = 1, 2


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


def put(user: str, mechanism: int = SHA_256, iterations: int = 4096, **changes: Any) -> dict[str, Any]:
    size = 64 if mechanism == SHA_512 else 32
    fields = {"salt": b"salt-of-some-length", "salted_password": bytes(size)}
    return {"name": user, "mechanism": mechanism, "iterations": iterations} | fields | changes


def delete(user: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": user, "mechanism": mechanism}


def alter(
    kafka: Kafka, *upsertions: dict[str, Any], deletions: tuple[dict[str, Any], ...] = ()
) -> dict[str, ErrorCode]:
    answer = kafka.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=deletions, upsertions=upsertions)
    names = [result.user for result in answer.results]
    assert len(set(names)) == len(names)
    return {result.user: result.error_code for result in answer.results}


def describe(kafka: Kafka, *users: str) -> dict[str, Any]:
    """Iterations by mechanism of each user, or the error."""
    asked = [{"name": user} for user in users] or None
    answer = kafka.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=asked)
    assert ErrorCode.none == answer.error_code
    return {
        result.user: result.error_code or {info.mechanism: info.iterations for info in result.credential_infos}
        for result in answer.results
    }


def test_credential_is_described_until_it_is_deleted(kafka: Kafka) -> None:
    assert {} == describe(kafka)
    assert {"a": 0, "b": 0} == alter(kafka, put("a"), put("b", SHA_512, 16384))
    assert {"a": 0} == alter(kafka, put("a", SHA_512, 5000))
    assert {"a": {SHA_256: 4096, SHA_512: 5000}, "b": {SHA_512: 16384}} == describe(kafka)
    assert {"b": {SHA_512: 16384}} == describe(kafka, "b")
    assert {"a": 0} == alter(kafka, put("a", iterations=8192))
    assert {"a": 0} == alter(kafka, deletions=(delete("a", SHA_512),))
    assert {"a": {SHA_256: 8192}} == describe(kafka, "a")
    assert {"a": 0, "c": 0} == alter(kafka, put("c"), deletions=(delete("a"),))
    assert ["b", "c"] == list(describe(kafka))


@pytest.mark.parametrize(
    ("upsertion", "error"),
    [
        (put(""), ErrorCode.unacceptable_credential),
        (put("u" * 1001), ErrorCode.unacceptable_credential),
        (put("u", iterations=4095), ErrorCode.unacceptable_credential),
        (put("u", iterations=16385), ErrorCode.unacceptable_credential),
        (put("u", iterations=2**31 - 1), ErrorCode.unacceptable_credential),
        (put("u", iterations=-1), ErrorCode.unacceptable_credential),
        (put("u", salt=b""), ErrorCode.unacceptable_credential),
        (put("u", salt=bytes(1025)), ErrorCode.unacceptable_credential),
        (put("u", salted_password=b""), ErrorCode.unacceptable_credential),
        (put("u", salted_password=bytes(100_000)), ErrorCode.unacceptable_credential),
        (put("u", mechanism=0), ErrorCode.unsupported_sasl_mechanism),
        (put("u", mechanism=3), ErrorCode.unsupported_sasl_mechanism),
        (put("u", mechanism=-1), ErrorCode.unsupported_sasl_mechanism),
    ],
)
def test_invalid_credential_changes_are_refused_and_others_made(
    kafka: Kafka, upsertion: dict[str, Any], error: ErrorCode
) -> None:
    assert {upsertion["name"]: error, "other": 0} == alter(kafka, upsertion, put("other"))
    assert ["other"] == list(describe(kafka))


def test_only_what_is_there_can_be_deleted(kafka: Kafka) -> None:
    alter(kafka, put("a"))
    assert {"b": ErrorCode.resource_not_found} == alter(kafka, deletions=(delete("b"),))
    assert {"a": ErrorCode.resource_not_found} == alter(kafka, deletions=(delete("a", SHA_512),))
    assert {"": ErrorCode.unacceptable_credential} == alter(kafka, deletions=(delete(""),))
    assert {"a": ErrorCode.unsupported_sasl_mechanism} == alter(kafka, deletions=(delete("a", 9),))
    assert {"a": {SHA_256: 4096}} == describe(kafka)


def test_repeated_user_is_left_alone(kafka: Kafka) -> None:
    alter(kafka, put("a"), put("b"))
    twice = ErrorCode.duplicate_resource
    assert {"a": twice, "b": 0} == alter(kafka, put("a", SHA_512), put("b", iterations=5000), deletions=(delete("a"),))
    assert {"a": twice} == alter(kafka, put("a"), put("a", SHA_512), put("a"))
    assert {"a": twice} == alter(kafka, deletions=(delete("a"), delete("a")))
    assert {"a": {SHA_256: 4096}, "b": {SHA_256: 5000}} == describe(kafka)


def test_unknown_or_repeated_user_is_not_described(kafka: Kafka) -> None:
    alter(kafka, put("a"))
    described = {"a": ErrorCode.duplicate_resource, "b": ErrorCode.resource_not_found, "": ErrorCode.resource_not_found}
    assert described == describe(kafka, "a", "a", "b", "")


def test_a_disk_that_fails_is_everybody_s_error(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(kafka.inside.credentials, "alter", fail)
    error = ErrorCode.kafka_storage_error
    assert {"a": error, "": ErrorCode.unacceptable_credential} == alter(kafka, put("a"), put(""))
    assert {} == describe(kafka)


def test_credential_of_a_failed_write_can_be_deleted(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it could come back with the next start, whatever the operator does."""
    catalogue = kafka.inside.catalogue
    store = catalogue.alter_credentials

    def store_and_fail(*changes: Any) -> None:
        store(*changes)
        raise UnknownOutcome("the disk is gone")

    monkeypatch.setattr(catalogue, "alter_credentials", store_and_fail)
    assert {"eve": ErrorCode.kafka_storage_error} == alter(kafka, put("eve"))
    monkeypatch.undo()
    assert {} == describe(kafka)
    assert 1 == len(list(catalogue.load_credentials()))
    assert {"eve": ErrorCode.none} == alter(kafka, deletions=(delete("eve"),))
    assert [] == list(catalogue.load_credentials())
    assert {"eve": ErrorCode.resource_not_found} == alter(kafka, deletions=(delete("eve"),))


def test_credentials_survive_a_restart_and_let_users_in() -> None:
    with SaslBroker(listeners=("kafka+sasl://127.0.0.1:0", "kafka://127.0.0.1:0?name=inside")) as broker:
        admin = AdminClient({"bootstrap.servers": broker.server.listeners["inside"]})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
        created = UserScramCredentialUpsertion("carol", info, b"her password", b"a salt of some length")
        for future in admin.alter_user_scram_credentials([created]).values():
            future.result(30)
        with broker.connect() as connection:
            assert ErrorCode.none == connection.log_in("SCRAM-SHA-512", "carol", "her password").error_code
        with broker.connect() as connection:
            assert connection.log_in("SCRAM-SHA-256", "carol", "her password").error_code
        described = admin.describe_user_scram_credentials(["carol"])["carol"].result(30)
        assert [8192] == [each.iterations for each in described.scram_credential_infos]
        gone = UserScramCredentialDeletion("carol", ScramMechanism.SCRAM_SHA_512)
        for future in admin.alter_user_scram_credentials([gone]).values():
            future.result(30)
        with broker.connect() as connection:
            assert connection.log_in("SCRAM-SHA-512", "carol", "her password").error_code


def test_what_is_stored_is_not_the_salted_password(kafka: Kafka) -> None:
    salted = salted_password("SCRAM-SHA-256", "secret", b"some salt", 4096)
    alter(kafka, put("a", salt=b"some salt", salted_password=salted))
    (row,) = kafka.inside.catalogue.load_credentials()
    assert salted not in row
    assert salted.hex() not in repr(row)
