"""AlterReplicaLogDirs: everything is in the one directory there is."""

import pytest

from broker.kafka.handlers.alter_replica_log_dirs import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions


@pytest.mark.parametrize("version", versions(API))
def test_replica_may_be_moved_to_its_own_directory(version: int) -> None:
    with Kafka() as kafka:
        topic, failed = kafka.topic(partitions=2), kafka.topic()
        kafka.take_offline(failed)
        (directory,) = kafka.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None).results
        dirs = [
            {
                "path": directory.log_dir,
                "topics": [{"name": topic, "partitions": [0, 7]}, {"name": failed, "partitions": [0]}],
            },
            {"path": "/elsewhere", "topics": [{"name": topic, "partitions": [1]}]},
        ]
        answer = kafka.ask(API.key, version, dirs=dirs)
        assert {
            (result.topic_name, partition.partition_index): partition.error_code
            for result in answer.results
            for partition in result.partitions
        } == {
            (topic, 0): ErrorCode.none,
            (topic, 7): ErrorCode.replica_not_available,
            (failed, 0): ErrorCode.kafka_storage_error,
            (topic, 1): ErrorCode.log_dir_not_found,
        }
        assert [result.topic_name for result in answer.results] == [topic, failed]
