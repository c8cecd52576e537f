"""``/api/v1/cluster``: the nodes of the cluster, where each listens, and how many partitions each has.

Any node answers for all of them, from what it has in memory. A node that is not there now is being started again, and has its
partitions: its ``endpoints`` are empty meanwhile.

``/api/v1/cluster/machines``: of several machines, which nodes each has, from the catalogue. POST and DELETE of a machine's
``drain`` have it give its nodes away, or take its share again: an order in the catalogue, which its supervisor carries out.

Tests: tests/http/api/test_cluster.py,
tests/process/test_nodes_http.py.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import attrs

from broker.cluster.nodes import MachineNodes, Node, owner_of
from broker.config.listener import NODES_LISTENER
from broker.log import get_logger
from broker.metrics import HistogramCell, Registry, names
from broker.metrics.registry import Ranges
from broker.network.service import Peer
from broker.other_nodes import url_of
from broker.part import Surroundings, as_reached, endpoints
from broker.security.acl import Operation, ResourceType
from broker.storage.config import TopicInfo
from broker.storage.log_manager import LogManager
from broker.web.callers import Callers
from broker.web.routes import NO_CONTENT, NOT_FOUND, Answer, Call, HttpError, Route, json_answer

log = get_logger("http")

CONFLICT: Final = 409


class Cluster:
    def __init__(self, surroundings: Surroundings, logs: LogManager) -> None:
        self._cluster_id = surroundings.cluster_id
        self._callers: Callers = surroundings.callers
        self._logs = logs
        self._listeners = surroundings.listeners
        config = surroundings.config
        self._own = Node(config.node_id, endpoints(surroundings), config.broker_rack)
        self._register(surroundings.metrics, surroundings.catalogue.seconds)

    def routes(self) -> list[Route]:
        machines = "/api/v1/cluster/machines"
        return [
            Route("GET", "/api/v1/cluster", self.describe),
            Route("GET", machines, self.list_machines),
            Route("POST", f"{machines}/{{machine}}/drain", self.drain),
            Route("DELETE", f"{machines}/{{machine}}/drain", self.end_drain),
        ]

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

    def list_machines(self, call: Call) -> Answer:
        """``addresses``: of all nodes, by the listener by which the client has come: the one that it has asked may move."""
        self._callers.require(call, Operation.DESCRIBE, ResourceType.CLUSTER)
        node_ids = self._node_ids()
        urls = (url_of(node, self._listeners, call) for node in self._alive().values())
        return json_answer(
            {
                "machines": [
                    {
                        **attrs.asdict(each),
                        "nodes": [node_ids[place] for place in each.nodes],
                        "serving": [node_ids[place] for place in each.serving],
                    }
                    for each in self._machines()
                ],
                "nodes": len(node_ids),
                "addresses": [url for url in urls if url is not None],
            }
        )

    def drain(self, call: Call) -> Answer:
        self._callers.require(call, Operation.ALTER, ResourceType.CLUSTER)
        name = call.names["machine"]
        machines = {each.machine: each for each in self._machines()}
        if name in machines and not any(
            each.weight and not each.drained for other, each in machines.items() if other != name
        ):
            raise HttpError(CONFLICT, "No other machine takes nodes: start one, or end the drain of one.")
        return self._set_drained(call, True)

    def end_drain(self, call: Call) -> Answer:
        self._callers.require(call, Operation.ALTER, ResourceType.CLUSTER)
        return self._set_drained(call, False)

    def _set_drained(self, call: Call, drained: bool) -> Answer:
        name = call.names["machine"]
        nodes = self._logs.nodes
        if nodes is None or nodes.machines is None or not nodes.machines.drain(name, drained=drained):
            raise HttpError(NOT_FOUND, f"There is no machine {name[:100]!r}.")
        log.warning(
            "machine_drained", machine=name, drained=drained, principal=str(call.principal), peer=call.peer.host
        )
        return NO_CONTENT

    def _machines(self) -> list[MachineNodes]:
        nodes = self._logs.nodes
        return [] if nodes is None or nodes.machines is None else nodes.machines.machines()

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
