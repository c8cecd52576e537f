"""What Kafka's handlers share: the logs, the catalogue, the groups, the clock, and the identity of this broker."""

from functools import partial

import attrs

from broker.config import BrokerConfig
from broker.kafka.ack_deadlines import AckDeadlines
from broker.kafka.answered_errors import AnsweredErrors
from broker.kafka.features import Features
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.logins import Logins
from broker.kafka.metadata_cache import MetadataCache
from broker.kafka.metering import Metering
from broker.kafka.share.share_service import ShareService
from broker.kafka.telemetry.client_telemetry import ClientTelemetry
from broker.kafka.topic_maker import TopicMaker
from broker.kafka.transactions.coordinator import TransactionCoordinator
from broker.live_config import LiveConfig
from broker.log import FaultLog, get_logger
from broker.metadata.catalogue import Catalogue
from broker.network.endpoints import as_reached
from broker.network.service import Peer
from broker.network.throttling import Throttling
from broker.network.traces import Traces
from broker.network.work import WATCHES_MAX, Allowance
from broker.runtime.clock import Clock
from broker.runtime.entropy import Entropy
from broker.runtime.timers import Timer
from broker.security.acl import Authorizer
from broker.security.client_software import ClientSoftware
from broker.security.credentials import Credentials
from broker.security.quotas.client_quotas import ClientQuotas
from broker.storage.backup.backups import Backups
from broker.storage.log_manager import LogManager
from broker.storage.upkeep.flusher import Flusher

log = get_logger("kafka")


@attrs.define(eq=False)
class KafkaContext:
    """One for all handlers, made by the assembly. Any thread may use it: each of the objects in it guards itself."""

    config: BrokerConfig  # as it was at the start; `live.in_force` has the settings that can be changed
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
    topic_maker: TopicMaker
    backups: Backups
    traces: Traces | None  # None: no request is traced
    api_ranges: dict[int, tuple[int, int]]  # what ApiVersions tells: the versions of each API by its key
    features: Features
    telemetry: ClientTelemetry  # the metrics that clients push
    credentials: Credentials
    logins: Logins
    client_software: ClientSoftware
    quotas: ClientQuotas
    throttling: Throttling
    authorizer: Authorizer | None = None  # None: every client may do everything
    metering: Metering | None = None  # None: no client has a quota
    # What clients are told to connect to, by the listener's name.
    endpoints: dict[str, tuple[str, int]] = attrs.Factory(dict)
    # The ports that are bound, by the listener's name.
    ports: dict[str, int] = attrs.Factory(dict)
    # Clock.monotonic() s until which appends go to the handler pool, because one was slow.
    appends_slow_until: float = 0.0
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

    def complain(self, event: str, topic: str, partition: int, error: Exception) -> None:
        """Log that the machine failed a request, unless the same was logged a short time ago. Any thread."""
        self._faults.report(event, topic, partition, error, self.clock.monotonic())
