"""FindCoordinator: it is always this node."""

import pytest

from broker.kafka.handlers.find_coordinator import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions


@pytest.mark.parametrize("version", versions(API))
def test_this_node_coordinates_every_group(kafka: Kafka, version: int) -> None:
    answer = kafka.ask(ApiKey.FIND_COORDINATOR, version, key="g", key_type=0, coordinator_keys=["g", "h"])
    coordinators = answer.coordinators if version >= 4 else [answer]
    assert [(one.error_code, one.node_id, one.host, one.port) for one in coordinators] == [
        (ErrorCode.none, 1, *kafka.address)
    ] * len(coordinators)
    if version >= 4:
        assert [one.key for one in coordinators] == ["g", "h"]


@pytest.mark.parametrize("version", range(1, API.max_version + 1))
def test_this_node_coordinates_transactions(kafka: Kafka, version: int) -> None:
    answer = kafka.ask(ApiKey.FIND_COORDINATOR, version, key="t", key_type=1, coordinator_keys=["t"])
    coordinator = answer.coordinators[0] if version >= 4 else answer
    assert (coordinator.error_code, coordinator.node_id, coordinator.port) == (ErrorCode.none, 1, kafka.address[1])


@pytest.mark.parametrize("kind", [2, 7])
@pytest.mark.parametrize("version", range(1, API.max_version + 1))
def test_what_nobody_coordinates_is_refused(kafka: Kafka, version: int, kind: int) -> None:
    answer = kafka.ask(ApiKey.FIND_COORDINATOR, version, key="x", key_type=kind, coordinator_keys=["x"])
    coordinator = answer.coordinators[0] if version >= 4 else answer
    assert (coordinator.error_code, coordinator.node_id, coordinator.port) == (ErrorCode.invalid_request, -1, -1)
    assert str(kind) in coordinator.error_message
