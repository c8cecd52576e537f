"""GET_OR_CREATE_SCHEMA: the version of a schema, which is added to the topic if it is new and goes with those before.

GET_SCHEMA: the schema of a topic, the latest or of one version.

Tests: tests/pulsar/schemas/test_clients.py.
"""

from broker.errors import Refusal, StorageError
from broker.network.work import ADMIN
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.refusals import IncompatibleSchema, NotAllowed, TopicNotFound, code_of
from broker.pulsar.rights import require_creation, require_topic
from broker.pulsar.schemas import checks
from broker.pulsar.schemas.schema import schema_from_message, schema_to_message, version_bytes, version_from_bytes
from broker.pulsar.topic_names import parse_topic
from broker.security.acl import Operation
from protocol.pulsar.pulsar_pb2 import CommandGetOrCreateSchemaResponse, CommandGetSchemaResponse


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
    version = checks.add(context, topic, schema, str(call.connection.principal))
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
    found = None
    if info is not None:
        topic_id = info.topic_id
        found = context.schemas.latest(topic_id) if version is None else context.schemas.get(topic_id, version)
    if found is None:
        raise TopicNotFound("Topic not found or no-schema")
    call.reply(
        Type.GET_SCHEMA_RESPONSE,
        CommandGetSchemaResponse(
            request_id=body.request_id,
            schema=schema_to_message(found.schema),
            schema_version=version_bytes(found.version),
        ),
    )


def fail_get_schema(call: Call, error: Refusal | StorageError) -> None:
    response = CommandGetSchemaResponse(request_id=call.body.request_id, error_code=code_of(error))
    response.error_message = str(error)
    call.reply(Type.GET_SCHEMA_RESPONSE, response)


GET_SCHEMA = Command(Type.GET_SCHEMA, handle_get_schema, inline=True, on_error=fail_get_schema)
