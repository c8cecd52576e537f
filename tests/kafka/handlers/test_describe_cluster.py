"""DescribeCluster: one broker, which is its own controller."""

from collections.abc import Iterator

import pytest

from broker.kafka.handlers.describe_cluster import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, get, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka(node_id=5, cluster_id="a-cluster", broker_rack="zone-1") as kafka:
        yield kafka


@all_versions
def test_cluster_is_this_broker_at_the_requested_address(kafka: Kafka, version: int) -> None:
    response = kafka.ask(ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=False)
    assert response.error_code == ErrorCode.none
    assert (response.cluster_id, response.controller_id) == ("a-cluster", 5)
    (broker,) = response.brokers
    assert (broker.broker_id, broker.host, broker.port, broker.rack) == (5, *kafka.address, "zone-1")
    assert not get(broker, "is_fenced")


@all_versions
def test_permissions_are_told_only_when_asked_for(kafka: Kafka, version: int) -> None:
    asked = kafka.ask(ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)
    # alter, describe, create, cluster action, describe configs, alter configs, idempotent write
    assert asked.cluster_authorized_operations == 0b1111110100000
    not_asked = kafka.ask(ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=False)
    assert not_asked.cluster_authorized_operations == -(2**31)


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, ErrorCode.mismatched_endpoint_type), (3, ErrorCode.unsupported_endpoint_type)]
)
def test_controller_endpoint_request_is_refused(kafka: Kafka, endpoint_type: int, code: ErrorCode) -> None:
    response = kafka.ask(
        ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False, endpoint_type=endpoint_type
    )
    assert code == response.error_code
    assert response.error_message
    assert response.brokers == ()
