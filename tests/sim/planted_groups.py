"""Mistakes for ``planted.py``: in share groups, and in consumer groups that the coordinator assigns partitions to."""

from typing import Any

from broker.kafka.groups.consumer.membership import Saver
from broker.kafka.share.partition_entry import PartitionEntry, ignore
from broker.kafka.share.share_partition import SharePartition
from protocol.kafka.errors import ErrorCode


def answered_before_saved(right: Any) -> Any:
    def acknowledge(self: PartitionEntry, member_id: str, batches: Any, done: Any, *, may_renew: bool) -> bool:
        right(self, member_id, batches, ignore, may_renew=may_renew)
        return False

    return acknowledge


def released_lost(_: Any) -> Any:
    def fail(self: SharePartition, record: Any) -> bool:
        self._finish(record)
        return False

    return fail


def locks_without_end(_: Any) -> Any:
    return lambda self: None


def locks_end_early(right: Any) -> Any:
    def configure(self: SharePartition, settings: Any) -> None:
        right(self, settings)
        self._in_flight.lock_s /= 10

    return configure


def done_forgotten(right: Any) -> Any:
    return lambda self, ranges, failed, log_end: right(self, (), failed, log_end)


def given_before_released(_: Any) -> Any:
    return lambda owned, revoking: False


def told_before_saved(_: Any) -> Any:
    def answer(self: Saver, number: int | None, make: Any) -> None:
        self._emit(make(ErrorCode.none))

    return answer


def sessions_without_end(_: Any) -> Any:
    return lambda self, member, now: None
