"""DeleteGroups (42): groups without members, and their offsets. Answered when that is durable."""

from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> None:
    names = call.body.groups_names
    unauthorized = denied(context, call.connection, Operation.DELETE, ResourceType.GROUP, names)
    refused = dict.fromkeys(sorted(unauthorized), ErrorCode.group_authorization_failed)

    def reply(errors: dict[str, ErrorCode]) -> None:
        errors = errors | refused
        call.reply({"results": [{"group_id": group_id, "error_code": error} for group_id, error in errors.items()]})

    context.groups.delete(
        [group_id for group_id in names if group_id not in unauthorized] if unauthorized else names, reply
    )


API = Api(key=ApiKey.DELETE_GROUPS, min_version=0, max_version=2, handle=handle, lane=ADMIN, settles=True)
