"""GET_SCHEMA: the schema of a topic, the latest or of one version.

Tests: tests/pulsar/schemas/test_clients.py.
"""

from broker.errors import Refusal, StorageError
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.error_codes import code_of
from broker.pulsar.refusals import TopicNotFound
from broker.pulsar.rights import require_topic
from broker.pulsar.schemas.schema import schema_to_message, version_bytes, version_from_bytes
from broker.pulsar.topic_names import parse_topic
from broker.security.acl import Operation
from protocol.pulsar.pulsar_pb2 import CommandGetSchemaResponse


def handle(call: Call) -> None:
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


def fail(call: Call, error: Refusal | StorageError) -> None:
    response = CommandGetSchemaResponse(request_id=call.body.request_id, error_code=code_of(error))
    response.error_message = str(error)
    call.reply(Type.GET_SCHEMA_RESPONSE, response)


COMMAND = Command(Type.GET_SCHEMA, handle, inline=True, on_error=fail)
