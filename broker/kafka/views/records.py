"""``/api/v1/topics/{topic}/records``: what is in a topic, from an offset or a time on, or the last records.

Of one partition the records come in the order of their offsets. Of all partitions they are merged by time: of each partition as
many are read as are wanted altogether, and the first (of ``last``: the last) of all these are shown.

Tests: tests/kafka/views/test_records.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import attrs

from broker.errors import Refusal, StorageError
from broker.kafka.views.record_reader import Budget, Found, RecordReader, Wanted
from broker.kafka.views.view_context import ViewContext
from broker.network.work import INSPECTION
from broker.security.acl import Operation
from broker.storage.config import TopicInfo
from broker.storage.log.log import Log
from broker.web.routes import (
    BAD_REQUEST,
    NOT_FOUND,
    UNAVAILABLE,
    Answer,
    Call,
    HttpError,
    Route,
    json_answer,
    limit_of,
    number_of,
)

_LIMIT: Final = 50
_LIMIT_MAX: Final = 1000
# All partitions of a topic are read at once only if they are not more.
PARTITIONS_MAX: Final = 100
_KEY_MAX = 64 * 1024
# How often the reading of the last records begins anew from another place.
_ATTEMPTS = 4


class Records:
    def __init__(self, context: ViewContext) -> None:
        self._context = context
        self._logs = context.kafka.logs

    def routes(self) -> list[Route]:
        return [Route("GET", "/api/v1/topics/{topic}/records", self.page, lane=INSPECTION, fetches=True)]

    def page(self, call: Call) -> Answer:
        info = self._context.topic_of(call, Operation.READ)
        wanted = _wanted(call)
        starts = self._starts(call, info)
        last = number_of(call, "last", None, least=1, most=_LIMIT_MAX)
        if last is not None:
            wanted = attrs.evolve(wanted, limit=last)
        try:
            return json_answer(self._found(call, info, starts, wanted, is_last=last is not None))
        except (Refusal, StorageError) as error:
            if isinstance(error, HttpError):
                raise
            raise HttpError(UNAVAILABLE, str(error)) from None

    def _found(
        self, call: Call, info: TopicInfo, starts: Mapping[int, int], wanted: Wanted, *, is_last: bool
    ) -> dict[str, Any]:
        ordered: list[tuple[tuple[int, int, int], dict[str, Any]]] = []
        positions = dict(starts)
        whole = Budget()
        share = whole.share(len(starts))
        for partition, start in starts.items():
            if whole.is_spent:
                break
            log, own = self._log(info, partition), attrs.evolve(share)
            found = _last(log, wanted, own, call) if is_last else RecordReader(log, wanted, own, call.work).read(start)
            whole.take(share, own)
            positions[partition] = found.next_offset
            ordered += _in_time(found.records)
        ordered.sort(key=itemgetter(0))
        kept = ordered[-wanted.limit :] if is_last else ordered[: wanted.limit]
        if is_last:
            return {"records": [record for _, record in kept], "next": None}
        for _, dropped in reversed(ordered[wanted.limit :]):
            positions[dropped["partition"]] = dropped["offset"]
        left = {each: offset for each, offset in positions.items() if offset < _end(self._log(info, each), wanted)}
        return {"records": [record for _, record in kept], "next": _next(left)}

    def _starts(self, call: Call, info: TopicInfo) -> Mapping[int, int]:
        """The partitions to be read, and from which offset. Raises HttpError."""
        if "positions" in call.query:
            return _positions(call.query["positions"], info)
        partition = number_of(call, "partition", None, most=info.partitions - 1)
        if partition is None and info.partitions > PARTITIONS_MAX:
            raise HttpError(BAD_REQUEST, f"Name a partition: the topic has more than {PARTITIONS_MAX}.")
        partitions = range(info.partitions) if partition is None else [partition]
        offset, time = number_of(call, "offset", 0), number_of(call, "time")
        assert offset is not None
        return {each: offset if time is None else self._at_time(call, info, each, time) for each in partitions}

    def _at_time(self, call: Call, info: TopicInfo, partition: int, time: int) -> int:
        call.work.checkpoint()
        log = self._log(info, partition)
        try:
            found = log.offset_for_timestamp(time)
        except (Refusal, StorageError) as error:
            raise HttpError(UNAVAILABLE, str(error)) from None
        return log.high_watermark if found is None else found[0]

    def _log(self, info: TopicInfo, partition: int) -> Log:
        log = self._logs.get(info.name, partition)
        if log is None:
            raise HttpError(NOT_FOUND, f"The topic {info.name} was deleted.")
        if log.offline is not None:
            raise HttpError(UNAVAILABLE, str(log.offline))
        return log


def _wanted(call: Call) -> Wanted:
    key = call.query.get("key")
    if key is not None and len(key) > _KEY_MAX:
        raise HttpError(BAD_REQUEST, "The key is too long.")
    return Wanted(
        limit=limit_of(call, _LIMIT, _LIMIT_MAX),
        key=key.encode("utf-8", "surrogateescape") if key else None,
        committed=call.flag("committed"),
        before=number_of(call, "before"),
    )


def _positions(text: str, info: TopicInfo) -> dict[int, int]:
    """``0:12,1:40``: offsets by partition. Raises HttpError."""
    found = {}
    for pair in text.split(",", PARTITIONS_MAX)[:PARTITIONS_MAX]:
        partition, _, offset = pair.partition(":")
        if not (_is_number(partition) and _is_number(offset) and int(partition) < info.partitions):
            raise HttpError(BAD_REQUEST, "The parameter positions has to be partition:offset, with commas between.")
        found[int(partition)] = int(offset)
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _end(log: Log, wanted: Wanted) -> int:
    end = log.last_stable_offset if wanted.committed else log.high_watermark
    return end if wanted.before is None else min(end, wanted.before)


def _in_time(records: Sequence[dict[str, Any]]) -> Iterator[tuple[tuple[int, int, int], dict[str, Any]]]:
    """The records of one partition with keys that merge partitions by time, and leave each in the order of its offsets."""
    latest = -1
    for record in records:
        latest = max(latest, record["timestamp"] or -1)
        yield (latest, record["partition"], record["offset"]), record


def _last(log: Log, wanted: Wanted, budget: Budget, call: Call) -> Found:
    """The last records. They are read forwards from some way before the end: from further back where offsets are missing, because
    of compaction or of a key, and from less far where that is too much to read."""
    end, reach = _end(log, wanted), wanted.limit
    best = Found([], end)
    everything = attrs.evolve(wanted, limit=budget.records)
    for _ in range(_ATTEMPTS):
        start = max(log.log_start_offset, end - reach)
        own = attrs.evolve(budget)
        found = RecordReader(log, everything, own, call.work).read(start)
        if found.next_offset < end and own.is_spent:
            if best.records or reach == 1:
                break
            reach = max(1, reach // 8)
            continue
        best = found
        if len(found.records) >= wanted.limit or start == log.log_start_offset:
            break
        reach *= 10
    budget.take(budget, own)
    return Found(best.records[-wanted.limit :], best.next_offset)


def _next(left: Mapping[int, int]) -> dict[str, Any] | None:
    if not left:
        return None
    partition, offset = next(iter(left.items()))
    positions = ",".join(f"{number}:{position}" for number, position in left.items())
    return {"partition": partition, "offset": offset, "positions": positions}
