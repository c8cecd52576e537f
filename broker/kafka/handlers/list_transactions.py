"""ListTransactions (66): all transactional ids, or those in some states, of some producers, with a transaction that is open for
longer than a number of ms (from version 1 on), or that match a regular expression as a whole (from version 2 on). Ids that the
client may not describe are left out.

The expression is RE2's. It is matched last, against the ids that pass the other filters, because it costs the most: up to 0.25 s
for the longest possible id, without the interpreter's lock.

Tests: tests/kafka/handlers/test_transactions.py.
"""

from collections.abc import Mapping
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied
from broker.kafka.checks import error_alone
from broker.kafka.context import KafkaContext
from broker.kafka.groups.consumer.values import compile_regex
from broker.kafka.transactions.transaction import Phase
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
    pattern = getattr(body, "transactional_id_pattern", None)  # as in Kafka, an empty one is none
    matches = compile_regex(pattern).fullmatch if pattern else None
    error, transactions = context.transactions.list()
    hidden = denied(
        context,
        call.connection,
        Operation.DESCRIBE,
        ResourceType.TRANSACTIONAL_ID,
        (transactional_id for transactional_id, _ in transactions),
        audited=False,
    )
    now_ms = context.clock.time_ms()
    transactions = [
        (transactional_id, state)
        for transactional_id, state in transactions
        if transactional_id not in hidden
        and (not states or state.phase.value in states)
        and (not producers or state.producer_id in producers)
        and (longer_ms < 0 or (state.started_ms >= 0 and now_ms - state.started_ms > longer_ms))
    ]
    if matches is not None:
        work = call.work
        matching = []
        for entry in transactions:
            work.checkpoint()
            if matches(entry[0]):
                matching.append(entry)
        transactions = matching
    return {
        "error_code": error,
        "unknown_state_filters": sorted(unknown),
        "transaction_states": [
            {
                "transactional_id": transactional_id,
                "producer_id": state.producer_id,
                "transaction_state": state.phase.value,
            }
            for transactional_id, state in transactions
        ],
    }


API = Api(
    key=ApiKey.LIST_TRANSACTIONS,
    min_version=0,
    max_version=2,
    handle=handle,
    on_error=error_alone,
    lane=ADMIN,
)
