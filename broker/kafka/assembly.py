"""The Kafka service put together from the broker's settings, for all its listeners.

Tests: tests/server/test_broker_server.py, tests/kafka/test_context.py.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

from broker.cluster.nodes import MECHANISM, ORDERS, Nodes
from broker.config import Listener
from broker.config.listener import NODES_LISTENER
from broker.config.per_listener import for_listener
from broker.kafka import handlers
from broker.kafka.api import Api
from broker.kafka.authorization import visible_topics
from broker.kafka.client_telemetry import ClientTelemetry
from broker.kafka.configs.changes import report_ignored
from broker.kafka.configs.client_metrics import ClientMetricsConfigs
from broker.kafka.context import KafkaContext
from broker.kafka.faulting.changes import KINDS, Changes
from broker.kafka.features import KIND as FEATURES_KIND
from broker.kafka.features import Features
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.groups.group import GroupType
from broker.kafka.handlers.sasl_authenticate import RAW_API
from broker.kafka.logins import LoginFailures, Logins
from broker.kafka.metering import Metering
from broker.kafka.metrics import KafkaMetrics
from broker.kafka.sasl_session import LoginRules, apis_by_state
from broker.kafka.service import KafkaService, NodesService
from broker.kafka.share.other_nodes import OtherNodes
from broker.kafka.share.share_service import ShareService
from broker.kafka.topic_maker import TopicMaker
from broker.kafka.transactions.coordinator import TransactionCoordinator
from broker.network.quota import Throttling
from broker.part import PartThread, ServicePart, Surroundings, endpoints
from broker.runtime.threads import Body
from broker.security.sasl.mechanisms import ScramExchange
from broker.storage.backup.backups import Backups
from broker.storage.log_manager import LogManager
from protocol.kafka.api_keys import ApiKey

if TYPE_CHECKING:
    from broker.kafka.views.routes import KafkaViews


# What nodes ask each other.
_APIS_OF_NODES = (
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.WRITE_TXN_MARKERS,
)


def assemble(surroundings: Surroundings, logs: LogManager) -> ServicePart:
    return KafkaPart(surroundings, logs)


class KafkaPart:
    """The coordinators, and the context that all handlers share."""

    def __init__(self, surroundings: Surroundings, logs: LogManager) -> None:
        config, runtime, timer = surroundings.config, surroundings.runtime, surroundings.timer
        security = self._security = surroundings.security
        groups = GroupCoordinator(runtime.clock, timer, surroundings.catalogue, config, logs.topic, nodes=logs.nodes)
        transactions = TransactionCoordinator(runtime.clock, timer, surroundings.catalogue, config, logs, groups)
        share = groups.share.state = _share_service(surroundings, logs, groups)
        logs.on_topic_deleted += [groups.on_topic_deleted, transactions.on_topic_deleted]
        logs.on_topic_gone.append(lambda info: share.topic_deleted(info.topic_id))
        logs.on_topic_changed.append(groups.topics.changed)
        self.apis = handlers.load()
        self.context = KafkaContext(
            config=config,
            live=surroundings.live,
            logs=logs,
            flusher=logs.flusher,
            catalogue=surroundings.catalogue,
            groups=groups,
            transactions=transactions,
            share=share,
            clock=runtime.clock,
            timer=timer,
            entropy=runtime.entropy,
            cluster_id=surroundings.cluster_id,
            nodes=logs.nodes,
            topic_maker=TopicMaker(logs),
            traces=surroundings.sockets.settings.traces,
            backups=Backups(logs, runtime.clock, timer, runtime.entropy, surroundings.cluster_id),
            api_ranges={},
            features=Features(
                surroundings.catalogue,
                config.feature_max_levels,
                {api.feature[0]: (1, api.feature[1]) for api in self.apis.values() if api.feature is not None},
            ),
            telemetry=ClientTelemetry(
                ClientMetricsConfigs(surroundings.catalogue), runtime.clock, runtime.entropy, config.telemetry_max_bytes
            ),
            credentials=security.credentials,
            logins=Logins(runtime.clock, security.logins, LoginFailures(runtime.clock, timer)),
            client_software=security.client_software,
            authorizer=security.authorizer,
            quotas=security.quotas,
            throttling=Throttling(timer),
            endpoints=endpoints(surroundings),
            ports={name: port for name, (_, port) in surroundings.addresses.items()},
        )
        groups.consumers.visible = partial(visible_topics, self.context)
        self.context.telemetry.configs.on_change.append(self._advertise)
        self._advertise()
        KafkaMetrics(self.context).register(surroundings.metrics)
        self.context.telemetry.register(surroundings.metrics)
        self._views = None if not surroundings.has_http else _views(self.context, surroundings)
        self._quotas = surroundings.security.quotas
        self._faults = surroundings.faults
        configs = (groups.configs.reload, self.context.telemetry.configs.reload)
        surroundings.reloads.setdefault("broker_configs", []).extend(configs)
        if logs.nodes is not None:
            surroundings.reloads[f"documents/{ORDERS}"] = [share.carry_out_orders]
            surroundings.reloads[f"documents/{FEATURES_KIND}"] = [self.context.features.reload]
        self._metering = Metering(self._quotas, self.context.throttling, runtime.clock)

    def _quotas_changed(self) -> None:
        self._metering.configure()
        self.context.metering = self._metering if self._quotas.limits_clients else None

    def _faults_changed(self, is_any: bool) -> None:
        self.context.faults = self._faults if is_any else None

    def _advertise(self) -> None:
        """At the start, and when a subscription to metrics of clients was changed."""
        wanted = bool(self.context.telemetry.configs.names())
        self.context.api_ranges = {
            key: api.advertised
            for key, api in self.apis.items()
            if api.feature is None and (api.condition is None or wanted)
        }

    def open(self) -> None:
        context = self.context
        self._quotas.on_change.append(self._quotas_changed)
        context.throttling.count_in(self._quotas)
        self._quotas_changed()
        self._faults.attach(self._faults_changed, dict.fromkeys(KINDS, Changes(context).trigger))
        report_ignored(context)
        context.features.open()
        context.telemetry.configs.load()
        context.backups.remove_left_over()
        context.groups.topics.load(context.logs.topics())
        context.share.open()  # before groups, which make it begin with partitions that it does not know
        context.groups.open(lambda topic: context.logs.topic(topic) is not None)
        context.transactions.open()

    def threads(self) -> Sequence[PartThread]:
        context = self.context
        return [
            PartThread("catalogue-writer", context.groups.writer, waited_for=True),
            PartThread("group-worker", context.groups.worker),
            PartThread("marker-writer", context.transactions.markers, waited_for=True),
            *(PartThread(f"neighbour-{place}", body) for place, body in self._neighbours()),
            PartThread("topic-maker", context.topic_maker),
            *([] if self._views is None else [PartThread("record-tail", self._views.tail)]),
        ]

    def _neighbours(self) -> Iterable[tuple[int, Body]]:
        neighbours = self.context.transactions.neighbours
        return () if neighbours is None else neighbours.by_place.items()

    def service(self, listener: Listener) -> KafkaService:
        nodes = self.context.nodes
        if nodes is not None and listener.name == NODES_LISTENER:
            # Not in a lane: what clients administer must not hold up decisions.
            apis: dict[int, Api] = {key: attrs.evolve(self.apis[key], lane=None) for key in _APIS_OF_NODES}
            return NodesService(self.context, apis, self._login_rules_of_nodes(nodes, apis))
        return KafkaService(self.context, self.apis, self._login_rules(listener) if listener.sasl else None)

    def _login_rules(self, listener: Listener) -> LoginRules:
        config = for_listener(self.context.config, listener.name)
        return LoginRules(
            listener=listener.name,
            mechanisms=self._security.mechanisms[listener.name],
            apis=apis_by_state(self.apis),
            raw_api=RAW_API,
            max_receive_bytes=config.sasl_server_max_receive_size,
            timeout_s=config.handshake_timeout_ms / 1000,
            max_reauth_ms=config.connections_max_reauth_ms,
            failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
        )

    def _login_rules_of_nodes(self, nodes: Nodes, apis: dict[int, Api]) -> LoginRules:
        from broker.security.shared_secret import SharedSecret

        secret = SharedSecret(MECHANISM, nodes.secret, nodes.is_user, self.context.entropy)
        config = self.context.config
        return LoginRules(
            listener=NODES_LISTENER,
            mechanisms={MECHANISM: partial(ScramExchange, MECHANISM, secret, self.context.entropy)},
            apis=apis_by_state(apis),
            raw_api=RAW_API,
            max_receive_bytes=config.sasl_server_max_receive_size,
            timeout_s=config.handshake_timeout_ms / 1000,
            max_reauth_ms=0,
            failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
        )

    def stopping(self) -> None:
        self.context.stopping = True
        self.context.logins.failures.stopping = True

    def shut_down(self) -> None:
        self.context.transactions.shut_down()
        self.context.groups.shut_down()

    def close(self) -> None:
        self._faults.detach(self._faults_changed)
        self.context.transactions.shut_down()
        self.context.share.flush()
        self.context.groups.close()


def _views(context: KafkaContext, surroundings: Surroundings) -> "KafkaViews":
    """The views of the HTTP API. Imported only if there is a listener for it."""
    from broker.kafka.views.routes import KafkaViews

    views = KafkaViews(context, surroundings.callers, surroundings.figures)
    surroundings.routes.add(*views.routes)
    return views


def _share_service(surroundings: Surroundings, logs: LogManager, groups: GroupCoordinator) -> ShareService:
    return ShareService(
        logs,
        surroundings.runtime.clock,
        surroundings.timer,
        surroundings.catalogue,
        groups.writer,
        groups.share_settings,
        surroundings.config.group_share_max_share_sessions,
        groups.has_memory_for,
        groups.memory,
        lambda group_id: groups.type_of(group_id) is GroupType.SHARE,
        None if logs.nodes is None else OtherNodes(logs.nodes, surroundings.catalogue, surroundings.runtime.clock),
    )
