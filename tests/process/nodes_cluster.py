"""Three nodes on one machine, each with a connection of its own: for tests that ask one node about what another one has done."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from protocol.kafka.api_keys import ApiKey
from tests.kafka_connection import KafkaConnection
from tests.process.broker_process import PATIENCE_S, BrokerProcess

COUNT = 3
NOT_LEADER, NOT_COORDINATOR = 6, 16


class Cluster(BrokerProcess):
    options = ("--nodes", str(COUNT))

    def nodes(self) -> dict[int, str]:
        """The address of each node by its id, when all are there."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with KafkaConnection(self.address) as connection:
                brokers = connection.ask(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1).brokers
            if len(brokers) == COUNT:
                return {broker.broker_id: f"{broker.host}:{broker.port}" for broker in brokers}
            assert time.monotonic() < deadline, brokers
            time.sleep(0.02)

    def ask(self, node_id: int, key: ApiKey, version: int, /, **fields: Any) -> Any:
        with KafkaConnection(self.nodes()[node_id]) as connection:
            return connection.ask(key, version, **fields)

    def make(self, node_id: int, topic: str, partitions: int, **fields: Any) -> Any:
        """The result of the topic."""
        wanted = {
            "name": topic,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        response = self.ask(
            node_id, ApiKey.CREATE_TOPICS, 7, topics=[wanted | fields], timeout=30_000, validate_only=False
        )
        [result] = response.topics
        return result

    def leaders(self, node_id: int, topic: str) -> dict[int, int]:
        """What this node says: the leader of each partition."""
        response = self.ask(
            node_id,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            0,
            topics=[{"name": topic}],
            response_partition_limit=2000,
            cursor=None,
        )
        [described] = response.topics
        return {each.partition_index: each.leader_id for each in described.partitions}

    def coordinator(self, group: str) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            response = self.ask(1, ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group])
            if not response.coordinators[0].error_code:
                return int(response.coordinators[0].node_id)
            assert time.monotonic() < deadline, response
            time.sleep(0.02)

    def kill_node(self, node_id: int) -> None:
        """kill -9; returns when it has been started again and is there."""
        pids = self._pids(node_id)
        os.kill(pids[-1], signal.SIGKILL)
        wait(lambda: len(self._pids(node_id)) > len(pids), f"node {node_id} was not started again")
        # It is away at first: others have seen that before it comes back.
        wait(lambda: self._answers(node_id), f"node {node_id} does not answer")

    def _pids(self, node_id: int) -> list[int]:
        return [event["pid"] for event in self.events if event["event"] == "node_started" and event["node"] == node_id]

    def _answers(self, node_id: int) -> bool:
        try:
            self.ask(node_id, ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1)
        except OSError:
            return False
        return True


def wait(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
