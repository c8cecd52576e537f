"""What Kafka's handlers share: the logs, the catalogue, the groups, the clock, the identity of this broker, and a cache of
answers to Metadata requests.

Processors and handlers use it. The cache keeps answers until a topic changes, because clients of one kind send the same request
again and again. Each of its methods is one step on a dict and one under a lock, so a processor may call it.
"""

from functools import partial

import attrs

from broker.cluster.nodes import Node, Nodes, PartitionLeader
from broker.config import BrokerConfig
from broker.config.listener import NODES_LISTENER
from broker.faults.faults import Faults
from broker.kafka.ack_deadlines import AckDeadlines
from broker.kafka.client_telemetry import ClientTelemetry
from broker.kafka.features import Features
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.logins import Logins
from broker.kafka.metering import AnsweredErrors, Metering
from broker.kafka.share.share_service import ShareService
from broker.kafka.topic_maker import TopicMaker
from broker.kafka.transactions.coordinator import TransactionCoordinator
from broker.live_config import LiveConfig
from broker.log import FaultLog, get_logger
from broker.metadata.catalogue import Catalogue
from broker.metrics.tracing import Traces
from broker.network.quota import Throttling
from broker.network.service import Peer
from broker.network.work import WATCHES_MAX
from broker.part import as_reached
from broker.runtime.clock import Clock
from broker.runtime.entropy import Entropy
from broker.runtime.limits import Allowance
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.security.acl import Authorizer
from broker.security.client_quotas import ClientQuotas
from broker.security.credentials import Credentials
from broker.security.security import ClientSoftware
from broker.storage.backup.backups import Backups
from broker.storage.log_manager import LogManager
from broker.storage.upkeep.flusher import Flusher
from protocol.kafka.errors import ErrorCode
from protocol.wire import BytesLike

# (API version, address that the client is told, the body of the request, the topics that the client must not see)
Key = tuple[int, tuple[str, int], bytes, frozenset[str]]

# Enough for the kinds of clients that are connected at a time.
ENTRIES_MAX = 64
# The size of all keys and answers. An answer about 10,000 partitions has some 400 kB.
BYTES_MAX = 16 * 1024 * 1024
# The size of a set's element besides its characters.
_ELEMENT_BYTES = 120


class MetadataCache:
    def __init__(self) -> None:
        self._answers: dict[Key, tuple[int, BytesLike]] = {}
        self._lock = Lock()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Key, generation: int) -> BytesLike | None:
        """The answer, if it was made when the topics were of this generation."""
        kept = self._answers.get(key)
        return kept[1] if kept is not None and kept[0] == generation else None

    def put(self, key: Key, generation: int, frame: BytesLike) -> None:
        """Keep an answer, unless it would leave no room for others."""
        size = _size(key) + len(frame)
        if size > BYTES_MAX // 4:
            return
        with self._lock:
            replaced = self._answers.pop(key, None)
            if replaced is not None:
                self.size_bytes -= _size(key) + len(replaced[1])
            if len(self._answers) >= ENTRIES_MAX or self.size_bytes + size > BYTES_MAX:
                self._answers.clear()
                self.size_bytes = 0
            self._answers[key] = (generation, frame)
            self.size_bytes += size


def _size(key: Key) -> int:
    hidden = key[3]
    return len(key[2]) + (sum(map(len, hidden)) + _ELEMENT_BYTES * len(hidden) if hidden else 0)


log = get_logger("kafka")


@attrs.define(eq=False)
class KafkaContext:
    """One for all handlers, made by the assembly. Any thread may use it: each of the objects in it guards itself."""

    config: BrokerConfig  # as at the start; `live.in_force` has the settings that can be changed
    live: LiveConfig
    logs: LogManager
    flusher: Flusher
    catalogue: Catalogue
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share: ShareService  # the records of share groups
    clock: Clock
    timer: Timer
    entropy: Entropy
    cluster_id: str
    nodes: Nodes | None  # None: this one is the whole cluster
    topic_maker: TopicMaker
    backups: Backups
    traces: Traces | None  # None: no request is traced
    api_ranges: dict[int, tuple[int, int]]  # as ApiVersions tells them: the versions of each API by its key
    features: Features
    telemetry: ClientTelemetry  # the metrics that clients push
    credentials: Credentials
    logins: Logins
    client_software: ClientSoftware
    quotas: ClientQuotas
    throttling: Throttling
    authorizer: Authorizer | None = None  # None: every client may do everything
    metering: Metering | None = None  # None: no client has a quota
    faults: Faults | None = None  # None: there is no fault, and requests are handled as always
    # The addresses that clients are told to connect to, by the listener's name.
    endpoints: dict[str, tuple[str, int]] = attrs.Factory(dict)
    # The bound ports, by the listener's name.
    ports: dict[str, int] = attrs.Factory(dict)
    # Clock.monotonic() s until which appends go to the handler pool, because one was slow.
    appends_slow_until: float = 0.0
    # The same, because one has not returned: then only a few handlers may try.
    appends_stuck_until: float = 0.0
    # The broker is about to stop: no request may begin to wait any more.
    stopping: bool = False
    metadata_cache: MetadataCache = attrs.Factory(MetadataCache)
    errors: AnsweredErrors = attrs.Factory(AnsweredErrors)
    ack_deadlines: AckDeadlines = attrs.field(init=False)
    # How many logs parked fetches may watch.
    watches: Allowance = attrs.Factory(partial(Allowance, WATCHES_MAX))
    _faults: FaultLog = attrs.field(factory=partial(FaultLog, log), init=False)

    def __attrs_post_init__(self) -> None:
        self.ack_deadlines = AckDeadlines(self.clock, self.timer)

    @property
    def node_id(self) -> int:
        return self.config.node_id

    def advertised(self, peer: Peer) -> tuple[str, int]:
        """The address that this client is told to connect to: that of its listener."""
        return as_reached(self.endpoints.get(peer.listener, peer.local), peer)

    def brokers(self, peer: Peer) -> list[Node]:
        """The nodes of the cluster that are there, with this client's listener as their only endpoint."""
        own = Node(self.node_id, {peer.listener: self.advertised(peer)}, self.config.broker_rack)
        if self.nodes is None:
            return [own]
        living = {**self.nodes.living, self.nodes.place: own}
        return [
            Node(node.node_id, {peer.listener: as_reached(node.endpoints[peer.listener], peer)}, node.rack)
            for node in sorted(living.values(), key=lambda node: node.node_id)
            if peer.listener in node.endpoints
        ]

    @property
    def living_ids(self) -> set[int]:
        """Of the nodes that are there, this one included."""
        return (
            {self.node_id}
            if self.nodes is None
            else {self.node_id, *(each.node_id for each in self.nodes.living.values())}
        )

    @property
    def controller_id(self) -> int:
        """Any node changes topics; but all have to name the same one."""
        return min(self.living_ids)

    def leader_of(self, topic: str, partition: int) -> PartitionLeader:
        """It is there if its node can be asked now, as far as this one knows."""
        nodes, epoch = self.nodes, self.logs.leader_epoch
        if nodes is None or (place := nodes.place_of_owner(topic, partition)) == nodes.place:
            return PartitionLeader(self.node_id, epoch)
        node = nodes.living.get(place)
        last = nodes.known(place) if node is None else node
        # Epochs of leaders differ as those of their nodes do: each take-over raises both.
        return PartitionLeader(last.node_id, epoch - nodes.epoch + last.epoch, node is not None)

    def exists(self, topic: str, partition: int) -> bool:
        """Whether any node has this partition."""
        if self.logs.get(topic, partition) is not None:
            return True
        return self.why_absent(topic, partition) == ErrorCode.not_leader_or_follower

    def is_node(self, peer: Peer) -> bool:
        """Whether another node of the cluster asks. Nobody but nodes can log in at their listener."""
        return self.nodes is not None and peer.listener == NODES_LISTENER

    def coordinator(self, key: str, peer: Peer) -> Node | None:
        """Of a group or a transactional id. None: it is not there now."""
        if self.nodes is None or self.nodes.coordinates(key):
            return Node(self.node_id, {peer.listener: self.advertised(peer)})
        node = self.nodes.coordinator_of(key)
        return node if node is not None and peer.listener in node.endpoints else None

    def why_absent(self, topic: str | bytes, partition: int) -> ErrorCode:
        """Why this node has no such partition: ``topic`` is a name, or an id of 16 bytes."""
        is_id = isinstance(topic, bytes)
        info = self.logs.topics_by_id.get(topic) if isinstance(topic, bytes) else self.logs.topic(topic)
        if info is None:
            return ErrorCode.unknown_topic_id if is_id else ErrorCode.unknown_topic_or_partition
        if self.nodes is not None and 0 <= partition < info.partitions:
            return ErrorCode.not_leader_or_follower
        return ErrorCode.unknown_topic_or_partition

    def complain(self, event: str, topic: str, partition: int, error: Exception) -> None:
        """Log that the machine failed a request, unless the same was logged a short time ago. Any thread."""
        self._faults.report(event, topic, partition, error, self.clock.monotonic())
