"""Several nodes on one machine, as `broker serve --nodes` starts them: to ask each of them, and to find and kill its process."""

import json
import os
import select
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

from protocol.kafka.api_keys import ApiKey
from tests.kafka_connection import KafkaConnection
from tests.process.broker_process import PATIENCE_S, BrokerProcess, states
from tests.waiting import wait_for

COUNT = 3
IDS = (1, 2, 3)
NOT_LEADER, NOT_COORDINATOR = 6, 16


class Nodes(BrokerProcess):
    """``process`` is the one that starts the others; ``address`` is Kafka's, of node 1. ``schemes``: what else they serve."""

    def __init__(
        self,
        directory: Path,
        *settings: str,
        count: int = COUNT,
        schemes: Sequence[str] = (),
        more_listeners: Sequence[str] = (),
    ) -> None:
        listeners = [f"{scheme}://127.0.0.1:0" for scheme in schemes]
        super().__init__(directory, *settings, more_listeners=[*listeners, *more_listeners])
        self.resize(count)

    def resize(self, count: int) -> None:
        """So many from the next start on."""
        self.count = count
        self.options = ("--nodes", str(count))
        self.processes = 1 + count

    def wait_until_ready(self) -> Self:
        super().wait_until_ready()
        self._addresses: dict[int, str] = {}
        # After another start the first one is where clients know it. The others take any port that is free by then.
        port = int(self.address.rpartition(":")[2])
        self.listener += f"-{min(port + 100, 65535)}"
        return self

    def nodes(self) -> dict[int, str]:
        """Kafka's address of each node by its id. It stays the same until all of them are stopped."""
        wait_for(lambda: self._addresses or self._find(), "not all nodes are there")
        return self._addresses

    def _find(self) -> bool:
        with KafkaConnection(self.address) as connection:
            brokers = connection.ask(ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1).brokers
        if len(brokers) < self.count:
            return False
        self._addresses = {broker.broker_id: f"{broker.host}:{broker.port}" for broker in brokers}
        return True

    def ask(self, node_id: int, key: ApiKey, version: int, /, **fields: Any) -> Any:
        """The answer to a request of Kafka. OSError if the node is away."""
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
        """The node that has the group, as soon as there is one."""
        told: Any = None

        def is_found() -> bool:
            nonlocal told
            [told] = self.ask(1, ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group]).coordinators
            return not told.error_code

        wait_for(is_found, f"nobody has {group}")
        return int(told.node_id)

    def endpoints(self, listener: str) -> dict[int, str]:
        """By node id, where the nodes that are there have this listener, as node 1 says over HTTP."""
        nodes = self.call("GET", "/api/v1/cluster")[1]["nodes"]
        return {node["node_id"]: node["endpoints"][listener] for node in nodes if node["alive"]}

    def call(
        self, method: str, path: str, body: Any = None, at: str | None = None, follow: bool = True
    ) -> tuple[int, Any]:
        """Over HTTP: status and JSON of the answer, of a redirect its address. ``at``: another node's address than node 1's."""
        connection = HTTPConnection(at or self.addresses["http"], timeout=PATIENCE_S)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"content-type": "application/json"})
            reply = connection.getresponse()
            answer = reply.read()
        finally:
            connection.close()
        if reply.status == 307:
            location = reply.headers["location"]
            host, slash, target = location.removeprefix("http://").partition("/")
            return self.call(method, slash + target, body, host, follow=False) if follow else (307, location)
        try:
            return reply.status, json.loads(answer) if answer else None
        except ValueError:
            return reply.status, answer.decode()

    def pids(self) -> dict[int, int]:
        """By node id, the process that was started last."""
        return {event["node"]: event["pid"] for event in self.events if event["event"] == "node_started"}

    def kill_node(self, node_id: int) -> None:
        """kill -9; returns when it has been started again and is there for the others."""
        self.crash_node(node_id)
        self.wait_for_all()

    def crash_node(self, node_id: int) -> None:
        """kill -9; returns when the process has ended. Another one takes its place."""
        descriptor = os.pidfd_open(self.pids()[node_id])
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            assert ended.poll(PATIENCE_S * 1000), f"node {node_id} does not end"
        finally:
            os.close(descriptor)

    def wait_for_all(self) -> None:
        """Until each node serves, and says that all are there. Of one that has ended they say so before it is started again."""
        wait_for(self._are_there, "a node does not come back")

    def _are_there(self) -> bool:
        try:
            seen = [self.ask(each, ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1).brokers for each in self.nodes()]
        except OSError:
            return False
        return all(len(brokers) == self.count for brokers in seen)

    @contextmanager
    def standing_still(self, node_id: int) -> Iterator[None]:
        """SIGSTOP inside of the ``with``, where the whole process stands still: the signal alone takes effect a little later."""
        pid = self.pids()[node_id]
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
            wait_for(lambda: states(pid) == {"T"}, f"node {node_id} goes on")
            yield
        finally:
            with suppress(ProcessLookupError):  # others have waited for it, so it was killed
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            os.close(descriptor)
