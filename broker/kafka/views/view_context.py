"""What the views share: the Kafka service's context, the clients' rights, and the figures of the sampler.

Tests: tests/kafka/views/test_topics.py.
"""

from collections.abc import Iterable

import attrs

from broker.kafka.context import KafkaContext
from broker.kafka.groups.lag import Lags
from broker.other_nodes import sent_to
from broker.security.acl import Operation, ResourceType
from broker.storage.config import TopicInfo
from broker.web.callers import Callers
from broker.web.history import Figures
from broker.web.routes import BAD_REQUEST, NOT_FOUND, Answer, Call, HttpError, Route

_DIGITS_MAX = 9


@attrs.frozen(eq=False)
class ViewContext:
    kafka: KafkaContext
    callers: Callers
    figures: Figures
    lags: Lags

    def may_describe(self, call: Call, kind: ResourceType, name: str) -> bool:
        return self.callers.authorizer is None or self.callers.may(call, Operation.DESCRIBE, kind, name)

    def require_cluster(self, call: Call) -> None:
        """Raises HttpError."""
        self.callers.require(call, Operation.DESCRIBE, ResourceType.CLUSTER)

    def at_coordinator(self, route: Route) -> Route:
        """The route about a group; of several nodes, clients are sent to the one that coordinates it."""
        nodes = self.kafka.nodes
        if nodes is None:
            return route

        def handle(call: Call) -> Answer:
            group = call.names["group"]
            if nodes.coordinates(group):
                return route.handler(call)
            self.callers.require(call, Operation.DESCRIBE, ResourceType.GROUP, group)
            return sent_to(nodes.coordinator_of(group), self.kafka.config.listeners, route.pattern, call)

        return attrs.evolve(route, handler=handle)

    def at_owner(self, route: Route) -> Route:
        """The route about a topic, or about the partitions that ``partition`` or ``positions`` names. Of several nodes, clients
        are sent to the one that has the partitions; if several have some, a partition has to be named."""
        nodes = self.kafka.nodes
        if nodes is None:
            return route

        def handle(call: Call) -> Answer:
            info = self.topic_of(call, Operation.READ)
            numbers = _numbers(call, info)
            owners = {nodes.place_of_owner(info.name, number): number for number in numbers}
            if len(owners) > 1:
                raise HttpError(BAD_REQUEST, "Name a partition: those of the topic are on several nodes.")
            if owners.keys() <= {nodes.place}:
                return route.handler(call)
            (number,) = owners.values()
            return sent_to(nodes.owner_of(info.name, number), self.kafka.config.listeners, route.pattern, call)

        return attrs.evolve(route, handler=handle)

    def topic_of(self, call: Call, operation: Operation = Operation.DESCRIBE) -> TopicInfo:
        """The topic of the path. Raises HttpError."""
        name = call.names["topic"] if "topic" in call.names else call.query.get("topic", "")
        self.callers.require(call, operation, ResourceType.TOPIC, name)
        info = self.kafka.logs.topic(name)
        if info is None:
            raise HttpError(NOT_FOUND, f"There is no topic {name[:300]!r}.")
        return info


def _numbers(call: Call, info: TopicInfo) -> Iterable[int]:
    """The partitions that the call names; otherwise all. What is not a partition is left to the route's handler."""
    texts = [pair.partition(":")[0] for pair in call.query.get("positions", "").split(",")]
    texts = texts if "positions" in call.query else [call.query.get("partition", "")]
    numbers = [int(text) for text in texts if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX]
    return [number for number in numbers if number < info.partitions] or range(info.partitions)
