"""The commands of schemas, and the checks for producers and consumers with or without a schema.

- GET_OR_CREATE_SCHEMA: the version of a schema, which is added to the topic if it is new and compatible with earlier schemas.
- GET_SCHEMA: the schema of a topic, the latest or a given version.

On threads that may block.

Tests: tests/pulsar/schemas/test_clients.py.
"""

from typing import Any

from broker.errors import Refusal, StorageError
from broker.network.work import ADMIN
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.context import PulsarContext
from broker.pulsar.policies.policies import Policies
from broker.pulsar.refusals import IncompatibleSchema, NotAllowed, TopicNotFound, code_of
from broker.pulsar.rights import require_creation, require_topic
from broker.pulsar.schemas.compatibility import (
    Schema,
    Strategy,
    schema_from_message,
    schema_to_message,
    version_bytes,
    version_from_bytes,
)
from broker.pulsar.topic_names import parse_topic
from broker.pulsar.topics.topic import Topic
from broker.security.acl import Operation
from protocol.pulsar.pulsar_pb2 import CommandGetOrCreateSchemaResponse, CommandGetSchemaResponse


def of_producer(context: PulsarContext, topic: Topic, body: Any, user: str) -> bytes:
    """The version of the schema in the PRODUCER command ``body``, which is added if it is new; empty: no schema. Raises
    IncompatibleSchema, StorageError."""
    schema = schema_from_message(body.schema) if body.HasField("schema") else None
    policies = _policies(context, topic)
    if schema is None:
        if policies.schema_validation_enforced and context.schemas.latest(topic.log.topic_id) is not None:
            raise IncompatibleSchema("Producers cannot connect without a schema to topics with a schema")
        return b""
    return version_bytes(add(context, topic, schema, user))


def of_consumer(context: PulsarContext, topic: Topic, body: Any, user: str) -> None:
    """Check the schema in the SUBSCRIBE command ``body``. As in Pulsar, it is added if the topic has no schema, messages or
    clients. Raises IncompatibleSchema, StorageError."""
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
    """The version of the schema; a new schema is added. Raises IncompatibleSchema, StorageError."""
    policies, topic_id = _policies(context, topic), topic.log.topic_id
    if not policies.schema_auto_update and context.schemas.find(topic_id, schema) is None:
        raise IncompatibleSchema("Schema not found and schema auto updating is disabled.")
    return context.schemas.put(topic_id, schema, _strategy(policies), context.clock.time_ms(), user)


def _policies(context: PulsarContext, topic: Topic) -> Policies:
    return context.policies.of(topic.name.namespace, topic.log.topic_id)


def _strategy(policies: Policies) -> Strategy:
    return policies.schema_compatibility or Strategy.FULL


def handle_get_or_create_schema(call: Call) -> None:
    context, body = call.context, call.body
    name = parse_topic(body.topic)
    require_topic(context, call.connection, Operation.WRITE, name)
    if not name.persistent:
        raise NotAllowed("Schemas of non-persistent topics are not kept.")
    topic = context.topics.get(name)
    if topic is None:
        require_creation(context, call.connection, name)
        topic = context.topics.get_or_create(name)
    schema = schema_from_message(body.schema)
    if schema is None:
        raise IncompatibleSchema("The command has no schema.")
    version = add(context, topic, schema, str(call.connection.principal))
    call.reply(
        Type.GET_OR_CREATE_SCHEMA_RESPONSE,
        CommandGetOrCreateSchemaResponse(request_id=body.request_id, schema_version=version_bytes(version)),
    )


def fail_get_or_create_schema(call: Call, error: Refusal | StorageError) -> None:
    response = CommandGetOrCreateSchemaResponse(request_id=call.body.request_id, error_code=code_of(error))
    response.error_message = str(error)
    call.reply(Type.GET_OR_CREATE_SCHEMA_RESPONSE, response)


GET_OR_CREATE_SCHEMA = Command(
    Type.GET_OR_CREATE_SCHEMA, handle_get_or_create_schema, inline=False, lane=ADMIN, on_error=fail_get_or_create_schema
)


def handle_get_schema(call: Call) -> None:
    context, body = call.context, call.body
    name = parse_topic(body.topic)
    require_topic(context, call.connection, Operation.DESCRIBE, name)
    version = version_from_bytes(body.schema_version)
    info = context.topics.info(name)
    stored = None
    if info is not None:
        topic_id = info.topic_id
        stored = context.schemas.latest(topic_id) if version is None else context.schemas.get(topic_id, version)
    if stored is None:
        raise TopicNotFound("Topic not found or no-schema")
    call.reply(
        Type.GET_SCHEMA_RESPONSE,
        CommandGetSchemaResponse(
            request_id=body.request_id,
            schema=schema_to_message(stored.schema),
            schema_version=version_bytes(stored.version),
        ),
    )


def fail_get_schema(call: Call, error: Refusal | StorageError) -> None:
    response = CommandGetSchemaResponse(request_id=call.body.request_id, error_code=code_of(error))
    response.error_message = str(error)
    call.reply(Type.GET_SCHEMA_RESPONSE, response)


GET_SCHEMA = Command(Type.GET_SCHEMA, handle_get_schema, inline=True, on_error=fail_get_schema)
