"""ElectLeaders: there is nothing to elect."""

import pytest

from broker.kafka.handlers.elect_leaders import API
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, get, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


@all_versions
@pytest.mark.parametrize("election_type", [0, 1])
def test_single_broker_needs_no_election(kafka: Kafka, version: int, election_type: int) -> None:
    topic, offline = kafka.topic(), kafka.topic()
    kafka.take_offline(offline)
    wanted = [{"topic": name, "partitions": [0]} for name in (topic, offline, "nowhere")]
    response = kafka.ask(API.key, version, election_type=election_type, topic_partitions=wanted, timeout=1000)
    assert get(response, "error_code", ErrorCode.none) == ErrorCode.none
    assert {
        topic: ErrorCode.election_not_needed,
        offline: ErrorCode.eligible_leaders_not_available,
        "nowhere": ErrorCode.unknown_topic_or_partition,
    } == {result.topic: result.partition_result[0].error_code for result in response.replica_election_results}


@all_versions
def test_an_election_of_all_changes_none(kafka: Kafka, version: int) -> None:
    kafka.topic()
    response = kafka.ask(API.key, version, election_type=0, topic_partitions=None, timeout=1000)
    assert response.replica_election_results == ()


def test_an_unknown_kind_of_election_is_refused(kafka: Kafka) -> None:
    response = kafka.ask(API.key, 2, election_type=9, topic_partitions=None, timeout=1000)
    assert response.error_code == ErrorCode.invalid_request
