"""``/api/v1/topics/{topic}/records``: the records of a topic, from an offset or a time on, or the last records.

Records of one partition come in the order of their offsets. Records of all partitions are merged by time: from each partition as
many are read as are wanted altogether, and the first (for ``last``: the last) of all these are shown.

``/api/v1/topics/{topic}/tail``: new records, as server-sent events.

The thread ``record-tail`` looks twice a second whether the followed logs have grown, and reads the new records as calls for
records do. So no append pays for it, and its cost is bounded: a look takes a limited number of records for one stream and for all
streams together. A stream that falls behind jumps to the end, and is told so (``jumped``).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import attrs

from broker.errors import Refusal, StorageError
from broker.kafka.views import record_reader
from broker.kafka.views.record_reader import Budget, Found, RecordReader, Wanted
from broker.kafka.views.view_context import ViewContext
from broker.log import EventLimit, get_logger
from broker.network.work import INSPECTION, Abandoned, Work
from broker.runtime.threads import Event, Lock
from broker.security.acl import Operation, ResourceType
from broker.security.client_quotas import Meter
from broker.storage.config import TopicInfo
from broker.storage.log.log import Log
from broker.web.routes import (
    BAD_REQUEST,
    NOT_FOUND,
    UNAVAILABLE,
    Answer,
    Call,
    EventStream,
    HttpError,
    Route,
    json_answer,
    limit_of,
    number_of,
    stream_answer,
)

_LIMIT: Final = 50
_LIMIT_MAX: Final = 1000
# All partitions of a topic are read at once only up to this number.
PARTITIONS_MAX: Final = 100
_KEY_MAX = 64 * 1024
# How often the reading of the last records starts again from another offset.
_ATTEMPTS = 4


class Records:
    def __init__(self, context: ViewContext) -> None:
        self._context = context
        self._logs = context.kafka.logs

    def routes(self) -> list[Route]:
        route = Route("GET", "/api/v1/topics/{topic}/records", self.page, lane=INSPECTION, fetches=True)
        return [self._context.at_owner(route)]

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
            found = log.times.offset_for_timestamp(time)
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
    positions = {}
    for pair in text.split(",", PARTITIONS_MAX)[:PARTITIONS_MAX]:
        partition, _, offset = pair.partition(":")
        if not (_is_number(partition) and _is_number(offset) and int(partition) < info.partitions):
            raise HttpError(BAD_REQUEST, "The parameter positions has to be partition:offset, with commas between.")
        positions[int(partition)] = int(offset)
    return positions


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _end(log: Log, wanted: Wanted) -> int:
    end = log.last_stable_offset if wanted.committed else log.high_watermark
    return end if wanted.before is None else min(end, wanted.before)


def _in_time(records: Sequence[dict[str, Any]]) -> Iterator[tuple[tuple[int, int, int], dict[str, Any]]]:
    """The records of a partition with sort keys that merge partitions by time, and keep each in the order of its offsets."""
    latest = -1
    for record in records:
        latest = max(latest, record["timestamp"] or -1)
        yield (latest, record["partition"], record["offset"]), record


def _last(log: Log, wanted: Wanted, budget: Budget, call: Call) -> Found:
    """The last records. They are read forwards from some way before the end: from further back if offsets are missing, because
    of compaction or of a key, and from less far if that is too much to read."""
    end, reach = _end(log, wanted), wanted.limit
    best = Found([], end)
    everything = attrs.evolve(wanted, limit=budget.records)
    for _ in range(_ATTEMPTS):
        start = max(log.log_start_offset, end - reach)
        own = attrs.evolve(budget)
        reading = RecordReader(log, everything, own, call.work).read(start)
        if reading.next_offset < end and own.is_spent:
            if best.records or reach == 1:
                break
            reach = max(1, reach // 8)
            continue
        best = reading
        if len(reading.records) >= wanted.limit or start == log.log_start_offset:
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


log = get_logger("kafka")

LOOK_EVERY_S = 0.5
# Records in one look: for one stream, and for all.
_RECORDS = 100
_ALL_RECORDS = 1000
_BYTES = 256 * 1024
# Bytes of an event: a stream keeps at most 64 KiB, so a longer event would never be sent.
_EVENT_MAX = 48 * 1024


@attrs.define(eq=False)
class _Follower:
    call: Call
    topic: TopicInfo
    stream: EventStream
    positions: dict[int, int]  # by partition: the offset of the next record


class Tail:
    """The route, and the body of the thread."""

    def __init__(self, context: ViewContext) -> None:
        self._context = context
        self._lock = Lock()
        self._followers: list[_Follower] = []
        self._event = Event()
        self._failures = EventLimit()

    def routes(self) -> list[Route]:
        return [self._context.at_owner(Route("GET", "/api/v1/topics/{topic}/tail", self.begin))]

    def begin(self, call: Call) -> Answer:
        info = self._context.topic_of(call, Operation.READ)
        partition = number_of(call, "partition", None, most=info.partitions - 1)
        if partition is None and info.partitions > PARTITIONS_MAX:
            raise HttpError(BAD_REQUEST, f"Name a partition: the topic has more than {PARTITIONS_MAX}.")
        positions = {}
        for number in range(info.partitions) if partition is None else [partition]:
            found = self._context.kafka.logs.get(info.name, number)
            positions[number] = 0 if found is None else found.high_watermark

        def start(stream: EventStream) -> None:
            with self._lock:
                self._followers.append(_Follower(call, info, stream, positions))
            self._event.set()

        return stream_answer(start, call.principal)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def step(self, timeout: float | None) -> bool:
        if not self._followers:
            self._event.wait(timeout)
            self._event.clear()
            return bool(self._followers)
        self._event.wait(LOOK_EVERY_S if timeout is None else min(LOOK_EVERY_S, timeout))
        self._event.clear()
        self.look()
        return True

    def wakeup(self) -> None:
        self._event.set()

    def look(self) -> None:
        with self._lock:
            self._followers = followers = [each for each in self._followers if not each.stream.closed]
        share = min(_RECORDS, max(1, _ALL_RECORDS // max(1, len(followers))))
        for each in followers:
            try:
                self._feed(each, share)
            except (Refusal, StorageError):
                each.stream.close()  # the topic was deleted, or is offline: another call says so
            except Abandoned:
                continue  # the client has gone
            except Exception as error:  # the seam: one stream's failure must not end the others, or the broker
                each.stream.close()
                self._complain(error)

    def _complain(self, error: Exception) -> None:
        unlogged = self._failures.take(self._context.kafka.clock.monotonic())
        if unlogged is not None:
            log.error("tail_failed", exc_info=error, unlogged_before=unlogged)

    def _feed(self, follower: _Follower, most: int) -> None:
        """Raises StorageError, Refusal."""
        context = self._context
        if not context.callers.may(follower.call, Operation.READ, ResourceType.TOPIC, follower.topic.name):
            follower.stream.close()
            return
        info = context.kafka.logs.topic(follower.topic.name)
        if info is None or info.topic_id != follower.topic.topic_id:  # a newer topic of this name has other offsets
            follower.stream.close()
            return
        meter = context.callers.quotas.meters(follower.call.principal.name, "").fetch
        if meter is not None and meter.throttle_s(context.kafka.clock.monotonic()):
            return  # the next jump tells the number of skipped records
        for partition, position in follower.positions.items():
            followed = context.kafka.logs.get(info.name, partition)
            if followed is None:
                follower.stream.close()
                return
            if position < followed.high_watermark:
                most -= self._feed_partition(follower, followed, position, most, meter)

    def _feed_partition(self, follower: _Follower, followed: Log, position: int, most: int, meter: Meter | None) -> int:
        """Returns how many records were sent."""
        stream, end = follower.stream, followed.high_watermark
        sent = 0
        if most > 0:
            budget = Budget(stored_bytes=8 * _BYTES, opened_bytes=8 * _BYTES, records=2 * most, shown_bytes=_BYTES)
            reading = RecordReader(followed, Wanted(most), budget, Work(lambda: stream.closed)).read(position)
            position = reading.next_offset
            for record in reading.records:
                event = _event(record)
                stream.send("record", event)  # or it is skipped, and the client is told the number
                if meter is not None:
                    meter.take(len(event), self._context.kafka.clock.monotonic())
                sent += 1
        if position < end:
            jump = {"partition": followed.partition, "from": position, "to": end}
            stream.send("jumped", json.dumps(jump, separators=(",", ":")))
            position = end
        follower.positions[followed.partition] = position
        return sent


def _event(record: Mapping[str, Any]) -> str:
    data = json.dumps(record, separators=(",", ":"))
    return data if len(data) <= _EVENT_MAX else json.dumps(record_reader.shortened(record), separators=(",", ":"))
