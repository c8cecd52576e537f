"""``/api/v1/topics/{topic}/tail``: the records that arrive, as server-sent events.

The thread ``record-tail`` looks twice a second whether the logs have grown that somebody follows, and reads what is new as the
calls for records do. So no append pays for it, and what it costs is bounded: of one stream and in all streams together there are
only so many records in a look. A stream that falls behind jumps to the end, and is told so (``jumped``).

Tests: tests/kafka/views/test_tail.py.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs

from broker.errors import Refusal, StorageError
from broker.kafka.views import record_reader
from broker.kafka.views.record_reader import Budget, RecordReader, Wanted
from broker.kafka.views.records import PARTITIONS_MAX
from broker.kafka.views.view_context import ViewContext
from broker.log import EventLimit, get_logger
from broker.network.work import Abandoned, Work
from broker.runtime.threads import Event, Lock
from broker.security.acl import Operation, ResourceType
from broker.security.quotas.client_quotas import Meter
from broker.storage.config import TopicInfo
from broker.storage.log.log import Log
from broker.web.routes import BAD_REQUEST, Answer, Call, EventStream, HttpError, Route, number_of, stream_answer

log = get_logger("kafka")

LOOK_EVERY_S = 0.5
# In one look: of one stream, and of all.
_RECORDS = 100
_ALL_RECORDS = 1000
_BYTES = 256 * 1024
# Of one event: a stream keeps at most 64 KiB, so a longer one would never be sent.
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
        return [Route("GET", "/api/v1/topics/{topic}/tail", self.begin)]

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
        if info is None or info.topic_id != follower.topic.topic_id:  # another one of this name has other offsets
            follower.stream.close()
            return
        meter = context.callers.quotas.meters(follower.call.principal.name, "").fetch
        if meter is not None and meter.throttle_s(context.kafka.clock.monotonic()):
            return  # what is skipped meanwhile is told by the next jump
        for partition, position in follower.positions.items():
            found = context.kafka.logs.get(info.name, partition)
            if found is None:
                follower.stream.close()
                return
            if position < found.high_watermark:
                most -= self._feed_partition(follower, found, position, most, meter)

    def _feed_partition(self, follower: _Follower, followed: Log, position: int, most: int, meter: Meter | None) -> int:
        """Returns how many records were sent."""
        stream, end = follower.stream, followed.high_watermark
        sent = 0
        if most > 0:
            budget = Budget(stored_bytes=8 * _BYTES, opened_bytes=8 * _BYTES, records=2 * most, shown_bytes=_BYTES)
            found = RecordReader(followed, Wanted(most), budget, Work(lambda: stream.closed)).read(position)
            position = found.next_offset
            for record in found.records:
                event = _event(record)
                stream.send("record", event)  # or it is skipped, and the client is told how many were
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
