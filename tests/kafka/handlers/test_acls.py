"""DescribeAcls, CreateAcls and DeleteAcls over a socket, in all their versions."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.kafka.handlers import create_acls, delete_acls, describe_acls
from broker.security.acl import Operation, PatternType, Permission, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions

EVERYTHING = {
    "resource_type_filter": ResourceType.ANY,
    "resource_name_filter": None,
    "pattern_type_filter": PatternType.ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": Operation.ANY,
    "permission_type": Permission.ANY,
}
READS = {
    "resource_type": ResourceType.TOPIC,
    "resource_name": "orders-",
    "resource_pattern_type": PatternType.PREFIXED,
    "principal": "User:CN=a,O=ü",
    "host": "*",
    "operation": Operation.READ,
    "permission_type": Permission.ALLOW,
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Kafka]:
    with Kafka(authorizer_class_name="acl", super_users="User:ANONYMOUS") as kafka:
        yield kafka


@pytest.fixture
def kafka(shared: Kafka) -> Iterator[Kafka]:
    yield shared
    delete(shared, EVERYTHING)


def create(kafka: Kafka, *acls: dict[str, Any], version: int = 3) -> list[int]:
    return [result.error_code for result in kafka.ask(ApiKey.CREATE_ACLS, version, creations=acls).results]


def describe(kafka: Kafka, version: int = 3, **fields: Any) -> Any:
    return kafka.ask(ApiKey.DESCRIBE_ACLS, version, **{**EVERYTHING, **fields})


def delete(kafka: Kafka, *filters: dict[str, Any], version: int = 3) -> Any:
    return kafka.ask(ApiKey.DELETE_ACLS, version, filters=filters).filter_results


@pytest.mark.parametrize("version", versions(create_acls.API))
def test_an_acl_is_created_described_and_deleted(kafka: Kafka, version: int) -> None:
    assert [0] == create(kafka, READS, version=version)
    (resource,) = describe(kafka, version).resources
    assert (2, "orders-", 4) == (resource.resource_type, resource.resource_name, resource.pattern_type)
    (acl,) = resource.acls
    assert ("User:CN=a,O=ü", "*", 3, 3) == (acl.principal, acl.host, acl.operation, acl.permission_type)
    (result,) = delete(kafka, {**EVERYTHING, "principal_filter": "User:CN=a,O=ü"}, version=version)
    (match,) = result.matching_acls
    assert (0, 0, "orders-", 4) == (result.error_code, match.error_code, match.resource_name, match.pattern_type)
    assert () == describe(kafka, version).resources


def test_all_versions_are_those_of_kafka_4() -> None:
    assert [range(1, 4)] * 3 == [versions(module.API) for module in (create_acls, describe_acls, delete_acls)]


def test_acls_are_listed_by_resource(kafka: Kafka) -> None:
    writes = {**READS, "operation": Operation.WRITE}
    group = {**READS, "resource_type": ResourceType.GROUP}
    assert [0, 0, 0] == create(kafka, group, writes, READS)
    resources = describe(kafka).resources
    assert [(2, [3, 4]), (3, [3])] == [(one.resource_type, [acl.operation for acl in one.acls]) for one in resources]


def test_match_finds_what_covers_a_resource(kafka: Kafka) -> None:
    literal = {**READS, "resource_name": "orders-eu", "resource_pattern_type": PatternType.LITERAL}
    wildcard = {**literal, "resource_name": "*"}
    other = {**literal, "resource_name": "orders-us"}
    create(kafka, READS, literal, wildcard, other)
    resources = describe(kafka, resource_name_filter="orders-eu", pattern_type_filter=PatternType.MATCH).resources
    assert ["*", "orders-", "orders-eu"] == sorted(one.resource_name for one in resources)


def test_invalid_acls_are_refused_individually(kafka: Kafka) -> None:
    unknown = {**READS, "operation": 99}
    nameless = {**READS, "resource_name": ""}
    cluster = {**READS, "resource_type": ResourceType.CLUSTER}
    refused = ErrorCode.invalid_request
    assert [refused, 0, refused, refused] == create(kafka, unknown, READS, nameless, cluster)


def test_a_filter_with_unknown_values_is_refused(kafka: Kafka) -> None:
    assert ErrorCode.invalid_request == describe(kafka, operation=99).error_code
    first, second = delete(kafka, {**EVERYTHING, "pattern_type_filter": 77}, EVERYTHING)
    assert (ErrorCode.invalid_request, 0) == (first.error_code, second.error_code)


def test_without_an_authorizer_security_is_disabled() -> None:
    with Kafka() as kafka:
        assert [ErrorCode.security_disabled] == create(kafka, READS)
        assert ErrorCode.security_disabled == describe(kafka).error_code
        assert [ErrorCode.security_disabled] * 2 == [one.error_code for one in delete(kafka, EVERYTHING, EVERYTHING)]


def test_only_who_may_alter_the_cluster_changes_acls() -> None:
    with Kafka(authorizer_class_name="acl", super_users="User:root") as kafka:
        denied = ErrorCode.cluster_authorization_failed
        assert [denied, denied] == create(kafka, READS, READS)
        assert denied == describe(kafka).error_code
        assert [denied] == [one.error_code for one in delete(kafka, EVERYTHING)]
        authorizer = kafka.inside.authorizer
        assert [] == list(authorizer.rules)  # type: ignore[union-attr]


def test_acl_change_applies_at_once_and_after_restart(tmp_path: Any) -> None:
    """The connection denies itself the right to change ACLs, and has lost it at once."""
    settings = {"data_dir": str(tmp_path), "authorizer_class_name": "acl", "allow_everyone_if_no_acl_found": True}
    deny = {
        **READS,
        "resource_type": ResourceType.CLUSTER,
        "resource_name": "kafka-cluster",
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:ANONYMOUS",
        "operation": Operation.ALTER,
        "permission_type": Permission.DENY,
    }
    odd = {**READS, "resource_name": "a\0b\n ü 🦆 ' \"; --", "principal": "User:x\0y:*,\r\n", "host": "h'"}
    with Kafka(**settings) as kafka:
        assert [0, 0] == create(kafka, READS, odd)
    with Kafka(**settings) as kafka:
        resources = [(resource.resource_name, resource.acls[0].principal) for resource in describe(kafka).resources]
        assert sorted((one["resource_name"], one["principal"]) for one in (READS, odd)) == sorted(resources)
        (result,) = delete(kafka, {**EVERYTHING, "resource_name_filter": odd["resource_name"]})
        assert 1 == len(result.matching_acls)
    with Kafka(**settings) as kafka:
        assert ["orders-"] == [resource.resource_name for resource in describe(kafka).resources]
        assert [0] == create(kafka, deny)
        assert [ErrorCode.cluster_authorization_failed] == create(kafka, READS)
    with Kafka(**settings) as kafka:
        assert [ErrorCode.cluster_authorization_failed] == create(kafka, READS)


def test_the_number_of_acls_is_bounded() -> None:
    with Kafka(authorizer_class_name="acl", super_users="User:ANONYMOUS", acls_max=1) as kafka:
        other = {**READS, "resource_name": "x"}
        assert [0, ErrorCode.policy_violation] == create(kafka, READS, other)
