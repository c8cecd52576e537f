"""What the views share: the Kafka service's context, the clients' rights, and the figures of the sampler.

Tests: tests/kafka/views/test_topics.py.
"""

import attrs

from broker.kafka.context import KafkaContext
from broker.kafka.groups.lag import Lags
from broker.security.acl import Operation, ResourceType
from broker.storage.config import TopicInfo
from broker.web.callers import Callers
from broker.web.history import Figures
from broker.web.routes import NOT_FOUND, Call, HttpError


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

    def topic_of(self, call: Call, operation: Operation = Operation.DESCRIBE) -> TopicInfo:
        """The topic of the path. Raises HttpError."""
        name = call.names["topic"]
        self.callers.require(call, operation, ResourceType.TOPIC, name)
        info = self.kafka.logs.topic(name)
        if info is None:
            raise HttpError(NOT_FOUND, f"There is no topic {name[:300]!r}.")
        return info
