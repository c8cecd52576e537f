"""AddPartitionsToTxn (24): a producer adds partitions to its transaction, and begins one if none is open.

Answered when that is durable: after any crash the coordinator then knows which partitions need markers.

From version 4 on a request is about several transactions, and may ask for each only whether the partitions take part in it.
In Kafka these versions are for brokers, with the right CLUSTER_ACTION. Here clients may use them, too, with the rights for
version 3, because some clients use the newest version that they know. The other nodes of the cluster ask for clients whose
rights they have asked for, and name groups beside the partitions (``kafka/transactions/neighbours.py``).

Tests: tests/kafka/handlers/test_transactions.py.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from broker.kafka.api import Api, Call
from broker.kafka.authorization import denied, may
from broker.kafka.context import KafkaContext
from broker.kafka.transactions.transaction import GROUP, Claim, Partition
from broker.runtime.threads import Lock
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

# Before version 2 clients did not know PRODUCER_FENCED.
_FENCED_SINCE = 2
_FIRST_OF_SEVERAL = 4
# Before version 5 clients did not know TRANSACTION_ABORTABLE.
_ABORTABLE_SINCE = 5

Errors = Mapping[Partition, ErrorCode]


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    request = call.body
    if call.api_version >= _FIRST_OF_SEVERAL:
        return _handle_several(context, call)
    topics = request.v3_and_below_topics
    wanted = _wanted(topics)
    claim = Claim(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)

    def reply(errors: Errors) -> None:
        call.reply({"results_by_topic_v3_and_below": _results(topics, errors)})

    transactional_id = request.v3_and_below_transactional_id
    refused = _unauthorized(context, call, transactional_id, wanted) or _refused(context, transactional_id, wanted)
    if refused:
        reply(refused)
        return None

    def added(error: ErrorCode) -> None:
        if error == ErrorCode.producer_fenced and call.api_version < _FENCED_SINCE:
            error = ErrorCode.invalid_producer_epoch
        reply(dict.fromkeys(wanted, error))

    context.transactions.add_partitions(transactional_id, claim, wanted, added)
    return None


def _handle_several(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    transactions = call.body.transactions
    if not transactions:
        return {"error_code": ErrorCode.none, "results_by_transaction": []}
    results = _Results(transactions, call)
    is_node = context.is_node(call.peer)
    is_broker = is_node or may(context, call.connection, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, audited=False)
    for index, each in enumerate(transactions):
        name, wanted = each.transactional_id, _wanted(each.topics)
        claim = Claim(each.producer_id, each.producer_epoch)
        refused: Errors = {} if is_broker else _unauthorized(context, call, name, wanted)
        # Nodes ask about groups, too, and there is no topic of that name.
        topics_wanted = [key for key in wanted if key[1] != GROUP] if is_node else wanted
        refused = refused or _refused(context, name, topics_wanted)
        if refused:
            refused = dict.fromkeys(wanted, ErrorCode.operation_not_attempted) | dict(refused)
            results.put(index, refused)
        elif each.verify_only:
            errors = context.transactions.version_2.verify(name, claim, wanted)
            if call.api_version < _ABORTABLE_SINCE:
                errors = {
                    key: ErrorCode.invalid_txn_state if error == ErrorCode.transaction_abortable else error
                    for key, error in errors.items()
                }
            results.put(index, errors)
        else:
            added = partial(_put_one, results, index, wanted)
            # Batches that wait at other nodes come together; a client waits for the answer before it adds more.
            add = context.transactions.version_2.add_partitions if is_node else context.transactions.add_partitions
            add(name, claim, wanted, added)
    return None


def _put_one(results: "_Results", index: int, wanted: Collection[Partition], error: ErrorCode) -> None:
    results.put(index, dict.fromkeys(wanted, error))


class _Results:
    """Collects the answers about several transactions, and replies when the last has come."""

    def __init__(self, transactions: Collection[Any], call: Call) -> None:
        self._transactions = transactions
        self._call = call
        self._errors: dict[int, Errors] = {}
        self._lock = Lock()

    def put(self, index: int, errors: Errors) -> None:
        with self._lock:
            self._errors[index] = errors
            if len(self._errors) < len(self._transactions):
                return
        results = [
            {
                "transactional_id": each.transactional_id,
                "topic_results": _results(each.topics, self._errors[at]),
            }
            for at, each in enumerate(self._transactions)
        ]
        self._call.reply({"error_code": ErrorCode.none, "results_by_transaction": results})


def _wanted(topics: Collection[Any]) -> list[Partition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _unauthorized(context: KafkaContext, call: Call, transactional_id: str, wanted: Collection[Partition]) -> Errors:
    """The errors of all partitions if the client may not do this to any of them; else nothing."""
    connection = call.connection
    if not may(context, connection, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return dict.fromkeys(wanted, ErrorCode.transactional_id_authorization_failed)
    topics = dict.fromkeys(topic for topic, _ in wanted)
    unauthorized = denied(context, connection, Operation.WRITE, ResourceType.TOPIC, topics)
    if not unauthorized:
        return {}
    return _all_or_none(
        context, wanted, {key: ErrorCode.topic_authorization_failed for key in wanted if key[0] in unauthorized}
    )


def _refused(context: KafkaContext, transactional_id: str, wanted: Collection[Partition]) -> Errors:
    if not transactional_id:
        return dict.fromkeys(wanted, ErrorCode.invalid_request)
    return _all_or_none(context, wanted, {})


def _all_or_none(context: KafkaContext, wanted: Collection[Partition], refused: Errors) -> Errors:
    """If any of the partitions is refused or unknown, the others are not added either."""
    unknown = {key: ErrorCode.unknown_topic_or_partition for key in wanted if not context.exists(*key)}
    refused = unknown | dict(refused)
    return dict.fromkeys(wanted, ErrorCode.operation_not_attempted) | refused if refused else {}


def _results(topics: Collection[Any], errors: Errors) -> list[Mapping[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": errors[topic.name, index]}
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]


API = Api(key=ApiKey.ADD_PARTITIONS_TO_TXN, min_version=0, max_version=5, handle=handle)
