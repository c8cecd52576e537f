"""PARTITIONED_METADATA: how many partitions a topic has; 0 for one that is not partitioned.

Where topics are made on demand with partitions (``pulsar_auto_topic_partitions``), this is where. Otherwise PRODUCER and
SUBSCRIBE make them, and a topic that does not exist yet has 0.

Tests: tests/pulsar/test_service.py.
"""

from broker.errors import Refusal, StorageError
from broker.network.work import ADMIN
from broker.pulsar.command import Call, Command, PulsarRequest, Type
from broker.pulsar.context import PulsarContext
from broker.pulsar.error_codes import code_of
from broker.pulsar.refusals import InvalidTopicName, TopicNotFound
from broker.pulsar.rights import require_creation, require_topic
from broker.pulsar.topic_names import parse_topic
from broker.security.acl import Operation
from protocol.pulsar.pulsar_pb2 import CommandPartitionedTopicMetadataResponse

Response = CommandPartitionedTopicMetadataResponse


def handle(call: Call) -> None:
    context, body = call.context, call.body
    name = parse_topic(body.topic)
    context.topics.check_namespace(name)
    require_topic(context, call.connection, Operation.DESCRIBE, name)
    partitions = (context.topics if name.persistent else context.nonpersistent).partitions(name)
    if partitions is None:
        if not body.metadata_auto_creation_enabled:
            raise TopicNotFound(f"Topic {name} does not exist")
        partitions = 0
        if context.topics.creates_partitioned(name):
            require_creation(context, call.connection, name)
            partitions = context.topics.create_on_demand(name)
    call.reply(
        Type.PARTITIONED_METADATA_RESPONSE,
        Response(request_id=body.request_id, response=Response.LookupType.Success, partitions=partitions),
    )


def inline(context: PulsarContext, request: PulsarRequest) -> bool:
    """Making a topic waits for the disk."""
    try:
        name = parse_topic(request.body.topic)
    except InvalidTopicName:
        return True  # to be refused
    return not context.topics.creates_partitioned(name) or context.topics.partitions(name) is not None


def on_error(call: Call, error: Refusal | StorageError) -> None:
    call.reply(
        Type.PARTITIONED_METADATA_RESPONSE,
        Response(
            request_id=call.body.request_id,
            response=Response.LookupType.Failed,
            error=code_of(error),
            message=str(error),
        ),
    )


COMMAND = Command(Type.PARTITIONED_METADATA, handle, inline=inline, lane=ADMIN, on_error=on_error)
