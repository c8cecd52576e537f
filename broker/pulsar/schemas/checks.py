"""What the handlers ask when a producer or a consumer comes with a schema, or without one. Threads that may block.

Tests: tests/pulsar/schemas/test_clients.py.
"""

from typing import Any

from broker.pulsar.context import PulsarContext
from broker.pulsar.policies.policies import Policies
from broker.pulsar.refusals import IncompatibleSchema
from broker.pulsar.schemas.compatibility import Strategy
from broker.pulsar.schemas.schema import Schema, schema_from_message, version_bytes
from broker.pulsar.topics.topic import Topic


def of_producer(context: PulsarContext, topic: Topic, body: Any, user: str) -> bytes:
    """``body``: PRODUCER. The version of its schema, which is added if it is new; empty: it has none. Raises
    IncompatibleSchema, StorageError."""
    schema = schema_from_message(body.schema) if body.HasField("schema") else None
    policies = _policies(context, topic)
    if schema is None:
        if policies.schema_validation_enforced and context.schemas.latest(topic.log.topic_id) is not None:
            raise IncompatibleSchema("Producers cannot connect without a schema to topics with a schema")
        return b""
    return version_bytes(add(context, topic, schema, user))


def of_consumer(context: PulsarContext, topic: Topic, body: Any, user: str) -> None:
    """``body``: SUBSCRIBE. The first schema of a topic without messages and clients is added, as in Pulsar. Raises
    IncompatibleSchema, StorageError."""
    schema = schema_from_message(body.schema) if body.HasField("schema") else None
    if schema is None:
        return
    topic_id = topic.log.topic_id
    unused = topic.log.log_end_offset == 0 and not topic.in_use
    if unused and context.schemas.latest(topic_id) is None:
        add(context, topic, schema, user)
    else:
        context.schemas.check_consumer(topic_id, schema, _strategy(_policies(context, topic)))


def add(context: PulsarContext, topic: Topic, schema: Schema, user: str) -> int:
    """The version of the schema, which is added if it is new. Raises IncompatibleSchema, StorageError."""
    policies, topic_id = _policies(context, topic), topic.log.topic_id
    if not policies.schema_auto_update and context.schemas.find(topic_id, schema) is None:
        raise IncompatibleSchema("Schema not found and schema auto updating is disabled.")
    return context.schemas.put(topic_id, schema, _strategy(policies), context.clock.time_ms(), user)


def _policies(context: PulsarContext, topic: Topic) -> Policies:
    return context.policies.of(topic.name.namespace, topic.log.topic_id)


def _strategy(policies: Policies) -> Strategy:
    return policies.schema_compatibility or Strategy.FULL
