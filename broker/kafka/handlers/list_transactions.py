"""ListTransactions (66): all transactional ids, or those in some states, of some producers, or (from version 1 on) with a
transaction that is open for longer than so many ms. Those that the client may not describe are left out.

Tests: tests/kafka/handlers/test_transactions.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied
from broker.kafka.context import KafkaContext
from broker.kafka.transactions.phases import Phase
from broker.network.work import ADMIN
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.schema.control import milliseconds

_ANY = -1
_NAMES = frozenset(phase.value for phase in Phase)


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any]:
    body = call.body
    states = frozenset(body.state_filters)
    unknown = states - _NAMES
    producers = frozenset(body.producer_id_filters)
    longer_ms = milliseconds(getattr(body, "duration_filter", _ANY))
    error, found = context.transactions.list()
    hidden = denied(
        context,
        call.connection,
        Operation.DESCRIBE,
        ResourceType.TRANSACTIONAL_ID,
        (transactional_id for transactional_id, _ in found),
        audited=False,
    )
    now_ms = context.clock.time_ms()
    return {
        "error_code": error,
        "unknown_state_filters": sorted(unknown),
        "transaction_states": [
            {
                "transactional_id": transactional_id,
                "producer_id": state.producer_id,
                "transaction_state": state.phase.value,
            }
            for transactional_id, state in found
            if transactional_id not in hidden
            and (not states or state.phase.value in states)
            and (not producers or state.producer_id in producers)
            and (longer_ms < 0 or (state.started_ms >= 0 and now_ms - state.started_ms > longer_ms))
        ],
    }


API = Api(key=ApiKey.LIST_TRANSACTIONS, min_version=0, max_version=1, handle=handle, lane=ADMIN)
