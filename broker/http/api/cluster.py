"""``/api/v1/cluster``: the nodes of the cluster, where each listens, and how many partitions each has.

Any node answers for all of them, from what it has in memory. A node that is not there now is being started again, and has its
partitions: its ``endpoints`` are empty meanwhile.

Tests: tests/http/api/test_cluster.py,
tests/process/test_nodes_http.py.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from broker.cluster.nodes import Node, owner_of
from broker.config.listener import NODES_LISTENER
from broker.metrics import HistogramCell, Registry, names
from broker.metrics.registry import Ranges
from broker.network.service import Peer
from broker.part import Surroundings, as_reached, endpoints
from broker.security.acl import Operation, ResourceType
from broker.storage.config import TopicInfo
from broker.storage.log_manager import LogManager
from broker.web.callers import Callers
from broker.web.routes import Answer, Call, Route, json_answer


class Cluster:
    def __init__(self, surroundings: Surroundings, logs: LogManager) -> None:
        self._cluster_id = surroundings.cluster_id
        self._callers: Callers = surroundings.callers
        self._logs = logs
        config = surroundings.config
        self._own = Node(config.node_id, endpoints(surroundings), config.broker_rack)
        self._register(surroundings.metrics, surroundings.catalogue.seconds)

    def routes(self) -> list[Route]:
        return [Route("GET", "/api/v1/cluster", self.describe)]

    def describe(self, call: Call) -> Answer:
        self._callers.require(call, Operation.DESCRIBE, ResourceType.CLUSTER)
        alive = self._alive()
        node_ids = self._node_ids()
        partitions = [0] * len(node_ids)
        for count in (counted(info, len(node_ids)) for info in call.work.each(self._logs.topics())):
            for place, number in count.items():
                partitions[place] += number
        return json_answer(
            {
                "cluster_id": self._cluster_id,
                "node_id": self._own.node_id,
                "nodes": [
                    {**_shown(node_id, alive.get(node_id), call.peer), "partitions": partitions[place]}
                    for place, node_id in enumerate(node_ids)
                ],
            }
        )

    def _node_ids(self) -> list[int]:
        nodes = self._logs.nodes
        return [self._own.node_id] if nodes is None else nodes.node_ids

    def _alive(self) -> Mapping[int, Node]:
        nodes = self._logs.nodes
        living = () if nodes is None else nodes.living.values()
        return {node.node_id: node for node in (self._own, *living)}

    def _register(self, registry: Registry, catalogue_seconds: HistogramCell | None) -> None:
        def read() -> Mapping[tuple[str, ...], float]:
            alive = len(self._alive())
            return {("alive",): alive, ("away",): len(self._node_ids()) - alive}

        registry.gauge(names.CLUSTER_NODES, read)
        nodes = self._logs.nodes
        settle_seconds = None if nodes is None else nodes.settle_seconds
        registry.read_histogram(names.CLUSTER_SETTLE_SECONDS, partial(_ranges, settle_seconds))
        registry.read_histogram(names.CATALOGUE_SECONDS, partial(_ranges, catalogue_seconds))


def _ranges(cell: HistogramCell | None) -> Mapping[tuple[str, ...], Ranges]:
    return {} if cell is None else {(): (list(cell.counts), cell.sum)}


def counted(info: TopicInfo, nodes: int) -> dict[int, int]:
    """How many of the topic's partitions each of so many nodes has, by place."""
    whole, rest = divmod(info.partitions, nodes)
    first = owner_of(info.name, 0, nodes)
    return {(first + each) % nodes: whole + (each < rest) for each in range(min(nodes, info.partitions))}


def _shown(node_id: int, node: Node | None, peer: Peer) -> dict[str, Any]:
    return {
        "node_id": node_id,
        "alive": node is not None,
        "rack": None if node is None else node.rack,
        "machine": None if node is None else node.machine,
        "epoch": 0 if node is None else node.epoch,
        "endpoints": {} if node is None else {name: _address(*as_reached(at, peer)) for name, at in _sorted(node)},
    }


def _sorted(node: Node) -> Iterable[tuple[str, tuple[str, int]]]:
    """Where clients may connect: not where nodes ask each other."""
    return sorted((name, address) for name, address in node.endpoints.items() if name != NODES_LISTENER)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
