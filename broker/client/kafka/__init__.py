"""A Kafka client that works in columns, for Spark's source and sink and for plain Python.

It blocks the calling thread and starts none of its own; every wait is bounded. It reads and writes whole record batches as
Arrow, without a Python object for each record, and works with any broker that speaks Kafka's protocol.

    from broker.client.kafka import ClientConfig, Cluster

    with Cluster(ClientConfig.from_properties({"bootstrap.servers": "localhost:9092"})) as cluster:
        print(cluster.topics(None))

The modules in ``columns/`` need pyarrow and numpy (the extra ``spark``) and are imported by name.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.client.kafka.cluster import Cluster
    from broker.client.kafka.config import ClientConfig
    from broker.client.kafka.errors import KafkaClientError
    from broker.client.kafka.values import (
        EARLIEST,
        LATEST,
        MAX_TIMESTAMP,
        Fetched,
        Identity,
        OffsetAndMetadata,
        TopicMetadata,
    )

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "ClientConfig",
    "Cluster",
    "Fetched",
    "Identity",
    "KafkaClientError",
    "OffsetAndMetadata",
    "TopicMetadata",
]

# Imported at first use, so that a program that needs only the values does not load the client.
_WHERE = {
    "ClientConfig": "config",
    "Cluster": "cluster",
    "KafkaClientError": "errors",
} | dict.fromkeys(
    ["EARLIEST", "LATEST", "MAX_TIMESTAMP", "Fetched", "Identity", "OffsetAndMetadata", "TopicMetadata"], "values"
)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
