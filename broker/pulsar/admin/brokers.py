"""Admin calls about the cluster and its broker, of which there is one each, and about the broker's settings.

Settings have Kafka's names where they have one. Those that can be changed while the broker runs are changed for all brokers, as
by Kafka's clients, except what listeners need for TLS. Secrets are not shown.

Tests: tests/pulsar/admin/test_brokers.py.
"""

from collections.abc import Mapping
from typing import Any, Final

from broker.config import BrokerConfig, SettingInfo, setting_infos
from broker.config.dynamic_settings import Way, way_of
from broker.errors import ConfigError
from broker.live_config import ALL_BROKERS
from broker.network.routes import NO_CONTENT, TEXT, Answer, Call, HttpError, Route, json_answer
from broker.pulsar.admin.calls import require_cluster, route, web_urls
from broker.pulsar.admin.lookup import Lookup
from broker.pulsar.admin.policy_names import CLUSTER
from broker.pulsar.admin.tenants import BUNDLE
from broker.pulsar.context import PulsarContext
from broker.security.acl import Operation

_OK = Answer(200, b"ok", TEXT)
# The newest version of Pulsar whose clients this broker was tried with.
_VERSION = Answer(200, b"4.2.0", TEXT)
# By the names that clients see.
_SETTINGS: Final[Mapping[str, SettingInfo]] = {
    info.kafka or info.name: info for info in setting_infos(BrokerConfig) if info.name != "ignored_kafka_settings"
}


class Brokers:
    def __init__(self, context: PulsarContext, lookup: Lookup) -> None:
        self._context = context
        self._lookup = lookup

    def routes(self) -> list[Route]:
        return [
            route("GET", "/admin/v2/clusters", self.clusters),
            route("GET", "/admin/v2/clusters/{cluster}", self.cluster),
            route("PUT", "/admin/v2/clusters/{cluster}", self.create_cluster),
            route("GET", "/admin/v2/brokers", self.brokers),
            route("GET", "/admin/v2/brokers/{cluster}", self.brokers),
            route("GET", "/admin/v2/brokers/leaderBroker", self.leader),
            route("GET", "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces", self.namespaces),
            route("GET", "/admin/v2/brokers/configuration", self.dynamic_settings),
            route("GET", "/admin/v2/brokers/configuration/values", self.changed_settings),
            route("GET", "/admin/v2/brokers/configuration/runtime", self.settings),
            route("POST", "/admin/v2/brokers/configuration/{setting}/{value}", self.set),
            route("DELETE", "/admin/v2/brokers/configuration/{setting}", self.set),
            Route("GET", "/admin/v2/brokers/health", lambda call: _OK, blocking=False),
            Route("GET", "/admin/v2/brokers/ready", lambda call: _OK, blocking=False),
            Route("GET", "/admin/v2/brokers/version", lambda call: _VERSION, blocking=False),
        ]

    def clusters(self, call: Call) -> Answer:
        return json_answer([CLUSTER])

    def cluster(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE)
        self._check(call)
        plain, tls = self._lookup.urls(call)
        http, https = web_urls(self._context, call)
        return json_answer(
            {
                "serviceUrl": http,
                "serviceUrlTls": https,
                "brokerServiceUrl": plain,
                "brokerServiceUrlTls": tls,
                "brokerClientTlsEnabled": False,
            }
        )

    def create_cluster(self, call: Call) -> Answer:
        """What sets up a cluster, such as the scripts of client suites, takes 409 for success."""
        require_cluster(self._context, call, Operation.CREATE)
        if call.names["cluster"] == CLUSTER:
            raise HttpError(409, f"The cluster {CLUSTER} exists already.")
        raise HttpError(412, f"There is one cluster: {CLUSTER}.")

    def brokers(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE)
        self._check(call)
        return json_answer([call.headers.get("host", "")])

    def leader(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE)
        http, https = web_urls(self._context, call)
        return json_answer({"brokerId": call.headers.get("host", ""), "serviceUrl": http or https})

    def namespaces(self, call: Call) -> Answer:
        """Those of the broker: all."""
        require_cluster(self._context, call, Operation.DESCRIBE)
        self._check(call)
        if call.names["broker"] != call.headers.get("host", ""):
            raise HttpError(404, "There is one broker: name it as you reach it.")
        names = [
            name
            for tenant in self._context.namespaces.tenants()
            for name in self._context.namespaces.namespaces(tenant)
        ]
        status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return json_answer({f"{name}/{BUNDLE}": status for name in names})

    # -- settings -----------------------------------------------------------------------------------------------------

    def dynamic_settings(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE_CONFIGS)
        return json_answer([name for name in _SETTINGS if self._can_change(name)])

    def changed_settings(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE_CONFIGS)
        changed = self._context.live.changes[ALL_BROKERS]
        return json_answer({name: text for name, text in changed.items() if self._can_change(name)})

    def settings(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.DESCRIBE_CONFIGS)
        config = self._context.live.in_force
        return json_answer(
            {name: _text(getattr(config, info.name)) for name, info in _SETTINGS.items() if not info.secret}
        )

    def set(self, call: Call) -> Answer:
        require_cluster(self._context, call, Operation.ALTER_CONFIGS)
        name, value = call.names["setting"], call.names.get("value")  # without a value, it is taken back
        if not self._can_change(name):
            raise HttpError(412, "Cannot update non-dynamic configuration")
        try:
            self._context.live.alter(ALL_BROKERS, lambda _: {name: value})
        except ConfigError as error:
            raise HttpError(412, f"Invalid dynamic-config value: {error}") from None
        return NO_CONTENT

    def _can_change(self, name: str) -> bool:
        return name in _SETTINGS and self._context.live.can_change(name) and way_of(name) is not Way.TLS

    def _check(self, call: Call) -> None:
        if call.names.get("cluster", CLUSTER) != CLUSTER:
            raise HttpError(404, f"There is one cluster: {CLUSTER}.")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{item}" for key, item in value.items())
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return "" if value is None else str(value)
