"""A Kafka client in columns: what Spark's source and sink stand on, also usable from plain Python.

Blocking, on the calling thread, with no threads of its own; every wait is bounded. Records go in and out as Arrow, a record
batch at a time, and are never Python objects one by one. It speaks to any broker that speaks Kafka's protocol.

    from broker.client.kafka import ClientConfig, Cluster

    with Cluster(ClientConfig.from_properties({"bootstrap.servers": "localhost:9092"})) as cluster:
        print(cluster.topics(None))

Modules that need pyarrow and numpy (``columns``, ``batch_builder``: the extra ``spark``) are imported by name.
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

# Imported at first use: who wants only the values does not pay for the rest.
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
