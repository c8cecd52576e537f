"""Helpers of the administrative handlers: partition look-up, errors for replies, and Kafka's limits on a request.

Pure functions; they run on the thread that handles the request.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import timedelta
from math import inf
from typing import Any, TypeVar

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.api import Call
from broker.kafka.context import KafkaContext
from broker.kafka.error_codes import code_of
from broker.log import get_logger
from broker.network.work import Work
from broker.storage.log.log import Log
from protocol.kafka.errors import ErrorCode

log = get_logger("kafka")

T = TypeVar("T", bound=Hashable)
T2 = TypeVar("T2")

# How many topics are changed while nobody else can change any: some seconds.
_TOGETHER = 50

# Characters of an error message: a topic's longest name (249) twice, and a sentence around it.
_MESSAGE_MAX = 1000

# Kafka's ReplicationControlManager.MAX_PARTITIONS_PER_BATCH: one request may not fill the disk with directories.
MAX_PARTITIONS_PER_REQUEST = 10_000
# The result of a topic that ``repeated`` found. It is never raised.
NAMED_TWICE = RequestError(ErrorCode.invalid_request, "Name each topic only once in a request.")

# Kafka's "not asked for" in fields of authorized operations: Integer.MIN_VALUE.
OPERATIONS_NOT_ASKED_FOR = -(2**31)


def online_log(context: KafkaContext, topic: str, partition: int) -> Log:
    """The partition's log, ready to be used.

    Raises a Refusal if there is no such partition (unknown_topic_or_partition), StorageError if the partition cannot be
    served.
    """
    log = context.logs.get(topic, partition)
    if log is None:
        info = context.logs.topic(topic)
        if context.why_absent(topic, partition) == ErrorCode.not_leader_or_follower:
            raise RequestError(ErrorCode.not_leader_or_follower, f"Another node has {topic}-{partition}.")
        if info is None or not 0 <= partition < info.partitions:
            raise RequestError(ErrorCode.unknown_topic_or_partition, f"There is no partition {topic}-{partition}.")
        raise StorageError(f"The log of {topic}-{partition} could not be opened.")
    if log.offline is not None:
        raise log.state.why_unavailable()
    return log


def check_leader_epoch(log: Log, current_leader_epoch: int) -> None:
    """KIP-320: refuse a request whose leader epoch is older or newer than the log's. -1: the client sent none."""
    if current_leader_epoch == -1 or current_leader_epoch == log.leader_epoch:
        return
    if current_leader_epoch < log.leader_epoch:
        raise RequestError(ErrorCode.fenced_leader_epoch, f"The leader epoch is {log.leader_epoch} by now.")
    raise RequestError(ErrorCode.unknown_leader_epoch, f"The leader epoch is {log.leader_epoch} as yet.")


def error_fields(error: Refusal | StorageError) -> tuple[int, str]:
    """Code and message for a reply. A fault of the machine is Kafka's retriable kafka_storage_error.

    Messages quote the client's request, which may be long: they are cut off, so that no reply grows with the request.
    """
    if isinstance(error, Refusal):
        code = code_of(error)
        return code, (error.message or ErrorCode(code).name.replace("_", " "))[:_MESSAGE_MAX]
    return ErrorCode.kafka_storage_error, str(error)[:_MESSAGE_MAX]


def error_alone(call: Call, error: RequestError) -> dict[str, int]:
    """For ``Api.on_error``, if a reply has an error code and all its other fields may be left out."""
    return {"error_code": error.code}


def error_and_message(call: Call, error: RequestError) -> dict[str, Any]:
    """The same, if it has a message as well."""
    code, message = error_fields(error)
    return {"error_code": code, "error_message": message}


def deadline_of(call: Call, timeout: timedelta) -> float:
    """The time (Clock.monotonic() s) at which a request that changes topics has used up its ``timeout``. Infinite for
    clients that send 0 or -1: they wait for as long as it takes."""
    seconds = timeout.total_seconds()
    return call.received_at + seconds if seconds > 0 else inf


def check_time(context: KafkaContext, work: Work, deadline: float) -> None:
    """Called before each topic that a request changes. Raises RequestError (request_timed_out) when the deadline has passed: the
    topic is not changed. Raises Abandoned when the client has disconnected or the broker stops."""
    work.checkpoint()
    if context.clock.monotonic() >= deadline:
        raise RequestError(ErrorCode.request_timed_out, "The time-out of the request was over before its turn came.")


def change_together(
    context: KafkaContext, items: Sequence[T2], change: Callable[[T2], None]
) -> Iterator[tuple[Sequence[T2], StorageError]]:
    """Change topics, so many at a time that other nodes have them in one go. Yields those that were not begun with, and why."""
    for start in range(0, len(items), _TOGETHER):
        some, begun = items[start : start + _TOGETHER], 0
        try:
            with context.logs.together():
                for item in some:
                    begun += 1
                    change(item)
        except StorageError as error:
            yield some[begun:], error


def repeated(items: Iterable[T]) -> set[T]:
    """The items that occur more than once."""
    return {item for item, count in Counter(items).items() if count > 1}


def check_room(partitions: int, room: int) -> None:
    """Raises RequestError if a request that may still create ``room`` partitions wants more."""
    if partitions > room:
        raise RequestError(
            ErrorCode.policy_violation, f"One request may create at most {MAX_PARTITIONS_PER_REQUEST} partitions."
        )


def check_replicas(context: KafkaContext, broker_ids: Sequence[int]) -> None:
    """A manual assignment of one partition: nodes of the cluster, each once. Raises RequestError with
    invalid_replica_assignment."""
    known = {context.node_id} if context.nodes is None else set(context.nodes.node_ids)
    strangers = sorted(set(broker_ids) - known)
    if broker_ids and not strangers and len(set(broker_ids)) == len(broker_ids):
        return
    if strangers and context.nodes is None:
        message = f"There is no broker {strangers[0]}; this cluster is broker {context.node_id} alone."
    elif strangers:
        message = f"There is no broker {strangers[0]}; this cluster has brokers {', '.join(map(str, sorted(known)))}."
    elif broker_ids:
        twice = sorted(repeated(broker_ids))
        message = f"Broker {twice[0]} is given more than once for one partition."
    else:
        message = "A partition needs at least one replica."
    raise RequestError(ErrorCode.invalid_replica_assignment, message)


def one_replica(context: KafkaContext, topic: str, replication_factor: int, assignments: Sequence[Any]) -> str | None:
    """What the cluster does not do as it was asked. Partitions are made all the same: clients that know clusters of Kafka ask for
    three replicas out of habit."""
    replicas = max([replication_factor, *(len(each.broker_ids) for each in assignments)])
    if context.nodes is None or (replicas <= 1 and not assignments):
        return None
    log.warning("one_replica", topic=topic, replicas_asked=replicas)
    return "Each partition has one replica, on the node that follows from its topic's name and its number."
