"""ListPartitionReassignments: nothing ever moves."""

from broker.kafka.handlers.list_partition_reassignments import API
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka


def test_no_partition_is_on_the_move() -> None:
    with Kafka() as kafka:
        topic = kafka.topic()
        for topics in (None, [], [{"name": topic, "partition_indexes": [0]}]):
            response = kafka.ask(API.key, API.max_version, timeout=1000, topics=topics)
            assert (ErrorCode.none, None, ()) == (response.error_code, response.error_message, response.topics)
