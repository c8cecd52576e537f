"""ListGroups (16): all groups, or (from version 4 on) those in some states."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.kafka.api import Api, Call
from protocol.kafka.api_keys import ApiKey

if TYPE_CHECKING:
    from broker.kafka.broker import KafkaBroker


def handle(broker: "KafkaBroker", call: Call) -> Mapping[str, Any]:
    error, groups = broker.groups.list(getattr(call.body, "states_filter", ()))
    return {
        "error_code": error,
        "groups": [
            {"group_id": group.group_id, "protocol_type": group.protocol_type, "group_state": group.state.value}
            for group in groups
        ],
    }


API = Api(key=ApiKey.LIST_GROUPS, min_version=0, max_version=4, handle=handle)
