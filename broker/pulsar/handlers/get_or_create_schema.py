"""GET_OR_CREATE_SCHEMA: the version of a schema, which is added to the topic if it is new and goes with those before.

Tests: tests/pulsar/schemas/test_clients.py.
"""

from broker.errors import Refusal, StorageError
from broker.network.work import ADMIN
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.error_codes import code_of
from broker.pulsar.refusals import IncompatibleSchema, NotAllowed
from broker.pulsar.rights import require_creation, require_topic
from broker.pulsar.schemas import checks
from broker.pulsar.schemas.schema import schema_from_message, version_bytes
from broker.pulsar.topic_names import parse_topic
from broker.security.acl import Operation
from protocol.pulsar.pulsar_pb2 import CommandGetOrCreateSchemaResponse


def handle(call: Call) -> None:
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


def fail(call: Call, error: Refusal | StorageError) -> None:
    response = CommandGetOrCreateSchemaResponse(request_id=call.body.request_id, error_code=code_of(error))
    response.error_message = str(error)
    call.reply(Type.GET_OR_CREATE_SCHEMA_RESPONSE, response)


COMMAND = Command(Type.GET_OR_CREATE_SCHEMA, handle, inline=False, lane=ADMIN, on_error=fail)
