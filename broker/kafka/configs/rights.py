"""What a client must be allowed to do in order to see or change settings. Any thread.

Tests: tests/kafka/test_authorization_matrix.py.
"""

from broker.kafka.authorization import require
from broker.kafka.configs.resources import ResourceType as ConfigResourceType
from broker.kafka.context import KafkaContext
from broker.network.service import Connection
from broker.security.acl import CLUSTER_NAME, Operation, ResourceType


def require_config(
    context: KafkaContext, connection: Connection, operation: Operation, config_type: int, name: str
) -> None:
    """Raises RequestError where the client may not do this (DESCRIBE_CONFIGS or ALTER_CONFIGS) with the settings of a resource.

    Resources without settings are allowed here and refused by the handlers, as in Kafka.
    """
    if config_type == ConfigResourceType.TOPIC:
        require(context, connection, operation, ResourceType.TOPIC, name)
    elif config_type == ConfigResourceType.GROUP:
        require(context, connection, operation, ResourceType.GROUP, name)
    elif config_type in (
        ConfigResourceType.BROKER,
        ConfigResourceType.BROKER_LOGGER,
        ConfigResourceType.CLIENT_METRICS,
    ):
        require(context, connection, operation, ResourceType.CLUSTER, CLUSTER_NAME)
