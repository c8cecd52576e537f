"""ListGroups (16): all groups, or those in some states (from version 4 on) and of some types (from version 5 on, KIP-848)."""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, may
from broker.kafka.context import KafkaContext
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    error, groups = context.groups.list(getattr(call.body, "states_filter", ()), getattr(call.body, "types_filter", ()))
    connection, describe = call.connection, Operation.DESCRIBE
    if not may(context, connection, describe, ResourceType.CLUSTER, audited=False):
        ids = (group.group_id for group in call.work.each(groups))
        hidden = denied(context, connection, describe, ResourceType.GROUP, ids, audited=False)
        groups = [group for group in groups if group.group_id not in hidden]
    return {
        "error_code": error,
        "groups": call.array(
            groups,
            lambda group: {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.type.value,
            },
        ),
    }


API = Api(key=ApiKey.LIST_GROUPS, min_version=0, max_version=5, handle=handle, lane=ADMIN)
