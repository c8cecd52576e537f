"""``/api/v1/overview``: the broker in one line, and the figures that the history keeps for an hour.

Rates are those of the last sample. The cost of an answer does not depend on the number of topics, connections or
groups: the sampler has read those figures.
"""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import attrs

from broker.config import BrokerConfig, Listener
from broker.config.listener import NODES_LISTENER
from broker.metrics import Registry, names
from broker.network.socket_server import SocketServer
from broker.runtime.clock import Clock
from broker.runtime.threads import Event
from broker.security.acl import Operation, ResourceType
from broker.storage.log_manager import LogManager
from broker.web.callers import Callers
from broker.web.history import Field, Figures
from broker.web.routes import Answer, Call, Route, json_answer

MESSAGES_IN = Field("topic", "messages_in", counter=True)
BYTES_IN = Field("topic", "bytes_in", counter=True)
BYTES_OUT = Field("topic", "bytes_out", counter=True)
# How many partitions the reasons for bad health name.
_NAMED = 3
# A disk on which records were refused counts as full for this long (s), and then while it has less room than this.
_RECENTLY_S = 60.0
_LITTLE_ROOM_BYTES = 64 << 20


@attrs.frozen(eq=False)
class Whole:
    """The parts of the broker that the overview describes."""

    config: BrokerConfig
    cluster_id: str
    listeners: Sequence[Listener]
    sockets: SocketServer
    logs: LogManager
    figures: Figures
    metrics: Registry
    callers: Callers
    clock: Clock
    stopping: Event


class Overview:
    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self._version = version("reactor-broker")
        self._started_ms = whole.clock.time_ms()
        self._add_figures()

    def routes(self) -> list[Route]:
        return [Route("GET", "/api/v1/overview", self.overview)]

    def overview(self, call: Call) -> Answer:
        whole = self._whole
        whole.callers.require(call, Operation.DESCRIBE, ResourceType.CLUSTER)
        return json_answer(self.snapshot())

    def snapshot(self) -> dict[str, Any]:
        whole = self._whole
        values, reasons = whole.figures.values, list(whole.figures.reasons)
        if whole.stopping.is_set():
            reasons.insert(0, "The broker is stopping.")
        connections = whole.sockets.quotas.of_listener()
        return {
            "version": self._version,
            "node_id": whole.config.node_id,
            "cluster_id": whole.cluster_id,
            "started_ms": self._started_ms,
            "now_ms": whole.clock.time_ms(),
            "health": {"status": "degraded" if reasons else "ok", "reasons": reasons},
            "listeners": [
                {
                    "name": listener.name,
                    "scheme": listener.url_scheme,
                    "address": _address(*whole.sockets.address(listener.name)),
                    "connections": connections.get(listener.name, 0),
                }
                for listener in whole.listeners
                if listener.name != NODES_LISTENER  # where nodes ask each other: clients are not told of it
            ],
            "rates": {
                name: round(values.get(name, 0.0), 3)
                for name in ("requests", "errors", "bytes_in", "bytes_out", "messages_in")
            },
            "connections": whole.sockets.quotas.total,
            "topics": len(whole.logs.topics()),
            "partitions": len(whole.logs.partitions),
            **{
                name: int(values.get(name, 0))
                for name in (
                    "offline_partitions",
                    "full_partitions",
                    "groups",
                    "log_bytes",
                    "free_bytes",
                    "transactions_open",
                )
            },
        }

    # -- figures ------------------------------------------------------------------------------------------------------

    def _add_figures(self) -> None:
        whole = self._whole
        figures, sockets, logs = whole.figures, whole.sockets, whole.logs
        stats = _Stats(sockets)
        figures.counters["requests"] = lambda: stats.sum("requests")
        figures.counters["errors"] = lambda: sum(whole.metrics.values(names.REQUEST_ERRORS).values())
        figures.counters["bytes_in"] = lambda: stats.sum("bytes_in")
        figures.counters["bytes_out"] = lambda: stats.sum("bytes_out")
        figures.whole["connections"] = lambda: sockets.quotas.total
        figures.whole["topics"] = lambda: len(logs.topics())
        figures.whole["partitions"] = lambda: len(logs.partitions)
        storage = _Storage(logs, whole.clock)
        figures.counters["messages_in"] = storage.messages
        figures.whole["log_bytes"] = lambda: storage.log_bytes
        figures.whole["free_bytes"] = lambda: storage.free_bytes
        figures.whole["offline_partitions"] = lambda: len(storage.offline)
        figures.whole["full_partitions"] = lambda: len(storage.full)
        figures.sources.append(
            lambda: {MESSAGES_IN: storage.by_topic, BYTES_IN: storage.bytes_in, BYTES_OUT: storage.bytes_out}
        )
        figures.health.append(storage.health)


class _Storage:
    """Figures of all logs, read once a sample on the sampler's thread."""

    def __init__(self, logs: LogManager, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self.by_topic: dict[str, float] = {}  # messages
        self.bytes_in: dict[str, float] = {}
        self.bytes_out: dict[str, float] = {}
        self.log_bytes = 0
        self.free_bytes = 0  # of the file system with the logs
        self.offline: list[str] = []
        self.full: list[str] = []  # their records are refused because the disk has no room

    def messages(self) -> float:
        """The number of offsets given since the topics were created. This starts the reading, because counters are read
        first."""
        by_topic: dict[str, float] = {}
        bytes_in: dict[str, float] = {}
        bytes_out: dict[str, float] = {}
        log_bytes, offline, full = 0, [], []
        try:
            self.free_bytes = self._logs.disk.free_bytes(self._logs.data_dir)
        except OSError:
            self.free_bytes = 0
        # No producer may have tried since, so after a while only the free room counts.
        recently = self._clock.monotonic() - _RECENTLY_S
        for (topic, partition), log in self._logs.partitions.copy().items():
            by_topic[topic] = by_topic.get(topic, 0) + log.log_end_offset
            state = log.state
            bytes_in[topic] = bytes_in.get(topic, 0) + state.appended_bytes
            if state.sent_bytes:
                bytes_out[topic] = bytes_out.get(topic, 0) + sum(state.sent_bytes.copy().values())
            log_bytes += log.size_bytes()
            if log.offline is not None:
                offline.append(f"{topic}-{partition}")
            refused_at = log.refused_for_room_at
            if refused_at is not None and (refused_at > recently or self.free_bytes < _LITTLE_ROOM_BYTES):
                full.append(f"{topic}-{partition}")
        self.bytes_in, self.bytes_out = bytes_in, bytes_out
        self.by_topic, self.log_bytes, self.offline, self.full = by_topic, log_bytes, offline, full
        return sum(by_topic.values())

    def health(self) -> list[str]:
        reasons = []
        if self.offline:
            are = "partition is" if len(self.offline) == 1 else "partitions are"
            reasons.append(f"{len(self.offline)} {are} offline: {_named(self.offline)}.")
        if self.full:
            reasons.append(
                f"The disk is full ({self.free_bytes} bytes are free): records are refused for {_named(self.full)}."
            )
        return reasons


def _named(partitions: list[str]) -> str:
    return ", ".join(sorted(partitions)[:_NAMED]) + (", ..." if len(partitions) > _NAMED else "")


class _Stats:
    """Sums of the processors' counters. A sum falls when a processor is removed."""

    def __init__(self, sockets: SocketServer) -> None:
        self._sockets = sockets

    def sum(self, name: str) -> int:
        return sum(getattr(processor.stats, name) for processor in self._sockets.processors)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
