"""DeleteGroups (42): groups without members, and their offsets. Answered when that is durable."""

from broker.kafka.api import Api, Call
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode


def handle(context: KafkaContext, call: Call) -> None:
    def reply(errors: dict[str, ErrorCode]) -> None:
        call.reply({"results": [{"group_id": one, "error_code": error} for one, error in errors.items()]})

    context.groups.delete(call.body.groups_names, reply)


API = Api(key=ApiKey.DELETE_GROUPS, min_version=0, max_version=2, handle=handle, lane=ADMIN)
