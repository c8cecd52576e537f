"""ListConfigResources (74): the names of resources for DescribeConfigs. Version 0 is Kafka's ListClientMetricsResources
(KIP-714), and knows client metrics only; version 1 knows all types (KIP-1142), and lists all of them if none is named.

As in Kafka, groups and client metrics are listed if they have settings of their own, and the client needs only DESCRIBE_CONFIGS
on the cluster.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import require
from broker.kafka.checks import error_alone
from broker.kafka.configs.resources import ResourceType as ConfigResourceType
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def _brokers(context: KafkaContext) -> Iterable[str]:
    return map(str, (context.node_id,) if context.nodes is None else context.nodes.node_ids)


# In the order in which they are listed.
_NAMES: Mapping[ConfigResourceType, Callable[[KafkaContext], Iterable[str]]] = {
    ConfigResourceType.TOPIC: lambda context: (topic.name for topic in context.logs.topics()),
    ConfigResourceType.BROKER: _brokers,
    ConfigResourceType.BROKER_LOGGER: _brokers,
    ConfigResourceType.CLIENT_METRICS: lambda context: context.telemetry.configs.names(),
    ConfigResourceType.GROUP: lambda context: context.groups.configs.names(),
}
_ALL = frozenset(map(int, _NAMES))
_CLIENT_METRICS_ALONE = frozenset({int(ConfigResourceType.CLIENT_METRICS)})


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    require(context, call.connection, Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    if call.api_version == 0:
        wanted = _CLIENT_METRICS_ALONE
    else:
        wanted = frozenset(call.body.resource_types) or _ALL
        if not wanted <= _ALL:
            raise RequestError(ErrorCode.unsupported_version, f"There are no resources of type {min(wanted - _ALL)}.")
    resources = list(chain.from_iterable(_resources(context, kind) for kind in _NAMES if kind in wanted))
    return {"error_code": ErrorCode.none, "config_resources": call.array(resources, _resource)}


def _resources(context: KafkaContext, kind: ConfigResourceType) -> list[tuple[ConfigResourceType, str]]:
    return [(kind, name) for name in _NAMES[kind](context)]


def _resource(resource: tuple[ConfigResourceType, str]) -> dict[str, Any]:
    kind, name = resource
    return {"resource_name": name, "resource_type": kind}


API = Api(
    key=ApiKey.LIST_CONFIG_RESOURCES,
    min_version=0,
    max_version=1,
    handle=handle,
    on_error=error_alone,
    lane=ADMIN,
)
