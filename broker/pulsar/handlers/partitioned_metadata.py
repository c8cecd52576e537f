"""PARTITIONED_METADATA: how many partitions a topic has; 0 for one that is not partitioned."""

from broker.errors import Refusal, StorageError
from broker.pulsar.command import Call, Command, Type
from broker.pulsar.error_codes import code_of
from broker.pulsar.rights import require_topic
from broker.pulsar.topic_names import parse_topic
from broker.security.acl import Operation
from protocol.pulsar.pulsar_pb2 import CommandPartitionedTopicMetadataResponse

Response = CommandPartitionedTopicMetadataResponse


def handle(call: Call) -> None:
    context, body = call.context, call.body
    name = parse_topic(body.topic)
    require_topic(context, call.connection, Operation.DESCRIBE, name)
    call.reply(
        Type.PARTITIONED_METADATA_RESPONSE,
        Response(
            request_id=body.request_id,
            response=Response.LookupType.Success,
            partitions=context.topics.partitions(name) or 0,
        ),
    )


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


COMMAND = Command(Type.PARTITIONED_METADATA, handle, on_error=on_error)
