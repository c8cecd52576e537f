"""``/api/v1/transactions``: the open transactions, and which of them hold up readers of committed records;
``/api/v1/producers``: the producers that have written to a topic with sequence numbers.

Tests: tests/kafka/views/test_transactions.py.
"""

import heapq
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Final

from broker.errors import Refusal, StorageError
from broker.kafka.transactions.transaction import AT_REST, State
from broker.kafka.views.view_context import ViewContext
from broker.security.acl import Operation, ResourceType
from broker.storage.log.log import Log
from broker.web.routes import (
    BAD_REQUEST,
    NOT_FOUND,
    Answer,
    Call,
    HttpError,
    Route,
    json_answer,
    limit_of,
    number_of,
    page_of,
)

# Named partitions of a transaction, and partitions with a held last stable offset.
_PARTITIONS_SHOWN: Final = 1000
_HELD_SHOWN: Final = 1000
_DESCRIBED_MAX: Final = 100


class Transactions:
    def __init__(self, context: ViewContext) -> None:
        self._context = context
        self._logs = context.kafka.logs

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/transactions", self.page),
            self._context.at_owner(Route("GET", "/api/v1/producers", self.producers)),
        ]

    def page(self, call: Call) -> Answer:
        context = self._context
        everything = call.flag("all")
        _, states = context.kafka.transactions.list()
        wanted = {
            name: state
            for name, state in call.work.each(states)
            if (everything or state.phase not in AT_REST)
            and context.may_describe(call, ResourceType.TRANSACTIONAL_ID, name)
        }
        page, following = page_of(call, wanted)
        owners = {state.producer_id: name for name, state in wanted.items()}
        return json_answer(
            {
                "transactions": [self._transaction(call, name, wanted[name]) for name in call.work.each(page)],
                "held": list(self._held(call, owners)),
                "next": following,
            }
        )

    def _transaction(self, call: Call, name: str, state: State) -> dict[str, Any]:
        topics = {topic for topic, _ in state.partitions}
        hidden = {topic for topic in topics if not self._context.may_describe(call, ResourceType.TOPIC, topic)}
        partitions = sorted(each for each in state.partitions if each[0] not in hidden)
        is_open = state.phase not in AT_REST
        now_ms = self._context.kafka.clock.time_ms()
        return {
            "id": name,
            "producer_id": state.producer_id,
            "epoch": state.epoch,
            "state": state.phase.value,
            "started_ms": state.started_ms if is_open else None,
            "open_s": max(0, now_ms - state.started_ms) / 1000 if is_open else None,
            "timeout_s": state.timeout_ms / 1000,
            "partitions": [{"topic": topic, "partition": number} for topic, number in partitions[:_PARTITIONS_SHOWN]],
            "groups": sorted(
                group for group in state.groups if self._context.may_describe(call, ResourceType.GROUP, group)
            ),
            "holds_last_stable_offset": [
                {"topic": log.topic, "partition": log.partition, "offset": log.last_stable_offset}
                for log in self._each_log(call, partitions)
                if _holder(log) == state.producer_id
            ][:_PARTITIONS_SHOWN],
        }

    def _each_log(self, call: Call, partitions: Iterable[tuple[str, int]]) -> Iterable[Log]:
        for topic, number in call.work.each(partitions):
            log = self._logs.get(topic, number)
            if log is not None and log.offline is None:
                yield log

    def _held(self, call: Call, owners: dict[int, str]) -> Iterable[dict[str, Any]]:
        """The partitions in which readers of committed records do not reach the end. The coordinator may not know the transaction
        that holds them up."""
        shown = 0
        for log in call.work.each(list(self._logs.partitions.copy().values())):
            holder = None if log.offline is not None else _holder(log)
            if holder is None or not self._context.may_describe(call, ResourceType.TOPIC, log.topic):
                continue
            stable, end = log.last_stable_offset, log.high_watermark
            yield {
                "topic": log.topic,
                "partition": log.partition,
                "last_stable_offset": stable,
                "end_offset": end,
                "producer_id": holder,
                "transactional_id": owners.get(holder),
            }
            shown += 1
            if shown >= _HELD_SHOWN:
                return

    # -- producers ----------------------------------------------------------------------------------------------------

    def producers(self, call: Call) -> Answer:
        name = call.query.get("topic", "")
        if not name:
            raise HttpError(BAD_REQUEST, "Name a topic, as in ?topic=orders.")
        self._context.callers.require(call, Operation.READ, ResourceType.TOPIC, name)
        info = self._logs.topic(name)
        if info is None:
            raise HttpError(NOT_FOUND, f"There is no topic {name[:300]!r}.")
        partition = number_of(call, "partition", None, most=info.partitions - 1)
        limit = limit_of(call)
        numbers = range(min(info.partitions, _DESCRIBED_MAX)) if partition is None else [partition]
        found = (each for number in numbers for each in self._of_partition(call, name, number))
        # Never all in memory at once: their number is unbounded.
        return json_answer({"producers": heapq.nlargest(limit, call.work.each(found), key=itemgetter("last_ms"))})

    def _of_partition(self, call: Call, topic: str, partition: int) -> Iterator[dict[str, Any]]:
        call.work.checkpoint()
        log = self._logs.get(topic, partition)
        try:
            described = [] if log is None else log.transactions.describe_producers()
        except (Refusal, StorageError):
            return
        for each in described:
            yield {
                "partition": partition,
                "producer_id": each.producer_id,
                "epoch": each.epoch,
                "last_sequence": each.last_sequence,
                "last_ms": each.last_timestamp,
                "open_since_offset": each.txn_start_offset if each.txn_start_offset >= 0 else None,
            }


def _holder(log: Log) -> int | None:
    """The id of the producer whose open transaction holds the last stable offset; None if it is at the end. Reads fields that
    other threads change, and may be wrong for a moment."""
    first = log.state.first_unstable
    if first is None:
        return None
    return next((producer for producer, begin in log.producers.open.copy().items() if begin == first), None)
