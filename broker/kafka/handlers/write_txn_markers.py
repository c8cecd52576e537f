"""WriteTxnMarkers (27): an operator aborts a producer's open transaction in a partition (``kafka-transactions.sh abort``).

Between brokers it carries the coordinator's decisions. Here it does so between the nodes of one cluster, on their own
listener, and groups stand beside the partitions (``kafka/transactions/neighbours.py``); from anybody else, a commit is
refused. An operator cannot end half of a transaction: if the coordinator knows it, all of it is aborted and its producer
fenced.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from broker.errors import RequestError
from broker.kafka.api import Api, Call
from broker.kafka.authorization import may, require
from broker.kafka.context import KafkaContext
from broker.kafka.transactions.marker_writer import Sender
from broker.kafka.transactions.transaction import Claim, Partition
from broker.network.work import ADMIN
from broker.runtime.threads import Lock
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

# Markers of one request: each is written and fsynced, which delays all other waits for an fsync. An operator sends a marker for
# each partition of a hanging transaction. One without partitions counts as well: its producer is looked for.
_MARKERS_MAX = 1000


def handle(context: KafkaContext, call: Call) -> Mapping[str, Any] | None:
    is_node = context.is_node(call.peer)
    if not is_node and not may(context, call.connection, Operation.ALTER, ResourceType.CLUSTER, audited=False):
        require(context, call.connection, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    markers = call.body.markers
    if sum(sum(len(topic.partition_indexes) for topic in marker.topics) or 1 for marker in markers) > _MARKERS_MAX:
        return _refused(call, RequestError(ErrorCode.invalid_request))
    answer = _Answer(call, len(markers))
    for index, marker in enumerate(markers):
        partitions = _partitions(marker)
        if is_node:
            _carry_out(context, call, marker, partial(answer.of, index))
            continue
        if marker.transaction_result:
            answer.of(index, dict.fromkeys(partitions, ErrorCode.cluster_authorization_failed))
            continue
        claim = Claim(marker.producer_id, marker.producer_epoch)
        context.transactions.abort(claim, partitions, partial(answer.of, index))
    return None if markers else {"markers": []}


def _carry_out(
    context: KafkaContext, call: Call, marker: Any, reply: Callable[[dict[Partition, ErrorCode]], None]
) -> None:
    """Another node's decision."""
    assert context.nodes is not None
    claim = Claim(marker.producer_id, marker.producer_epoch)
    sender = Sender(call.principal.name, marker.coordinator_epoch, call.connection.session.number)
    if sender.epoch < context.nodes.epoch_of(sender.name):
        reply(dict.fromkeys(_partitions(marker), ErrorCode.transaction_coordinator_fenced))
        return
    context.transactions.carry_out(sender, claim, marker.transaction_result, _partitions(marker), reply)


def _refused(call: Call, error: RequestError) -> Mapping[str, Any]:
    code = ErrorCode(error.code)
    return {"markers": [_fields(marker, dict.fromkeys(_partitions(marker), code)) for marker in call.body.markers]}


def _partitions(marker: Any) -> frozenset[Partition]:
    return frozenset((topic.name, index) for topic in marker.topics for index in topic.partition_indexes)


class _Answer:
    """Sends the one reply when each marker has its result. Results come on any thread."""

    def __init__(self, call: Call, left: int) -> None:
        self._call = call
        self._left = left
        self._errors: list[dict[Partition, ErrorCode]] = [{} for _ in range(left)]
        self._lock = Lock()

    def of(self, index: int, errors: dict[Partition, ErrorCode]) -> None:
        with self._lock:
            self._errors[index] = errors
            self._left -= 1
            if self._left:
                return
        asked = self._call.body.markers
        self._call.reply({"markers": [_fields(*one) for one in zip(asked, self._errors, strict=True)]})


def _fields(marker: Any, errors: dict[Partition, ErrorCode]) -> Mapping[str, Any]:
    return {
        "producer_id": marker.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "error_code": _known(errors[topic.name, index])}
                    for index in topic.partition_indexes
                ],
            }
            for topic in marker.topics
        ],
    }


def _known(error: ErrorCode) -> ErrorCode:
    """The callers of this API know no fenced producers, only old epochs."""
    return ErrorCode.invalid_producer_epoch if error == ErrorCode.producer_fenced else error


API = Api(key=ApiKey.WRITE_TXN_MARKERS, min_version=1, max_version=1, handle=handle, on_error=_refused, lane=ADMIN)
